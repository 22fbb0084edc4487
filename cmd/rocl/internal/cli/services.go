// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rpc"
	"github.com/spf13/cobra"
)

// A serviceJSON is one call of a server, as a line of JSON.
type serviceJSON struct {
	Server rocl.GID       `json:"server"`
	Attrs  map[string]any `json:"attrs"`
	rpc.MethodStats
}

func servicesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "services [name=value...]",
		Short: "List the servers of package rpc, and the calls that each offers",
		Long: "List the servers of package rpc that have these attributes, and the calls that each offers: how many were answered,\n" +
			"how many of those with an error, how many run, and how long half of them and 99 of 100 took from the arrival of the\n" +
			"request. A server that does not answer within --timeout is listed with the reason, and the exit code is 1.",
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
			ctx, cancel := context.WithTimeout(cmd.Context(), g.Timeout)
			defer cancel()
			client, err := rpc.NewClient(ctx, c)
			if err != nil {
				return err
			}
			defer client.Close()
			p := g.patience(cmd.Context())
			defer p.stop()
			var found []rocl.Found
			for f, err := range c.FindAll(p, l) {
				if err != nil {
					return p.err(err)
				}
				found = append(found, f)
			}
			return listServices(ctx, cmd.OutOrStdout(), client, found, g.JSON)
		},
	}
}

// listServices prints the calls of each server.
func listServices(ctx context.Context, w io.Writer, client *rpc.Client, found []rocl.Found, asJSON bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight|tabwriter.TabIndent)
	failed := 0
	for i, f := range found {
		stats, err := rpc.StatsOf(ctx, client, f.ID)
		if asJSON {
			for _, s := range stats {
				if err := Print(w, serviceJSON{f.ID, jsonAttrs(&f.Attrs), s}); err != nil {
					return err
				}
			}
		} else {
			if i > 0 {
				fmt.Fprintln(t)
			}
			fmt.Fprintf(t, "%v  %v\n", f.ID, &f.Attrs)
		}
		switch {
		case err != nil:
			failed++
			fmt.Fprintf(t, "  does not answer: %v\n", err)
		case asJSON:
		default:
			fmt.Fprintln(t, "  call\tanswered\terrors\trunning\tp50\tp99\tlongest\t")
			for _, s := range stats {
				fmt.Fprintf(t, "  %s\t%d\t%d\t%d\t%v\t%v\t%v\t\n", s.Name, s.Calls, s.Errors, s.Running, short(s.P50), short(s.P99), short(s.Longest))
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d servers do not answer", failed, len(found))
	}
	return nil
}

// short returns a duration with three digits or so.
func short(d time.Duration) time.Duration {
	for unit := time.Duration(1); ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
}
