package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/spf13/cobra"
)

// routeJSON is a link of a context. Of a context that does not answer there is
// one line, with an error.
type routeJSON struct {
	Context rocl.GID `json:"context"`
	PID     int      `json:"pid"`
	Error   string   `json:"error,omitempty"`
	*rocl.Route
}

func routesCommand() *cobra.Command {
	var patience time.Duration
	cmd := &cobra.Command{
		Use:   "routes",
		Short: "Print who talks to whom over what",
		Long: "Print the links of the contexts of this node: each context is asked for its own, and is given --timeout to answer.\n" +
			"A link of two contexts of this node is printed twice, as each sees it.\n" +
			"Exit code 1 if there are none, 2 if no directory serves the node, 3 if some context does not answer.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			g := Flags(cmd)
			if patience <= 0 {
				return Usagef("--timeout %v is no time", patience)
			}
			ctx := cmd.Context()
			c, err := rocl.Open(ctx, append(g.Options(), rocl.JoinOnly(), rocl.WithLinger(100*time.Millisecond))...) // who does not answer is not waited for
			if err != nil {
				return err
			}
			defer c.Close()
			all, silent, err := routes(ctx, c, patience)
			if err != nil {
				return err
			}
			if err := printRoutes(cmd.OutOrStdout(), g, all); err != nil {
				return err
			}
			switch {
			case silent > 0:
				fmt.Fprintf(cmd.ErrOrStderr(), "%s did not answer\n", count(silent, "context"))
				return errPartial
			case len(all) == 0:
				return errNothing
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&patience, "timeout", 2*time.Second, "how long to wait for the contexts")
	return cmd
}

// routes asks the contexts of c's node, all at once.
func routes(ctx context.Context, c *rocl.Context, patience time.Duration) (all []routeJSON, silent int, err error) {
	var mu sync.Mutex
	var asked sync.WaitGroup
	defer asked.Wait()
	var unseen rocl.Coverage // other nodes are not asked for theirs
	actx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for f, err := range c.FindAll(ctx, rocl.Match{rocl.AttrKind: "context"}, rocl.Covered(&unseen)) {
		if err != nil {
			return nil, 0, err
		}
		if f.ID == c.ID() || f.ID.Node() != c.ID().Node() {
			continue
		}
		pid, _ := strconv.Atoi(f.Attrs.GetString(rocl.AttrPID))
		asked.Go(func() {
			rs, err := c.RoutesOf(actx, f.ID)
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
	}
	asked.Wait()
	slices.SortStableFunc(all, func(a, b routeJSON) int { return a.Context.Compare(b.Context) })
	return all, silent, ctx.Err()
}

func printRoutes(w io.Writer, g Globals, all []routeJSON) error {
	if g.JSON {
		for i := range all {
			if err := Print(w, &all[i]); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CONTEXT\tPID\tPEER\tLANE\tTRANSPORT\tREMOTE\tSINCE\tCHANGES\tSENT\tRECEIVED")
	for i := range all {
		r := &all[i]
		if r.Route == nil {
			fmt.Fprintf(t, "%v\t%d\t%s\t\t\t\t\t\t\t\n", r.Context, r.PID, display.Quote(r.Error))
			continue
		}
		lane := strconv.Itoa(r.Lane)
		if r.Theirs {
			lane += " (peer's)"
		}
		since := "-"
		if !r.Since.IsZero() {
			since = r.Since.Local().Format(time.TimeOnly)
		}
		fmt.Fprintf(t, "%v\t%d\t%v\t%s\t%s\t%s\t%s\t%d\t%d (%d B)\t%d (%d B)\n", r.Context, r.PID, r.Peer, lane, cmp.Or(display.Quote(r.Transport), "-"), cmp.Or(display.Quote(r.Remote), "-"),
			since, r.Changes, r.Sent, r.SentBytes, r.Received, r.ReceivedBytes)
	}
	return t.Flush()
}
