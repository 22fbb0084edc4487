// SPDX-License-Identifier: Apache-2.0

// Package bench measures the library beside a bare loop that moves the same bytes with Go's
// standard means, in the same run. The result is the ratio of the two, because the state of the
// machine changes both. Bare and library rounds alternate. The figure of each side is the median
// over its rounds.
//
// Each case is a row of the table comparisons: a bare loop, a loop of the library and a goal. A
// pair, which is this process and a peer, runs the loops. measure takes the rounds.
package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// options are the values of a bench's flags.
type options struct {
	bench                        string
	transport, poll              string // transport "": those of the bench
	size, count, rounds, senders int
	receive                      string // how the peer receives
	procs                        int    // GOMAXPROCS; 0: as many as there are processors
	nodes, resources             int    // of find; 0: over the socket of this node
	sealed                       bool
	idle                         int    // links beside the measured one
	server                       string // how the peer answers
	inFlight                     int    // goroutines that call at the same time; 0 and 1: one
	only                         string // the group of rows; "": all
	full                         bool   // with clients of as much memory as in Mercury's paper
	mailbox                      int    // as in config

	opened func(*pair) // for tests: is called with each pair
}

// policies are the values of --poll.
var policies = []struct {
	name string
	is   rocl.PollPolicy
}{
	{"never", rocl.PollNever},
	{"adaptive", rocl.PollAdaptive},
	{"always", rocl.PollAlways},
}

func policyOf(poll string) (rocl.PollPolicy, error) {
	for _, p := range policies {
		if p.name == poll {
			return p.is, nil
		}
	}
	return 0, usage.Errorf("--poll is one of never, adaptive, always, not %q", poll)
}

// servers are the values of --server. The server that answers each message before it receives the
// next is the one with which the others are compared.
var servers = []string{"inline", "goroutine", "receivers"}

// receives are the values of --receive.
var receives = []string{"recv", "messages"}

// A bench is a command.
type bench struct {
	name, short, flags string
	transports         []string // the values of --transport
	defaults           options
	run                func(context.Context, *options) []*Result
}

var benches = []*bench{
	{"rtt", "Round-trip time between two processes", "transport size count rounds poll idle server",
		append([]string{"tcp", "shm", "inproc"}, fabrics...), options{transport: "tcp", poll: "always", size: 64, count: 20_000}, compare()},
	{"call", "Time of a call, or calls a second of many goroutines", "transport size count rounds poll inflight",
		[]string{"tcp", "shm", "inproc"}, options{transport: "tcp", poll: "always", size: 64, count: 20_000}, compare()},
	{"rate", "Messages a second, one way", "transport size count rounds poll senders receive procs",
		append([]string{"tcp", "shm", "inproc"}, fabrics...), options{transport: "tcp", poll: "adaptive", size: 64, count: 2_000_000}, compare()},
	{"cpu", "Processor time of a message, apart for its sender and its receiver, over each transport or one --transport", "transport size count rounds poll",
		[]string{"shm", "tcp", "inproc"}, options{poll: "adaptive", size: 64, count: 200_000}, compare("shm", "tcp", "inproc")},
	{"bw", "Bytes a second, one way, large messages", "transport size count rounds poll",
		append([]string{"tcp", "shm"}, fabrics...), options{transport: "tcp", poll: "adaptive", size: 64 << 20, count: 8}, compare()},
	{"db", "The directory's database, in process", "count", nil, options{count: 1_000_000}, db},
	{"pairs", "Memory of links that have gone quiet, of --count contexts, all to all", "transport size count",
		[]string{"tcp", "shm"}, options{transport: "tcp", size: 4 << 10, count: 64}, quietPairs},
	{"find", "Find through the node's socket, in place, or between nodes", "count rounds poll nodes sealed resources",
		nil, options{poll: "adaptive", count: 10_000}, compare("")},
	{"findall", "FindAll of --count local resources: serving, from the index, over the socket", "count rounds poll",
		nil, options{poll: "adaptive", count: 1000}, compare("")},
	{"tpvm", "Messages and spawns of package tpvm, beside rocl's own messages, Go channels and PVM 3.4", "size count rounds",
		nil, options{poll: "adaptive", size: 64, count: 20_000}, tpvmBench},
	{"rpc", "Calls of package rpc, beside rocl's own messages and net/rpc, over shm and tcp", "size count rounds",
		nil, options{poll: "adaptive", size: 64, count: 20_000}, compare("shm", "tcp")},
	{"flow", "Items a second through graphs of package dataflow, within a process and between two", "transport count rounds poll",
		[]string{"inproc", "shm", "tcp"}, options{poll: "adaptive", count: 1_000_000}, compare("inproc", "shm", "tcp")},
	{"bulk", "Transfers of package bulk, beside the loops of bw and memcpy, over tcp and shm, or over one --transport", "transport size count rounds poll only full",
		[]string{"tcp", "shm"}, options{poll: "adaptive", count: 4}, compare("tcp", "shm")},
	{"kit", "Picks of package live, held names, work queues and policies, beside what programs write by hand", "count rounds only",
		nil, options{poll: "adaptive", count: 20_000}, compare("")},
	{"see", "Messages while another process takes a view each second as rocl top does, beside those without, and a view of 1,000 contexts", "count rounds",
		nil, options{poll: "adaptive", size: 64, count: 2_000_000}, compare("")},
}

