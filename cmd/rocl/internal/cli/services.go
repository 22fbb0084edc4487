// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/rpc"
	"github.com/spf13/cobra"
)

// A serviceJSON is a line of JSON about one call that a server offers, or about a server that does
// not answer.
type serviceJSON struct {
	Server rocl.GID       `json:"server"`
	Attrs  map[string]any `json:"attrs"`
	Error  string         `json:"error,omitempty"` // why the server does not answer
	*rpc.MethodStats
}

func servicesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "services [name=value...]",
		Short: "List the servers of package rpc, and the calls that each offers",
		Long: "List the servers of package rpc that have these attributes, and the calls that each offers: how many were answered,\n" +
			"how many of those with an error, how many run, and how long half of them and 99 of 100 took from the arrival of the\n" +
			"request. The servers are asked all at once. One that does not answer within --timeout is listed with the reason, in\n" +
			"the field \"error\" with --json, and the exit code is 1.",
		RunE: func(cmd *cobra.Command, args []string) error {
			g := Flags(cmd)
			l, err := attributes(append(slices.Clone(args), rpcServer))
			if err != nil {
				return err
			}
			c, err := g.Open(cmd.Context(), rocl.JoinOnly())
			if err != nil {
				return err
			}
			defer c.Close()
			p := g.withTimeout(cmd.Context())
			defer p.stop()
			client, err := rpc.NewClient(p, c)
			if err != nil {
				return p.err(err)
			}
			defer client.Close()
			var found []rocl.Found
			for f, err := range answers(p, c.FindAll(p, l)) {
				if err != nil {
					return err
				}
				found = append(found, f)
			}
			return listServices(cmd.Context(), cmd.OutOrStdout(), client, found, g)
		},
	}
}

// A serviceReply is the answer of one server about its calls.
type serviceReply struct {
	stats []rpc.MethodStats
	err   error
}

// listServices asks all servers at the same time, and prints the calls of each, in the order of
// found.
func listServices(ctx context.Context, w io.Writer, client *rpc.Client, found []rocl.Found, g Globals) error {
	replies := make([]serviceReply, len(found))
	var asked sync.WaitGroup
	for i, f := range found {
		asked.Go(func() {
			rctx, cancel := context.WithTimeoutCause(ctx, g.Timeout, &lateError{f.ID, g.Timeout})
			defer cancel()
			stats, err := rpc.StatsOf(rctx, client, f.ID)
			replies[i] = serviceReply{stats, orLate(rctx, err)}
		})
	}
	asked.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	printReply := printService
	if g.JSON {
		printReply = printServiceJSON
	}
	failed := 0
	for i := range found {
		if replies[i].err != nil {
			failed++
		}
		if i > 0 && !g.JSON {
			fmt.Fprintln(w)
		}
		if err := printReply(w, &found[i], &replies[i]); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d servers do not answer", failed, len(found))
	}
	return nil
}

// printService prints the calls of one server as a table.
func printService(w io.Writer, f *rocl.Found, r *serviceReply) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.TabIndent)
	fmt.Fprintf(t, "%v  %v\n", f.ID, &f.Attrs)
	if r.err != nil {
		fmt.Fprintf(t, "  does not answer: %s\n", display.Quote(text(r.err)))
		return t.Flush()
	}
	fmt.Fprintln(t, "  call\tanswered\terrors\trunning\tp50\tp99\tlongest\t")
	for _, s := range r.stats {
		fmt.Fprintf(t, "  %s\t%d\t%d\t%d\t%v\t%v\t%v\t\n", display.Quote(s.Name), s.Calls, s.Errors, s.Running, short(s.P50), short(s.P99), short(s.Longest))
	}
	return t.Flush()
}

// printServiceJSON prints a line for each call of a server, or one line that says why the server
// does not answer.
func printServiceJSON(w io.Writer, f *rocl.Found, r *serviceReply) error {
	line := serviceJSON{Server: f.ID, Attrs: jsonAttrs(&f.Attrs)}
	if r.err != nil {
		line.Error = text(r.err)
		return Print(w, line)
	}
	for i := range r.stats {
		line.MethodStats = &r.stats[i]
		if err := Print(w, line); err != nil {
			return err
		}
	}
	return nil
}

// short returns a duration rounded to about three digits.
func short(d time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
}
