// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// Watch yields what happens to the resources that match: first an event for each that exists, then
// Synced, then the changes. No change is missed. When the server is lost, the watch goes on with
// the next one and yields only what is different. It ends when ctx ends, with the cause of ctx as
// the error.
//
// Gone says that the directory does not have the resource any more. It says nothing about messages
// that the resource sent: they travel over links and may be received later.
//
// If the pattern has conditions, the server reports what matches without them, and the client
// compares. So a resource also appears and goes as its numbers change. A watch ignores the order of
// a pattern.
func (c *Client) Watch(ctx context.Context, pattern *resource.List) iter.Seq2[Event, error] {
	if pattern.Conditional() {
		return c.watchMeeting(ctx, pattern)
	}
	return c.watch(ctx, pattern)
}

// watchMeeting is Watch of a pattern with conditions.
func (c *Client) watchMeeting(ctx context.Context, pattern *resource.List) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		base := pattern.WithoutConditions()
		cuts := pattern.HasAlternatives() && !pattern.Complete()
		if cuts { // all values of a name are compared, and an answer has the first of those that are wanted
			base = base.WithoutWanted()
		}
		var added []string
		for name := range pattern.Compared { // the answers must have the values that are compared
			isNew, err := wantToo(&base, name)
			if err != nil {
				yield(Event{}, err)
				return
			}
			if isNew {
				added = append(added, name)
			}
		}
		matching := map[resource.GID]bool{}
		for ev, err := range c.watch(ctx, &base) {
			if err == nil && ev.Kind != Synced {
				meets := ev.Kind != Gone && resource.Meets(ev.Owner, &ev.Attrs, pattern)
				switch was := matching[ev.ID]; {
				case !meets && !was:
					continue
				case !meets:
					ev.Kind = Gone
					delete(matching, ev.ID)
				case was:
					ev.Kind = Changed
				default:
					ev.Kind = Appeared
					matching[ev.ID] = true
				}
				for _, name := range added {
					ev.Attrs.Remove(name)
				}
				if cuts {
					ev.Attrs = pattern.Answer(&ev.Attrs)
				}
			}
			if !yield(ev, err) {
				return
			}
		}
	}
}

// watch is Watch of a pattern without conditions.
func (c *Client) watch(ctx context.Context, pattern *resource.List) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		w := watch{node: c.Node()}
		for {
			a, err := c.borrow(ctx, wire.KindWatch)
			if err == nil {
				stop := context.AfterFunc(c.lifetime, func() { _ = a.c.Close() })
				err = w.yieldEvents(ctx, a, pattern, yield)
				stop()
				a.c.Close()
			}
			if err == nil {
				return
			}
			switch {
			case ctx.Err() != nil:
				err = context.Cause(ctx)
			case c.lifetime.Err() != nil:
				err = ErrClosed
			}
			if !errors.Is(err, errLost) {
				yield(Event{}, err)
				return
			}
			if err := sleep(ctx, time.Millisecond); err != nil {
				yield(Event{}, err)
				return
			}
		}
	}
}

// watch is the state of a watch that outlives a server: what it has yielded.
type watch struct {
	node   resource.NodeID // of the client
	view   View
	synced bool // Synced was yielded
}

// yieldAll yields events. It returns false if the caller's loop has ended.
func yieldAll(all []Event, yield func(Event, error) bool) bool {
	for _, ev := range all {
		if !yield(ev, nil) {
			return false
		}
	}
	return true
}

// yieldEvents yields the events of one connection. It returns nil if the caller's loop has ended.
func (w *watch) yieldEvents(ctx context.Context, a *askConn, pattern *resource.List, yield func(Event, error) bool) error {
	stop := context.AfterFunc(ctx, func() { _ = a.c.Close() })
	defer stop()
	a.c.Begin(wire.MsgWatch, 1)
	a.c.Append(pattern.Wire())
	if err := a.c.Send(); err != nil {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	w.view.Begin()
	for {
		m, err := a.c.ReadMessage()
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() && ctx.Err() == nil { // GoneGrace has passed
			_ = a.c.SetReadDeadline(time.Time{})
			if !yieldAll(w.view.Expire(), yield) {
				return nil
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errLost, err)
		}
		if m.Type == wire.MsgError {
			return wire.ParseError(m.Body)
		}
		ev, err := wire.ParseEvent(&m)
		if err != nil {
			return err
		}
		tell := false
		if ev.Kind != Synced {
			ev, tell = w.view.Take(ev)
		} else {
			if !yieldAll(w.view.ExpireOf(w.node), yield) {
				return nil
			}
			if w.view.Missing() > 0 {
				_ = a.c.SetReadDeadline(time.Now().Add(GoneGrace))
			}
			tell, w.synced = !w.synced, true
		}
		if tell && !yield(ev, nil) {
			return nil
		}
	}
}
