// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/spf13/cobra"
)

// table is what 'rocl bench all' measures, in order.
var table = []struct {
	run func(context.Context, *options) (*Result, error)
	o   options
}{
	{rtt, options{transport: "tcp", size: 64, poll: "always", count: 20_000}},
	{rtt, options{transport: "tcp", size: 64, poll: "never", count: 20_000}},
	{rtt, options{transport: "inproc", size: 64, poll: "adaptive", count: 200_000}},
	{rate, options{transport: "tcp", size: 64, poll: "adaptive", count: 2_000_000, senders: 1}},
	{rate, options{transport: "tcp", size: 64, poll: "adaptive", count: 2_000_000, senders: 4}},
	{rtt, options{transport: "shm", size: 64, poll: "always", count: 100_000}},
	{rtt, options{transport: "shm", size: 1 << 20, poll: "always", count: 100_000}},
	{rtt, options{transport: "shm", size: 64 << 20, poll: "always", count: 100_000}},
	{rtt, options{transport: "shm", size: 64, poll: "never", count: 20_000}},
	{rate, options{transport: "shm", size: 64, poll: "adaptive", count: 5_000_000, senders: 1}},
	{rate, options{transport: "shm", size: 64, poll: "adaptive", count: 5_000_000, senders: 4}},
	{rate, options{transport: "inproc", size: 64, poll: "adaptive", count: 2_000_000, senders: 1}},
	{call, options{transport: "shm", size: 64, poll: "always", count: 100_000}},
	{call, options{transport: "tcp", size: 64, poll: "always", count: 20_000}},
	{call, options{transport: "inproc", size: 64, poll: "adaptive", count: 100_000}},
	{call, options{transport: "shm", size: 64, poll: "adaptive", count: 500_000, inFlight: 32}},
	{call, options{transport: "tcp", size: 64, poll: "adaptive", count: 500_000, inFlight: 32}},
	{call, options{transport: "inproc", size: 64, poll: "adaptive", count: 500_000, inFlight: 32}},
	{rtt, options{transport: "shm", size: 64, poll: "adaptive", count: 10_000, server: "goroutine"}},
	{rtt, options{transport: "shm", size: 64, poll: "adaptive", count: 10_000, server: "receivers"}},
	{rtt, options{transport: "shm", size: 64, poll: "always", count: 20_000, idle: 64}},
	{rtt, options{transport: "shm", size: 64, poll: "always", count: 20_000, idle: 1000}},
	{rtt, options{transport: "tcp", size: 64, poll: "always", count: 20_000, idle: 64}},
	{rtt, options{transport: "tcp", size: 64, poll: "always", count: 20_000, idle: 1000}},
	{pairs, options{transport: "shm", size: 4 << 10, count: 64}},
	{bw, options{transport: "tcp", size: 1 << 20, poll: "adaptive", count: 512}},
	{bw, options{transport: "tcp", size: 64 << 20, poll: "adaptive", count: 8}},
	{bw, options{transport: "shm", size: 1 << 20, poll: "adaptive", count: 512}},
	{bw, options{transport: "shm", size: 64 << 20, poll: "adaptive", count: 8}},
	{db, options{count: 1_000_000}},
	{find, options{transport: "tcp", poll: "adaptive", count: 10_000}},
	{findAll, options{poll: "adaptive", count: 1000}},
	{find, options{poll: "adaptive", count: 100_000, resources: 1_000_000}},
	{find, options{poll: "always", count: 10_000, nodes: 2}},
	{find, options{poll: "always", count: 10_000, nodes: 2, sealed: true}},
	{find, options{poll: "never", count: 3_000, nodes: 8}},
	{rpcBench, options{size: 64, count: 20_000}},
	{bulkBench, options{poll: "adaptive", size: bulkLarge, count: 4}},
	{tpvmBench, options{size: 64, count: 20_000}},
}

func allCommand() *cobra.Command {
	var markdown bool
	var rounds int
	c := &cobra.Command{
		Use: "all", Short: "Measure the whole table", Args: cli.Nothing,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rounds < 1 {
				return cli.Usagef("--rounds must be at least 1")
			}
			if markdown && cli.Flags(cmd).JSON {
				return cli.Usagef("--json or --markdown, not both")
			}
			w := cmd.OutOrStdout()
			m := machine()
			if markdown {
				if err := markdownHead(w, m); err != nil {
					return err
				}
			}
			for _, e := range table {
				o := e.o
				o.rounds = rounds
				o.senders = max(o.senders, 1)
				r, err := e.run(cmd.Context(), &o)
				if err != nil {
					return err
				}
				for ; r != nil; r = r.Also {
					r.Machine = m
					if markdown {
						err = r.markdownRow(w)
					} else {
						err = show(w, r, cli.Flags(cmd).JSON)
					}
					if err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&markdown, "markdown", false, "print the table of docs/BENCHMARKS.md")
	c.Flags().IntVar(&rounds, "rounds", 7, "rounds of each side")
	return c
}

// markdownHead prints the day, the machine and the head of the table.
func markdownHead(w io.Writer, m Machine) error {
	_, err := fmt.Fprintf(w, "%s: %s, %d cores, %s, %s.\n\n| what | rocl | bare | what the bare figure is | ratio | must reach | met | allocations a message |\n|---|---|---|---|---|---|---|---|\n",
		time.Now().UTC().Format("2006-01-02"), m.CPU, m.Cores, m.Kernel, m.Go)
	return err
}

// markdownRow prints the row of a result.
func (r *Result) markdownRow(w io.Writer) error {
	ours, bare := fmt.Sprintf("p50 %.2f, p99 %.2f %s", r.P50, r.P99, r.Unit), fmt.Sprintf("%.2f %s", r.Raw, r.Unit)
	if r.P99 == 0 { // another quantile is compared
		ours = fmt.Sprintf("%.2f %s", r.P50, r.Unit)
	}
	if r.Rate > 0 {
		ours, bare = fmt.Sprintf("%.3g %s", r.Rate, r.Unit), fmt.Sprintf("%.3g", r.Raw)
	}
	if r.Extra != "" {
		ours += "; " + r.Extra
	}
	allocs := ""
	if r.Bench == "rtt" || r.Bench == "call" || r.Bench == "rate" || strings.HasPrefix(r.Bench, "rpc ") {
		allocs = fmt.Sprintf("%.2f", r.Allocs)
	}
	must, met := fmt.Sprintf("≤ %.2f", r.Target), "no"
	if r.AtLeast {
		must = fmt.Sprintf("≥ %.2f", r.Target)
	}
	switch {
	case r.Target == 0: // a row for comparison only
		must, met = "", ""
	case r.Met():
		met = "yes"
	}
	_, err := fmt.Fprintf(w, "| `%s` | %s | %s | %s | %.2f | %s | %s | %s |\n", r.name(), ours, bare, r.What, r.Ratio, must, met, allocs)
	return err
}
