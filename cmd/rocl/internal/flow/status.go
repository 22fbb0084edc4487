// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/dataflow"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/spf13/cobra"
)

// betweenLooks is the time between the two looks at a run: an item that waits at both is told as
// one that has waited for so long.
const betweenLooks = 100 * time.Millisecond

func statusCommand() *cobra.Command {
	var run string
	var every seconds
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what the edges of running graphs of package dataflow carry",
		Long: "Show for each edge of the graphs that run in groups: items sent and received, items that wait for the receiver, how\n" +
			"often the sender has waited for credit, items in a batch, and for how long the oldest item has waited at least.\n" +
			"A bar shows how far a source is that has said how many items it will send, and \"ended\" that the edge has ended.\n" +
			"Exit code 1 if no graph runs.",
		Example: "  rocl flow status\n  rocl flow status --every 1",
		Args:    usage.Nothing,
		RunE: func(cmd *cobra.Command, _ []string) error {
			g := cli.Flags(cmd)
			ctx := cmd.Context()
			c, err := g.Open(ctx, rocl.JoinOnly())
			if err != nil {
				return withoutDirectory(err)
			}
			defer c.Close()
			me, err := c.Register(ctx, nil)
			if err != nil {
				return err
			}
			look := func() (runs, error) { return lookAt(ctx, c, me, run, g.Timeout) }
			if _, err := look(); err != nil {
				return err
			}
			pause, hasShown := betweenLooks, false
			for {
				select {
				case <-time.After(pause):
				case <-ctx.Done():
					return context.Cause(ctx)
				}
				rs, err := look()
				if hasShown && errors.Is(err, errNoRun) {
					return nil
				}
				if err != nil {
					return err
				}
				hasShown = true
				if err := rs.print(cmd.OutOrStdout(), g.JSON); err != nil || every == 0 {
					return err
				}
				pause = time.Duration(every)
			}
		},
	}
	cmd.Flags().StringVar(&run, "run", "", "show only the run with this `identifier`")
	cmd.Flags().Var(&every, "every", "show them again after so many seconds, or a `time`, until interrupted or no graph runs")
	return cmd
}

// runs has the groups of each run.
type runs map[runKey][]dataflow.Status

type runKey struct{ graph, run string }

// errNoRun is returned if no graph runs.
var errNoRun = errors.New("no graph runs in groups, or it has ended")

// withoutDirectory returns errNoRun if err says that the node has no directory, which each group
// would serve.
func withoutDirectory(err error) error {
	if errors.Is(err, rocl.ErrNoDirectory) {
		return errNoRun
	}
	return err
}