// groupsOf returns the groups of rows of a bench, which --only can name.
func groupsOf(bench string) []string {
	if bench == "kit" {
		return kitGroups
	}
	return groups
}

// define adds the flags of the bench to f, and returns where their values will be.
func (b *bench) define(f *pflag.FlagSet) *options {
	o := b.defaults
	o.bench = b.name
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	of := ""
	if o.transport == "" {
		of = ", rather than all of them"
	}
	all.StringVar(&o.transport, "transport", o.transport, "one of "+strings.Join(b.transports, ", ")+of)
	all.StringVar(&o.poll, "poll", o.poll, "whether waiters poll: never, adaptive or always")
	text := "bytes of a message"
	if b.name == "bulk" {
		text = "bytes of a transfer, rather than those of each row; leaves out rows that have several sizes"
	}
	all.IntVar(&o.size, "size", o.size, text)
	count := "messages of a round"
	if b.name == "bw" && len(fabrics) > 0 {
		count += "; over a fabric as many as have 64 MiB, if those are more"
	}
	all.IntVar(&o.count, "count", o.count, count)
	all.IntVar(&o.rounds, "rounds", 7, "rounds of each side")
	all.IntVar(&o.senders, "senders", 1, "sending goroutines")
	all.StringVar(&o.receive, "receive", receives[0], "how the peer receives: recv (one message at a time) or messages (a loop over Messages)")
	all.IntVar(&o.procs, "procs", 0, "GOMAXPROCS of each process, rather than the number of processors")
	all.IntVar(&o.inFlight, "inflight", 0, "goroutines that call at a time, measured beside net/rpc rather than a message there and back")
	all.IntVar(&o.idle, "idle", 0, "links with other contexts of the peer process, over which nothing goes")
	all.StringVar(&o.server, "server", servers[0], "how the peer answers: inline (in its loop), goroutine (one for each message), receivers (four goroutines receive)")
	all.IntVar(&o.nodes, "nodes", 0, "so many nodes, each a process on the loopback interface, rather than this one's socket")
	all.BoolVar(&o.sealed, "sealed", false, "the nodes have a key, and seal what they say")
	all.IntVar(&o.resources, "resources", 0, "find one of so many in place, in the node's index, rather than through its socket")
	all.StringVar(&o.only, "only", "", "one of "+strings.Join(groupsOf(b.name), ", ")+", rather than all of the transport")
	all.BoolVar(&o.full, "full", false, "clients of 512 MiB each, rather than 64 MiB")
	for name := range strings.FieldsSeq(b.flags) {
		f.AddFlag(all.Lookup(name))
	}
	return &o
}

// measure runs the bench with the values of its flags.
func (b *bench) measure(ctx context.Context, o *options) ([]*Result, error) {
	if err := o.check(b); err != nil {
		return nil, err
	}
	if b.name == "bw" && slices.Contains(fabrics, o.transport) { // with fewer, the bare loop stands still for 40 ms
		o.count = max(o.count, 64<<20/o.size)
	}
	var rs []*Result
	where := look()
	err := attempt(func() { rs = b.run(ctx, o) })
	complete(rs, where.and(look()))
	if err == nil && len(rs) == 0 {
		err = usage.Errorf("bench %s does not measure that over %s", b.name, o.transport)
	}
	return rs, err
}

