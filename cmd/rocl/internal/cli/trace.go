// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/spf13/cobra"
)

const (
	followLimit = 10 * time.Minute
	followEach  = 200 * time.Millisecond // between two questions to a context
	tracedMost  = 64                     // resources that the command follows
)

func traceCommand() *cobra.Command {
	var limit time.Duration
	var every int
	cmd := &cobra.Command{
		Use:   "trace PATTERN...",
		Short: "Follow messages to resources: how long they wait, travel, lie in the mailbox and are handled",
		Long: "Follow one of --every messages to the resources of this node that have these attributes, for the time of --for.\n" +
			"Their senders and receivers note the times; programs need no change, and stop by themselves.\n" +
			"A line is printed when a message is released. Its times: WAITED at the sender for room, TRAVELLED until it was in\n" +
			"the mailbox (- if the sender has another clock, as on another node), STORED in the mailbox, REPLIED from receive to\n" +
			"reply, HANDLED from receive to release. Messages that are not released are printed at the end, with their STATE.\n" +
			"--timeout bounds how long the directory and each context are waited for.\n" +
			"Exit code 1 if no resource matches or no message was followed, 2 if no directory serves the node, 3 if some context\n" +
			"does not answer, 4 if the directory does not answer within --timeout.",
		Args: someAttributes,
		RunE: of(pattern, func(cmd *cobra.Command, g Globals, l *rocl.List) error {
			switch {
			case limit <= 0 || limit > followLimit:
				return usage.Errorf("--for %v is not between 0 and %v", limit, followLimit)
			case every < 1:
				return usage.Errorf("--every %d is less than 1", every)
			}
			ctx := cmd.Context()
			c, err := g.Open(ctx, rocl.JoinOnly(), rocl.WithLinger(askLinger))
			if err != nil {
				return err
			}
			defer c.Close()
			ids, err := followable(ctx, cmd, g, c, l)
			if err != nil {
				return err
			}
			t := &tracer{c: c, g: g, out: cmd.OutOrStdout()}
			var all sync.WaitGroup
			errs := make([]error, len(ids))
			for i, id := range ids {
				all.Go(func() { errs[i] = t.follow(ctx, id, every, limit) })
			}
			all.Wait()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			silent := 0
			for _, err := range errs {
				if err != nil {
					silent++
					note(cmd, g, map[string]string{"error": text(err)}, "%s", text(err))
				}
			}
			if t.missed > 0 {
				note(cmd, g, map[string]uint64{"missed": t.missed}, "%d followed messages came too fast to be shown: raise --every", t.missed)
			}
			switch {
			case t.err != nil:
				return t.err
			case silent > 0:
				return errPartial
			case t.shown == 0:
				return tellNothing(cmd, g, "no message was followed")
			}
			return nil
		}),
	}
	cmd.Flags().DurationVar(&limit, "for", 10*time.Second, "how long to follow messages, at most 10m")
	cmd.Flags().IntVar(&every, "every", 100, "follow one of so many messages of each sender")
	return cmd
}

// followable returns the resources of this node that match a pattern, at most tracedMost.
func followable(ctx context.Context, cmd *cobra.Command, g Globals, c *rocl.Context, l *rocl.List) (ids []rocl.GID, err error) {
	p := g.withTimeout(ctx)
	defer p.stop()
	elsewhere, more := 0, 0
	var unseen rocl.Coverage // not used: resources of other nodes are not followed
	err = gather(p, c.FindAll(p, l, rocl.Want(), rocl.Covered(&unseen)), func(f rocl.Found) {
		switch {
		case f.ID.Node() != c.ID().Node():
			elsewhere++
		case len(ids) == tracedMost:
			more++
		default:
			ids = append(ids, f.ID)
		}
	})
	if elsewhere > 0 {
		note(cmd, g, map[string]int{"elsewhere": elsewhere}, "%s of other nodes can be traced there", count(elsewhere, "resource"))
	}
	if more > 0 {
		note(cmd, g, map[string]int{"left_out": more}, "%s more match: only %d are traced", count(more, "resource"), tracedMost)
	}
	if err == nil && len(ids) == 0 {
		err = tellNothing(cmd, g, "no resource of this node matches")
	}
	return ids, err
}

// A tracer prints followed messages of several resources.
type tracer struct {
	c *rocl.Context
	g Globals

	mu     sync.Mutex // guards the following fields
	out    io.Writer
	shown  int
	missed uint64 // messages that the context no longer had when it was asked
	err    error  // of a print
}

// follow follows messages to the resource id, and prints them.
func (t *tracer) follow(ctx context.Context, id rocl.GID, every int, limit time.Duration) error {
	open := map[uint64]rocl.Followed{} // messages that are not released yet
	var last uint64
	ask := func(limit time.Duration) (all []rocl.Followed, err error) {
		rctx, cancel := context.WithTimeoutCause(ctx, t.g.Timeout, &lateError{id, t.g.Timeout})
		defer cancel()
		all, err = t.c.Follow(rctx, id, every, limit)
		return all, orLate(rctx, err)
	}
	next := func(limit time.Duration) error {
		all, err := ask(limit)
		for _, m := range all {
			switch _, isOpen := open[m.Number]; {
			case m.Number > last:
				t.miss(m.Number - last - 1)
				last = m.Number
			case !isOpen:
				continue // it was printed
			}
			if m.State == dispatch.Released || m.State == dispatch.Dropped {
				delete(open, m.Number)
				t.print(&m)
			} else {
				open[m.Number] = m
			}
		}
		return err
	}
	all, err := ask(0) // of an earlier command
	if len(all) > 0 {
		last = all[len(all)-1].Number
	}
	end := time.Now().Add(limit)
	if err == nil {
		err = next(limit)
	}
	for isOver := false; err == nil && !isOver; {
		isOver = time.Now().After(end)
		select {
		case <-time.After(min(followEach, max(time.Until(end), time.Millisecond))):
		case <-ctx.Done():
			return nil
		}
		err = next(0)
	}
	for _, n := range slices.Sorted(maps.Keys(open)) {
		m := open[n]
		t.print(&m)
	}
	if errors.Is(err, rocl.ErrGone) {
		return nil // what it had was printed
	}
	return err
}

// miss counts messages that were not shown.
func (t *tracer) miss(n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.missed += n
}

// print prints a message.
func (t *tracer) print(m *rocl.Followed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shown++; t.err != nil {
		return
	}
	if t.g.JSON {
		t.err = Print(t.out, m)
		return
	}
	const row = "%-24s  %-24s  %-10v  %-9v  %-9s  %-9s  %-9s  %-9s  %-9s  %-9s  %s\n"
	if t.shown == 1 {
		_, t.err = fmt.Fprintf(t.out, row, "FROM", "TO", "TAG", "BYTES", "OVER", "WAITED", "TRAVELLED", "STORED", "REPLIED", "HANDLED", "STATE")
	}
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.out, row, m.From, m.To, m.Tag, m.Bytes, cmp.Or(display.Quote(m.Transport), "-"),
			display.Duration(m.Waited), dash(m.Travelled), display.Duration(m.Stored), dash(m.Replied), display.Duration(m.Handled), display.Quote(m.State))
	}
}

// dash returns the text of a duration, and "-" for 0.
func dash(d time.Duration) string {
	if d == 0 {
		return "-"
	}
	return display.Duration(d)
}