// lookAt asks all groups that run. A group that ends meanwhile is left out.
func lookAt(ctx context.Context, c *rocl.Context, me *rocl.Resource, run string, most time.Duration) (runs, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	match := dataflow.StatusMatch()
	if run != "" {
		match["run"] = run
	}
	rs := runs{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for f, err := range c.FindAll(ctx, match) {
		if err != nil {
			wg.Wait()
			return nil, withoutDirectory(err)
		}
		wg.Go(func() {
			m, err := me.CallBytes(ctx, f.ID, 0, nil)
			if err != nil {
				return
			}
			defer m.Release()
			var s dataflow.Status
			if json.Unmarshal(m.Bytes(), &s) != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			k := runKey{s.Graph, s.Run}
			rs[k] = append(rs[k], s)
		})
	}
	wg.Wait()
	if len(rs) == 0 {
		return nil, errNoRun
	}
	return rs, nil
}

// join returns the edges of a run, with the figures of both ends.
func join(groups []dataflow.Status) []dataflow.EdgeStats {
	edges := map[int]dataflow.EdgeStats{}
	for _, s := range groups {
		for _, e := range s.Edges {
			e.Group = "" // it has the figures of both ends
			o, isKnown := edges[e.Edge]
			if !isKnown {
				edges[e.Edge] = e
				continue
			}
			o.Transport = cmp.Or(strings.TrimPrefix(o.Transport, "none"), e.Transport)
			o.Sent, o.Bytes, o.Batches = max(o.Sent, e.Sent), max(o.Bytes, e.Bytes), max(o.Batches, e.Batches)
			o.Waits, o.Size = max(o.Waits, e.Waits), max(o.Size, e.Size)
			o.Received, o.Waiting, o.Dropped = max(o.Received, e.Received), max(o.Waiting, e.Waiting), max(o.Dropped, e.Dropped)
			o.Oldest, o.Ended = max(o.Oldest, e.Oldest), o.Ended || e.Ended
			edges[e.Edge] = o
		}
	}
	return slices.SortedFunc(maps.Values(edges), func(a, b dataflow.EdgeStats) int { return cmp.Compare(a.Edge, b.Edge) })
}

// An edgeJSON is a line of JSON about one edge.
type edgeJSON struct {
	Graph  string  `json:"graph"`
	Run    string  `json:"run"`
	Groups []place `json:"groups"` // that have answered
	dataflow.EdgeStats
}

// A place says where a group runs.
type place struct {
	Group string `json:"group"`
	Host  string `json:"host"`
	PID   int    `json:"pid"`
}

// print prints the runs in the order of their names.
func (rs runs) print(w io.Writer, asJSON bool) error {
	keys := slices.SortedFunc(maps.Keys(rs), func(a, b runKey) int {
		return cmp.Or(cmp.Compare(a.graph, b.graph), cmp.Compare(a.run, b.run))
	})
	var text bytes.Buffer
	for _, k := range keys {
		edges := join(rs[k])
		var groups []place
		for _, s := range rs[k] {
			groups = append(groups, place{s.Group, s.Host, s.PID})
		}
		slices.SortFunc(groups, func(a, b place) int { return cmp.Compare(a.Group, b.Group) })
		if asJSON {
			for _, e := range edges {
				if err := cli.Print(&text, edgeJSON{k.graph, k.run, groups, e}); err != nil {
					return err
				}
			}
			continue
		}
		fmt.Fprintf(&text, "graph %s, run %s\n", display.Quote(k.graph), display.Quote(k.run))
		for _, g := range groups {
			fmt.Fprintf(&text, "  group %s: process %d on %s\n", display.Quote(g.Group), g.PID, display.Quote(g.Host))
		}
		if err := printEdges(&text, edges); err != nil {
			return err
		}
	}
	_, err := w.Write(text.Bytes())
	return err
}

// printEdges prints a table of edges.
func printEdges(w io.Writer, edges []dataflow.EdgeStats) error {
	sent := map[string]uint64{} // by the sender
	for _, e := range edges {
		sent[e.From] += e.Sent
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  from\tto\ttransport\tsent\treceived\twaiting\twaits\tbatch\toldest\t")
	for _, e := range edges {
		batch := "-"
		if e.Batches > 0 {
			batch = fmt.Sprintf("%.1f", float64(e.Sent)/float64(e.Batches))
		}
		oldest, sent, end := "-", fmt.Sprint(e.Sent), bar(sent[e.From], e.Size)
		if e.Oldest > 0 {
			oldest = e.Oldest.Round(time.Millisecond).String()
		}
		if e.Batches == 0 && e.Received > 0 {
			sent = "-" // the sender's group does not answer, or no more
		}
		if e.Ended {
			end = strings.TrimSpace(end + " ended")
		}
		to := display.Quote(e.To)
		if e.Back {
			to += " (back)"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", display.Quote(e.From), to, e.Transport, sent, e.Received, e.Waiting, e.Waits, batch, oldest, end)
	}
	return t.Flush()
}

// bar returns how much of size is done, or an empty text if the size is unknown.
func bar(done uint64, size int) string {
	if size <= 0 {
		return ""
	}
	const width = 20
	part := min(float64(done)/float64(size), 1)
	full := int(part * width)
	return fmt.Sprintf("[%s%s] %.0f %%", strings.Repeat("#", full), strings.Repeat(".", width-full), part*100)
}
