// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"text/tabwriter"

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

// A typesJSON is a line of JSON about the types of one call.
type typesJSON struct {
	Server rocl.GID       `json:"server"`
	Attrs  map[string]any `json:"attrs"`
	rpc.MethodTypes
}

func servicesCommand() *cobra.Command {
	var types bool
	cmd := &cobra.Command{
		Use:   "services [PATTERN...]",
		Short: "List the servers of package rpc, and the calls that each offers",
		Long: "List the servers of package rpc that have these attributes, and the calls that each offers: how many were answered,\n" +
			"how many of those with an error, how many run, and how long half of them and 99 of 100 took from the arrival of the\n" +
			"request. The servers are asked all at once. --timeout bounds how long the directory and the servers are waited for\n" +
			"together. A server that does not answer within it is listed with the reason, in the field \"error\" with --json, and\n" +
			"the exit code is 1. It is 3 if some node could not be asked. With --types the types of arguments and result are\n" +
			"listed in place of the figures, as the Go program of the server has them.",
		RunE: func(cmd *cobra.Command, args []string) error {
			g := Flags(cmd)
			l, err := pattern(append(slices.Clone(args), rpcServer))
			if err != nil {
				return err
			}
			var covered rocl.Coverage
			err = g.ask(cmd.Context(), func(p *timeoutContext, c *rocl.Context) error {
				client, err := rpc.NewClient(p, c)
				if err != nil {
					return p.err(err)
				}
				defer client.Close()
				return listServices(p, cmd.OutOrStdout(), client, c.FindAll(p, l, rocl.Covered(&covered)), g, types)
			})
			if len(covered.Failed) > 0 {
				err = cmp.Or(err, reportCoverage(cmd.ErrOrStderr(), g, &covered))
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&types, "types", false, "list the types of arguments and results")
	return cmd
}

// A serviceReply is the answer of one server about its calls.
type serviceReply struct {
	rocl.Found
	stats []rpc.MethodStats
	types []rpc.MethodTypes // in place of stats, if they were asked for
	err   error
}

// listServices asks all servers at the same time, as they are found, and prints the calls of each,
// in the order of found. If the directory fails, it prints what has come before it returns the
// error.
func listServices(p *timeoutContext, w io.Writer, client *rpc.Client, found iter.Seq2[rocl.Found, error], g Globals, types bool) error {
	var replies []*serviceReply
	var asked sync.WaitGroup
	ferr := gather(p, found, func(f rocl.Found) {
		r := &serviceReply{Found: f}
		replies = append(replies, r)
		asked.Go(func() {
			rctx, cancel := p.forReply(f.ID)
			defer cancel()
			if types {
				r.types, r.err = rpc.TypesOf(rctx, client, f.ID)
			} else {
				r.stats, r.err = rpc.StatsOf(rctx, client, f.ID)
			}
			r.err = orLate(rctx, r.err)
		})
	})
	asked.Wait()
	if p.parent.Err() != nil {
		return context.Cause(p.parent)
	}
	printReply := printService
	if g.JSON {
		printReply = printServiceJSON
	}
	failed := 0
	for i, r := range replies {
		if r.err != nil {
			failed++
		}
		if i > 0 && !g.JSON {
			fmt.Fprintln(w)
		}
		if err := printReply(w, r); err != nil {
			return err
		}
	}
	if ferr == nil && failed > 0 {
		ferr = fmt.Errorf("%d of %d servers do not answer", failed, len(replies))
	}
	return ferr
}

// printService prints the calls of one server as a table.
func printService(w io.Writer, r *serviceReply) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.TabIndent)
	fmt.Fprintf(t, "%v  %v\n", r.ID, &r.Attrs)
	if r.err != nil {
		fmt.Fprintf(t, "  does not answer: %s\n", display.Quote(text(r.err)))
		return t.Flush()
	}
	for _, m := range r.types {
		fmt.Fprintf(t, "  %s\n", display.Quote(m.String()))
	}
	if r.types != nil {
		return t.Flush()
	}
	fmt.Fprintln(t, "  call\tanswered\terrors\trunning\tp50\tp99\tlongest\t")
	for _, s := range r.stats {
		fmt.Fprintf(t, "  %s\t%d\t%d\t%d\t%v\t%v\t%v\t\n", display.Quote(s.Name), s.Calls, s.Errors, s.Running, display.Duration(s.P50), display.Duration(s.P99), display.Duration(s.Longest))
	}
	return t.Flush()
}

// printServiceJSON prints a line for each call of a server, or one line that says why the server
// does not answer.
func printServiceJSON(w io.Writer, r *serviceReply) error {
	line := serviceJSON{Server: r.ID, Attrs: jsonAttrs(&r.Attrs)}
	if r.err != nil {
		line.Error = text(r.err)
		return Print(w, line)
	}
	for _, m := range r.types {
		if err := Print(w, typesJSON{line.Server, line.Attrs, m}); err != nil {
			return err
		}
	}
	for i := range r.stats {
		line.MethodStats = &r.stats[i]
		if err := Print(w, line); err != nil {
			return err
		}
	}
	return nil
}