// table is what 'rocl bench all' measures, in order: the flags of a bench that differ from their
// defaults.
var table = []string{
	"cpu",
	"rtt",
	"rtt --poll never --count 5000",
	"rtt --size 1048576 --count 500",
	"rtt --transport inproc --poll adaptive --count 200000",
	"rate",
	"rate --senders 4",
	"rtt --transport shm --count 100000",
	"rtt --transport shm --count 100000 --size 1048576",
	"rtt --transport shm --count 100000 --size 67108864",
	"rtt --transport shm --poll never",
	"rate --transport shm --count 5000000",
	"rate --transport shm --count 5000000 --senders 4",
	"rate --transport shm --count 5000000 --receive messages",
	"rate --transport shm --count 5000000 --receive messages --senders 4",
	"rate --transport inproc",
	"rate --transport inproc --senders 4",
	"rate --transport inproc --procs 1",
	"call --transport shm --count 100000",
	"call",
	"call --transport inproc --poll adaptive --count 100000",
	"call --transport shm --poll adaptive --count 200000 --inflight 32",
	"call --poll adaptive --count 200000 --inflight 32",
	"call --transport inproc --poll adaptive --count 200000 --inflight 32",
	"rtt --transport shm --poll adaptive --count 10000 --server goroutine",
	"rtt --transport shm --poll adaptive --count 10000 --server receivers",
	"rtt --transport shm --idle 64",
	"rtt --transport shm --idle 1000",
	"rtt --idle 64 --count 5000",
	"rtt --idle 1000 --count 5000",
	"pairs --transport shm",
	"bw --size 1048576 --count 512",
	"bw",
	"bw --transport shm --size 1048576 --count 512",
	"bw --transport shm",
	"db",
	"find",
	"findall",
	"find --count 100000 --resources 1000000",
	"find --poll always --nodes 2",
	"find --poll always --nodes 2 --sealed",
	"find --poll never --count 3000 --nodes 8",
	"rpc",
	"bulk",
	"tpvm",
	"flow --transport inproc --count 100000",
	"flow --transport shm --count 100000",
	"kit",
	"see",
}

// The limits of flags.
const (
	mostIdle     = 4096
	mostTogether = 1024 // senders, and goroutines that call
)

// check returns an error if the flags of a bench are invalid.
func (o *options) check(b *bench) error {
	for _, rule := range []struct {
		isBroken bool
		text     string
	}{
		{o.count < 1 || o.rounds < 1 || o.size < 0 || o.size > rocl.MaxMessage, fmt.Sprintf("--count and --rounds must be at least 1, --size from 0 to %d", rocl.MaxMessage)},
		{o.transport != b.defaults.transport && !slices.Contains(b.transports, o.transport), fmt.Sprintf("%s is not measured over %q", o.bench, o.transport)},
		{o.only != "" && !slices.Contains(groupsOf(o.bench), o.only), fmt.Sprintf("--only is one of %s, not %q", strings.Join(groupsOf(o.bench), ", "), o.only)},
		{o.bench == "rate" && o.transport == "shm" && o.size > ringMost, fmt.Sprintf("--size of rate over shm is at most %d: the bare loop has a ring", ringMost)},
		{o.idle < 0 || o.idle > mostIdle || o.idle > 0 && o.transport == "inproc", fmt.Sprintf("--idle is up to %d, over shm or tcp", mostIdle)},
		{o.bench == "rate" && (o.senders < 1 || o.senders > mostTogether || o.senders > o.count),
			fmt.Sprintf("--senders is from 1 to %d, and not more than --count", mostTogether)},
		{!slices.Contains(receives, o.receive), fmt.Sprintf("--receive is one of %s, not %q", strings.Join(receives, ", "), o.receive)},
		{o.procs < 0 || o.procs > mostTogether, fmt.Sprintf("--procs is up to %d", mostTogether)},
		{o.bench == "bulk" && o.size > 0 && o.only != "" && !slices.Contains(sizable, o.only), fmt.Sprintf("--size is for --only %s", strings.Join(sizable, ", "))},
		{o.full && o.only != "" && o.only != "clients", "--full is for --only clients, or without --only"},
		{o.inFlight < 0 || o.inFlight > mostTogether || o.inFlight > o.count, fmt.Sprintf("--inflight is up to %d, and not more than --count", mostTogether)},
		{o.sealed && o.nodes == 0, "--sealed is for --nodes: one node's socket is not sealed"},
		{o.nodes != 0 && (o.nodes < 2 || o.nodes > 64), "--nodes is 2 to 64, or not given"},
		{o.bench == "pairs" && (o.count < 2 || o.count > 256), "pairs is of 2 to 256 contexts (--count)"},
		{o.resources < 0 || o.resources > 16_000_000 || o.resources > 0 && o.nodes > 0, "--resources is up to 16 million, and not for --nodes"},
		{o.bench == "bw" && o.size < 1, "--size must be at least 1 to have bytes to count"},
		{o.bench == "findall" && o.count > 1_000_000, "--count of findall is up to a million"},
		{!slices.Contains(servers, o.server), fmt.Sprintf("--server is one of %s, not %q", strings.Join(servers, ", "), o.server)},
		{o.server != servers[0] && (o.transport == "inproc" || o.idle > 0), "--server is for shm and tcp, and not with --idle"},
	} {
		if rule.isBroken {
			return usage.Errorf("%s", rule.text)
		}
	}
	if b.defaults.poll == "" { // the bench has no such flag
		return nil
	}
	_, err := policyOf(o.poll)
	return err
}

