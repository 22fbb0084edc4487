// SPDX-License-Identifier: Apache-2.0

// Package bench measures the library beside a bare loop that moves the same bytes with Go's
// standard means, in the same run. The result is the ratio of the two, because the state of the
// machine changes both. Bare and library rounds alternate. The figure of each side is the median
// over its rounds.
package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/spf13/cobra"
)

// Result is one measurement. Times are in microseconds, rates are per second.
type Result struct {
	Bench     string  `json:"bench"`
	Transport string  `json:"transport,omitempty"`
	Size      int     `json:"size,omitempty"`
	Poll      string  `json:"poll,omitempty"`
	Pause     string  `json:"pause,omitempty"`
	Compute   int     `json:"compute,omitempty"`  // goroutines that computed at the same time
	Computed  float64 `json:"computed,omitempty"` // speed of the computing goroutines; 1 means as fast as alone
	Senders   int     `json:"senders,omitempty"`
	InFlight  int     `json:"in_flight,omitempty"` // goroutines that call at the same time
	Idle      int     `json:"idle,omitempty"`      // links beside the measured one
	Nodes     int     `json:"nodes,omitempty"`
	Sealed    bool    `json:"sealed,omitempty"`
	Resources int     `json:"resources,omitempty"`
	Count     int     `json:"count"`
	P50       float64 `json:"p50,omitempty"`
	P99       float64 `json:"p99,omitempty"`
	Rate      float64 `json:"rate,omitempty"`
	Raw       float64 `json:"raw"`
	RawP99    float64 `json:"raw_p99,omitempty"`
	Ratio     float64 `json:"ratio"`
	Target    float64 `json:"target,omitempty"`
	AtLeast   bool    `json:"at_least,omitempty"` // the ratio must be at least the target instead of at most
	Unit      string  `json:"unit"`
	What      string  `json:"what"`   // what the raw figure measures
	Allocs    float64 `json:"allocs"` // allocations of this process for each message sent or round trip
	Extra     string  `json:"extra,omitempty"`
	Machine   Machine `json:"machine"`

	Also *Result `json:"-"` // a further result of the same run
}

// Met reports whether the target is met.
func (r *Result) Met() bool {
	if r.AtLeast {
		return r.Ratio >= r.Target
	}
	return r.Ratio <= r.Target
}

// Machine describes the machine on which a figure was measured.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

func machine() Machine {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), Go: runtime.Version()}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				m.CPU = strings.TrimSpace(v)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = "Linux " + strings.TrimSpace(string(b))
	}
	return m
}

// options are the values of a bench's flags.
type options struct {
	transport, poll      string // transport "": tcp and shm (bulk)
	size, count, senders int
	nodes                int // 0: this one
	sealed               bool
	resources            int // find: number of resources in the index that is read; 0: over the socket
	rounds               int
	pause                time.Duration // of both sides before each message (rtt)
	compute              int           // goroutines that compute meanwhile (rtt)
	idle                 int           // links beside the measured one (rtt)
	server               string        // how the peer answers (rtt); "": in its loop
	inFlight             int           // goroutines that call at the same time (call); 0 and 1: one
	only                 string        // the rows to measure (bulk); "": all
	full                 bool          // 64 clients of 512 MiB (bulk)
	json                 bool
}

// policies are the values of --poll, each with its other name.
var policies = []struct {
	name, also string
	is         rocl.PollPolicy
}{
	{"never", "off", rocl.PollNever},
	{"adaptive", "", rocl.PollAdaptive},
	{"always", "on", rocl.PollAlways},
}

func (o *options) policy() (rocl.PollPolicy, error) {
	var names []string
	for _, p := range policies {
		if o.poll != "" && (o.poll == p.name || o.poll == p.also) {
			return p.is, nil
		}
		names = append(names, p.name)
	}
	return 0, cli.Usagef("--poll is one of %s, not %q", strings.Join(names, ", "), o.poll)
}

// mostIdle limits the number of links beside the measured one.
const mostIdle = 4096

// mostSenders limits how many goroutines send at the same time.
const mostSenders = 1024

// overShared are the benches that can be measured over shared memory.
var overShared = []string{"rtt", "call", "rate", "bw", "pairs", "bulk"}

