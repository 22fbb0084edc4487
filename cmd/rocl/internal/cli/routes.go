// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	roclctx "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/spf13/cobra"
)

// routeJSON is a line of JSON about a route of a context. A context that does not answer has one
// line, with an error.
type routeJSON struct {
	Context rocl.GID `json:"context"`
	PID     int      `json:"pid"`
	Error   string   `json:"error,omitempty"`
	*rocl.Route
}

func routesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "routes",
		Short: "Print the links between contexts, with their transports",
		Long: "Print the links of the contexts of this node: each context is asked for its own. --timeout bounds how long the\n" +
			"directory and the contexts are waited for together.\n" +
			"A link of two contexts of this node is printed twice, as each sees it.\n" +
			"Exit code 1 if there are none, 2 if no directory serves the node, 3 if some context does not answer,\n" +
			"4 if the directory does not answer within --timeout.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage.Errorf("routes takes no attributes, such as %q: it prints the links of all contexts of this node", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			g := Flags(cmd)
			var all []routeJSON
			silent := 0
			rerr := g.ask(cmd.Context(), func(p *timeoutContext, c *rocl.Context) (err error) {
				all, silent, err = routes(p, c)
				return err
			})
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			if err := printRoutes(cmd.OutOrStdout(), g, all); err != nil {
				return err
			}
			printDialling(cmd, g, all)
			switch {
			case rerr != nil:
				return rerr
			case silent > 0:
				note(cmd, g, map[string]int{"silent": silent}, "%s did not answer", count(silent, "context"))
				return errPartial
			case len(all) == 0:
				return nothingError("no context of this node has a link")
			}
			return nil
		},
	}
}

// routes asks all contexts of c's node at the same time, within the limit of p. silent is the
// number of contexts that did not answer. With an error of the directory it returns what has come.
func routes(p *timeoutContext, c *rocl.Context) (all []routeJSON, silent int, err error) {
	var mu sync.Mutex
	var asked sync.WaitGroup
	var unseen rocl.Coverage // not used: contexts of other nodes are not asked
	err = gather(p, c.FindAll(p, rocl.Match{rocl.AttrKind: "context"}, rocl.Covered(&unseen)), func(f rocl.Found) {
		if f.ID == c.ID() || f.ID.Node() != c.ID().Node() {
			return
		}
		pid, _ := strconv.Atoi(f.Attrs.GetString(rocl.AttrPID))
		asked.Go(func() {
			rctx, cancel := p.forReply(f.ID)
			defer cancel()
			rs, err := roclctx.RoutesOf(rctx, c, f.ID)
			err = orLate(rctx, err)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				silent++
				all = append(all, routeJSON{Context: f.ID, PID: pid, Error: text(err)})
			}
			for i := range rs {
				all = append(all, routeJSON{Context: f.ID, PID: pid, Route: &rs[i]})
			}
		})
	})
	asked.Wait()
	slices.SortStableFunc(all, func(a, b routeJSON) int { return a.Context.Compare(b.Context) })
	return all, silent, err
}

// printDialling prints why links have no connection, below the table.
func printDialling(cmd *cobra.Command, g Globals, all []routeJSON) {
	for i := range all {
		if r := &all[i]; !g.JSON && r.Route != nil && r.Dialling != "" {
			note(cmd, g, nil, "no connection from %v to %v: %s", r.Context, r.Peer, display.Quote(r.Dialling))
		}
	}
}

func printRoutes(w io.Writer, g Globals, all []routeJSON) error {
	const columns = "CONTEXT\tPID\tPEER\tLANE\tTRANSPORT\tREMOTE\tSINCE\tCHANGES\tSENT\tRECEIVED"
	return printTable(w, g, columns, all, func(w io.Writer, r *routeJSON) string {
		if r.Route == nil {
			return fmt.Sprintf("%v (PID %d): %s", r.Context, r.PID, display.Quote(r.Error))
		}
		transport := r.Transport
		if r.Dialling != "" {
			transport = "dialling"
		}
		since := "-"
		if !r.Since.IsZero() {
			since = r.Since.Local().Format(time.TimeOnly)
		}
		fmt.Fprintf(w, "%v\t%d\t%v\t%s\t%s\t%s\t%s\t%d\t%d (%d B)\t%d (%d B)\n", r.Context, r.PID, r.Peer, cmp.Or(display.Quote(string(r.Lane)), "-"), cmp.Or(display.Quote(transport), "-"), cmp.Or(display.Quote(r.Remote), "-"),
			since, r.Changes, r.Sent, r.SentBytes, r.Received, r.ReceivedBytes)
		return ""
	})
}