// Commands returns the command bench and the hidden command of its other processes.
func Commands() []*cobra.Command {
	top := &cobra.Command{
		Use:   "bench",
		Short: "Measure the library beside bare loops in the same run",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, b := range benches {
		c := &cobra.Command{Use: b.name, Short: b.short, Args: usage.Nothing}
		o := b.define(c.Flags())
		c.RunE = func(cmd *cobra.Command, _ []string) error {
			rs, err := b.measure(cmd.Context(), o)
			if err != nil {
				return err
			}
			return show(cmd.OutOrStdout(), rs, cli.Flags(cmd).JSON)
		}
		top.AddCommand(c)
	}
	top.AddCommand(allCommand(), sustainCommand())
	return []*cobra.Command{top, {
		Use: "bench-peer CONFIG", Hidden: true, Args: cobra.ExactArgs(1),
		Short: "The other process of a bench; started by bench",
		RunE: func(cmd *cobra.Command, args []string) error {
			return peerMain(cmd.Context(), args[0], os.Stdin, os.Stdout)
		},
	}}
}

func allCommand() *cobra.Command {
	var markdown bool
	var rounds int
	var page string
	c := &cobra.Command{
		Use: "all", Short: "Measure the whole table", Args: usage.Nothing,
		Long: "Measures the whole table, and counts the limits that are met, missed and not decided.",
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if rounds < 1 {
			return usage.Errorf("--rounds must be at least 1")
		}
		isJSON, isPage := cli.Flags(cmd).JSON, c.Flags().Changed("into")
		if isJSON && (markdown || isPage) || markdown && isPage {
			return usage.Errorf("one of --json, --markdown and --into")
		}
		w := cmd.OutOrStdout()
		if !isPage {
			return measureTable(cmd.Context(), w, rounds, isJSON, markdown)
		}
		return intoPage(page, c.Name(), func(w io.Writer) error { return measureTable(cmd.Context(), w, rounds, false, true) })
	}
	c.Flags().BoolVar(&markdown, "markdown", false, "print the table of docs/BENCHMARKS.md")
	c.Flags().StringVar(&page, "into", "", "put that table into this file, between the lines <!-- bench all --> and <!-- end of bench all -->")
	c.Flags().IntVar(&rounds, "rounds", 7, "rounds of each side")
	return c
}

// measureTable measures the table, and prints it.
func measureTable(ctx context.Context, w io.Writer, rounds int, isJSON, markdown bool) error {
	start, verdicts := time.Now(), tally{}
	if markdown {
		if err := markdownHead(w, machine()); err != nil {
			return err
		}
	}
	for _, line := range table {
		b, o, err := parse(line)
		if err != nil {
			return err
		}
		o.rounds = rounds
		rs, err := b.measure(ctx, o)
		if err == nil && markdown {
			err = markdownRows(w, rs)
		} else if err == nil {
			err = show(w, rs, isJSON)
		}
		if err != nil {
			return fmt.Errorf("bench %s: %w", line, err)
		}
		verdicts.add(rs)
	}
	if isJSON {
		return nil
	}
	_, err := fmt.Fprintf(w, "\n%v.\nAll of it took %v.\n", verdicts, time.Since(start).Round(time.Second))
	return err
}

// intoPage puts what write writes into a file, between two lines that name a bench. If write fails,
// the file stays as it was.
func intoPage(path, name string, write func(io.Writer) error) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return usage.Errorf("--into: %w", err)
	}
	first, last := fmt.Sprintf("<!-- bench %s -->\n", name), fmt.Sprintf("<!-- end of bench %s -->\n", name)
	before, rest, ok := strings.Cut(string(page), first)
	_, after, ok2 := strings.Cut(rest, last)
	if !ok || !ok2 {
		return usage.Errorf("--into: %s has no lines %q and %q", path, strings.TrimSpace(first), strings.TrimSpace(last))
	}
	var text bytes.Buffer
	if err := write(&text); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(before+first+text.String()+last+after), 0o666)
}

// parse returns a bench and its options: a line is a name and flags.
func parse(line string) (*bench, *options, error) {
	name, args, _ := strings.Cut(line, " ")
	i := slices.IndexFunc(benches, func(b *bench) bool { return b.name == name })
	if i < 0 {
		return nil, nil, fmt.Errorf("no bench has the name %s", name)
	}
	f := pflag.NewFlagSet(name, pflag.ContinueOnError)
	o := benches[i].define(f)
	return benches[i], o, f.Parse(strings.Fields(args))
}