// check returns an error if the flags of a bench are invalid.
func (o *options) check(bench string) error {
	if o.count < 1 || o.size < 0 || o.senders < 1 || o.rounds < 1 || o.size > rocl.MaxMessage {
		return cli.Usagef("--count, --senders and --rounds must be at least 1, --size from 0 to %d", rocl.MaxMessage)
	}
	isOverAll := o.transport == "" && bench == "bulk"
	if o.transport != "tcp" && o.transport != "inproc" && o.transport != "shm" && !isOverAll {
		return cli.Usagef("--transport is tcp, shm or inproc, not %q", o.transport)
	}
	if o.transport == "shm" && !slices.Contains(overShared, bench) {
		return cli.Usagef("%s is not measured over shm", bench)
	}
	if o.only != "" && !slices.Contains(bulkRowNames, o.only) {
		return cli.Usagef("--only is one of %s, not %q", strings.Join(bulkRowNames, ", "), o.only)
	}
	if o.transport == "inproc" && bench == "bulk" {
		return cli.Usagef("bulk is measured between processes: --transport is tcp or shm")
	}
	if bench == "rate" && o.transport == "shm" && o.size > ringMost {
		return cli.Usagef("--size of rate over shm is at most %d: the bare loop has a ring", ringMost)
	}
	if o.idle < 0 || o.idle > mostIdle || o.idle > 0 && (o.transport == "inproc" || o.pause != 0 || o.compute != 0) {
		return cli.Usagef("--idle is up to %d, over shm or tcp, and not with --pause or --compute", mostIdle)
	}
	if o.senders > mostSenders {
		return cli.Usagef("--senders must be at most %d", mostSenders)
	}
	if o.senders > 1 && bench != "rate" {
		return cli.Usagef("--senders is for rate")
	}
	if o.sealed && o.nodes == 0 {
		return cli.Usagef("--sealed is for --nodes: one node's socket is not sealed")
	}
	if bench == "rate" && o.count < o.senders {
		return cli.Usagef("--count must be at least --senders: each sends its share")
	}
	if o.nodes != 0 && (o.nodes < 2 || o.nodes > 64) {
		return cli.Usagef("--nodes is 2 to 64, or not given")
	}
	if bench == "pairs" && (o.transport == "inproc" || o.count < 2 || o.count > 256) {
		return cli.Usagef("pairs is of 2 to 256 contexts (--count) over shm or tcp")
	}
	if o.resources < 0 || o.resources > 16_000_000 || o.resources > 0 && o.nodes > 0 {
		return cli.Usagef("--resources is up to 16 million, and not for --nodes")
	}
	if bench == "bw" && o.size < 1 {
		return cli.Usagef("--size must be at least 1 to have bytes to count")
	}
	if (o.pause != 0 || o.compute != 0) && (bench != "rtt" || o.transport != "shm") {
		return cli.Usagef("--pause and --compute are for rtt over shm")
	}
	if bench == "findall" && o.count > 1_000_000 {
		return cli.Usagef("--count of findall is up to a million")
	}
	if o.pause != 0 && o.pause < time.Millisecond || o.pause > time.Second || o.compute < 0 || o.compute > 1024 {
		return cli.Usagef("--pause is 0, or 1ms to 1s; --compute is 0 to 1024")
	}
	switch o.poll {
	case "on":
		o.poll = "always"
	case "off":
		o.poll = "never"
	}
	if err := o.checkServer(); err != nil {
		return err
	}
	if err := o.checkInFlight(bench); err != nil {
		return err
	}
	_, err := o.policy()
	return err
}

// Commands returns the command bench and the hidden commands of its other processes.
func Commands() []*cobra.Command {
	top := &cobra.Command{
		Use:   "bench",
		Short: "Measure the library beside bare loops in the same run",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	add := func(name, short, poll string, size, count int, run func(context.Context, *options) (*Result, error)) {
		var o options
		c := &cobra.Command{
			Use: name, Short: short, Args: cli.Nothing,
			RunE: func(cmd *cobra.Command, _ []string) error {
				o.json = cli.Flags(cmd).JSON
				if o.pause > 0 && !cmd.Flags().Changed("count") {
					o.count = max(int(time.Second/o.pause), 10)
				}
				if err := o.check(name); err != nil {
					return err
				}
				r, err := run(cmd.Context(), &o)
				if err != nil {
					return err
				}
				for ; r != nil; r = r.Also {
					r.Machine = machine()
					if err := show(cmd.OutOrStdout(), r, o.json); err != nil {
						return err
					}
				}
				return nil
			},
		}
		f := c.Flags()
		if name == "bulk" {
			f.StringVar(&o.transport, "transport", "", "tcp or shm (default both)")
		} else {
			f.StringVar(&o.transport, "transport", "tcp", "tcp, shm or inproc")
		}
		f.IntVar(&o.size, "size", size, "bytes of a message")
		f.IntVar(&o.count, "count", count, "messages of a round")
		f.IntVar(&o.rounds, "rounds", 7, "rounds of each side")
		f.IntVar(&o.senders, "senders", 1, "sending goroutines (rate)")
		if name == "find" {
			f.BoolVar(&o.sealed, "sealed", false, "the nodes have a key, and seal what they say")
			f.IntVar(&o.resources, "resources", 0, "find one of so many in place, in the node's index, rather than through its socket")
			f.IntVar(&o.nodes, "nodes", 0, "so many nodes, each a process on the loopback interface, rather than this one's socket")
		}
		if name == "rtt" {
			f.DurationVar(&o.pause, "pause", 0, "how long each side does something else before it sends, as 20ms; it does not count (shm)")
			f.IntVar(&o.idle, "idle", 0, "links with other contexts of the peer process, over which nothing goes")
			f.StringVar(&o.server, "server", "inline", "how the peer answers: inline (in its loop), goroutine (one for each message), receivers (four goroutines receive)")
			f.IntVar(&o.compute, "compute", 0, "goroutines that compute in this process meanwhile (shm)")
		}
		if name == "bulk" {
			f.StringVar(&o.only, "only", "", "one of "+strings.Join(bulkRowNames, ", ")+", rather than all of the transport")
			f.BoolVar(&o.full, "full", false, "clients: up to 64, of 512 MiB each, rather than 16 of 64 MiB")
		}
		if name == "call" {
			f.IntVar(&o.inFlight, "inflight", 0, "goroutines that call at a time, measured beside net/rpc rather than a message there and back")
		}
		f.StringVar(&o.poll, "poll", poll, "whether waiters poll: never, adaptive or always")
		top.AddCommand(c)
	}
	add("rtt", "Round-trip time between two processes", "always", 64, 20_000, rtt)
	add("call", "Time of a call, or calls a second of many goroutines", "always", 64, 20_000, call)
	add("rate", "Messages a second, one way", "adaptive", 64, 2_000_000, rate)
	add("bw", "Bytes a second, one way, large messages", "adaptive", 64<<20, 8, bw)
	add("db", "The directory's database, in process", "never", 0, 1_000_000, db)
	add("pairs", "Memory of links that have gone quiet, of --count contexts, all to all", "adaptive", 4<<10, 64, pairs)
	add("find", "Find through the node's socket, or in place", "adaptive", 0, 10_000, find)
	add("findall", "FindAll of --count local resources: serving, from the index, over the socket", "adaptive", 0, 1000, findAll)
	add("tpvm", "Messages and spawns of package tpvm, beside rocl's own messages, Go channels and PVM 3.4", "always", 64, 20_000, tpvmBench)
	add("rpc", "Calls of package rpc, beside rocl's own messages and net/rpc, over shm and tcp", "always", 64, 20_000, rpcBench)
	add("bulk", "Transfers of package bulk, beside the loops of bw and memcpy, over tcp and shm", "adaptive", bulkLarge, 4, bulkBench)
	top.AddCommand(allCommand(), sustainCommand())
	peer := &cobra.Command{
		Use: "bench-peer SOCKET POLL SIZE TRANSPORT", Hidden: true, Args: cobra.ExactArgs(4),
		Short: "The other process of a bench; started by bench",
		RunE: func(cmd *cobra.Command, args []string) error {
			return peerMain(cmd.Context(), args, os.Stdin, os.Stdout)
		},
	}
	node := &cobra.Command{
		Use: "bench-node SOCKET JOIN KEY POLL NUMBER", Hidden: true, Args: cobra.ExactArgs(5),
		Short: "Another node of a bench; started by bench",
		RunE: func(cmd *cobra.Command, args []string) error {
			return nodeMain(cmd.Context(), args, os.Stdin, os.Stdout)
		},
	}
	dir := &cobra.Command{
		Use: "bench-directory SOCKET RESOURCES", Hidden: true, Args: cobra.ExactArgs(2),
		Short: "The directory of a bench; started by bench",
		RunE: func(cmd *cobra.Command, args []string) error {
			return directoryMain(cmd.Context(), args, os.Stdin, os.Stdout)
		},
	}
	origin := &cobra.Command{
		Use: "bench-origin SOCKET POLL TRANSPORT NAME BYTES MEMORY KIND", Hidden: true, Args: cobra.ExactArgs(7),
		Short: "A process with memory of a bench; started by bench",
		RunE: func(cmd *cobra.Command, args []string) error {
			return originMain(cmd.Context(), args, os.Stdin)
		},
	}
	return []*cobra.Command{top, peer, node, dir, origin, tpvmCommand()}
}

func show(w io.Writer, r *Result, json bool) error {
	if json {
		return cli.Print(w, r)
	}
	var err error
	if r.Rate > 0 {
		_, err = fmt.Fprintf(w, "%s: %.4g %s; %s: %.4g; ratio %.2f\n", r.name(), r.Rate, r.Unit, r.What, r.Raw, r.Ratio)
	} else if r.P99 > 0 {
		_, err = fmt.Fprintf(w, "%s: p50 %.2f %s, p99 %.2f; %s: p50 %.2f; ratio %.2f\n", r.name(), r.P50, r.Unit, r.P99, r.What, r.Raw, r.Ratio)
	} else { // another quantile is compared
		_, err = fmt.Fprintf(w, "%s: %.2f %s; %s: %.2f; ratio %.2f\n", r.name(), r.P50, r.Unit, r.What, r.Raw, r.Ratio)
	}
	if r.Extra != "" && err == nil {
		_, err = fmt.Fprintln(w, r.Extra)
	}
	return err
}

func (r *Result) name() string {
	s := r.Bench
	if r.Transport != "" {
		s += " " + r.Transport
	}
	if r.Size > 0 {
		s += fmt.Sprintf(" %d B", r.Size)
	}
	if r.Poll != "" {
		s += " poll=" + r.Poll
	}
	if r.Pause != "" {
		s += " pause=" + r.Pause
	}
	if r.Idle > 0 {
		s += fmt.Sprintf(" beside %d idle links", r.Idle)
	}
	if r.Compute > 0 {
		s += fmt.Sprintf(" computing=%d", r.Compute)
	}
	if r.Nodes > 0 {
		s += fmt.Sprintf(" %d nodes", r.Nodes)
	}
	if r.Sealed {
		s += " sealed"
	}
	if r.Resources > 0 {
		s += fmt.Sprintf(" in place, of %d", r.Resources)
	}
	if r.InFlight > 1 {
		s += fmt.Sprintf(" %d in flight", r.InFlight)
	}
	if r.Senders > 1 {
		s += fmt.Sprintf(" %d senders", r.Senders)
	}
	return s
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// mallocs returns the number of allocations of this process so far.
func mallocs() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.Mallocs)
}

// times collects the round trips of one side.
type times struct {
	p50s []float64
	all  *hdrhistogram.Histogram
}

func newTimes() *times { return &times{all: hdrhistogram.New(1, int64(time.Minute), 3)} }

// round measures count calls of f.
func (t *times) round(count int, f func() error) error {
	return t.timed(count, func() (time.Duration, error) {
		start := time.Now()
		err := f()
		return time.Since(start), err
	})
}

// timed measures count calls of f, which returns how long it took.
func (t *times) timed(count int, f func() (time.Duration, error)) error {
	h := hdrhistogram.New(1, int64(time.Minute), 3)
	for range count {
		d, err := f()
		if err != nil {
			return err
		}
		_ = h.RecordValue(max(int64(d), 1))
	}
	t.p50s = append(t.p50s, float64(h.ValueAtQuantile(50))/1e3)
	t.all.Merge(h)
	return nil
}

func (t *times) p50() float64 { return median(t.p50s) }
func (t *times) p99() float64 { return float64(t.all.ValueAtQuantile(99)) / 1e3 }
