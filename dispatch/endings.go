// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/rocl-go/rocl/dispatch/internal/list"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// An ending is a function to be called when a resource has ended.
//
// Over a link, the peer tells that with a Gone frame that names no message. The peer sends one to
// each context that has an account with the mailbox, after the mailbox is closed. OnEnd opens the
// account. If the peer's context ends, so does the link, after what came over its connection has
// been delivered. gone.go has the order.
type ending struct {
	call  func(error)
	at    atomic.Pointer[link] // the link whose list holds it; nil: within the process
	in    *endings             // the list that holds it; nil: the function was called, or cancelled
	place list.Place[ending]
}

// endings is a list of functions to be called when one resource has ended. The lock of the list's
// owner guards it: Mailbox.mu or link.mu.
type endings struct{ list.List[ending] }

// push appends e to the list.
func (l *endings) push(e *ending) {
	e.in = l
	l.PushBack(e, &e.place)
}

// remove takes e from the list. It reports false if e is in no list any more.
func (l *endings) remove(e *ending) bool {
	if e.in != l {
		return false
	}
	e.in = nil
	l.Remove(&e.place)
	return true
}

// take empties the list, and returns its endings. The functions may be called when no lock is held.
func (l *endings) take() (all []*ending) {
	for e := l.First(); e != nil; e = l.First() {
		l.remove(e)
		all = append(all, e)
	}
	return all
}

// callAll calls the functions of endings that were taken from a list.
func callAll(all []*ending, err error) {
	for _, e := range all {
		e.call(err)
	}
}

// OnEnd makes fn be called once the flow's resource has ended, after all messages from it have been
// delivered, over any lane and of any size. The resource has ended if it was deleted, if its
// context has been closed or given up, or if it never existed. fn receives the reason, which
// matches ErrGone or ErrUnreachable, or ErrClosed if this context closes. fn may be called before
// OnEnd returns, by any goroutine, with the progress token held. It must not block, send, or make
// progress.
//
// While a function waits to be called, the link is watched: OnEnd does not depend on messages being
// sent. cancel prevents the call of fn. It reports false if fn has been called, or is about to be.
//
// OnEnd waits, until ctx ends, while the link has no room for a frame. If ctx ends, it returns the
// cause, and fn is not called. A flow that is Dead may belong to a link that was given up:
// [Dispatcher.OnEnd] looks for a new one.
func (f *Flow) OnEnd(ctx context.Context, fn func(error)) (cancel func() bool, err error) {
	e := &ending{call: fn}
	if f.mb != nil {
		return f.mb.onEnd(f.in, e), nil
	}
	return f.l.onEnd(ctx, f.dst, e)
}

// OnEnd makes fn be called once the resource of the context owner with serial dst has ended, as
// [Flow.OnEnd] does. If owner was given up before, OnEnd looks for it again.
func (d *Dispatcher) OnEnd(ctx context.Context, owner resource.GID, dst uint32, fn func(error)) (cancel func() bool, err error) {
	k := linkKey{peer: owner.Context()}
	o := neighbour{Dispatcher: d}
	if k.peer != d.self {
		o, _ = d.neighbour(k)
	}
	if o.Dispatcher == nil {
		l, err := d.linkOf(k)
		if err != nil {
			return nil, err
		}
		return l.onEnd(ctx, dst, &ending{call: fn})
	}
	f, err := d.directly(o, dst)
	switch {
	case err == nil:
		return f.OnEnd(ctx, fn)
	case !errors.Is(err, ErrGone):
		return nil, err
	case o.Dispatcher == d:
		fn(err)
	default:
		o.notifyLocal(d, []*ending{{call: fn}}, err)
	}
	return func() bool { return false }, nil
}

// onEnd is OnEnd for the mailbox of a resource of this process.
func (m *Mailbox) onEnd(in *inflow, e *ending) (cancel func() bool) {
	m.mu.Lock()
	if m.closed || in.IsClosed() {
		m.mu.Unlock()
		m.notifyEnd(in, []*ending{e})
		return func() bool { return false }
	}
	in.endings.push(e)
	m.mu.Unlock()
	return func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return in.endings.remove(e)
	}
}

// takeEndings returns the functions of in that wait for the end of the mailbox.
func (m *Mailbox) takeEndings(in *inflow) []*ending {
	m.mu.Lock()
	defer m.mu.Unlock()
	return in.endings.take()
}

// onEnd is OnEnd for the resource dst of the peer.
func (l *link) onEnd(ctx context.Context, dst uint32, e *ending) (cancel func() bool, err error) {
	l.mu.Lock()
	for !l.life.HasEnded() && !l.s.HasRoom() {
		if err := l.waitInLocked(ctx, &l.full); err != nil {
			l.mu.Unlock()
			return nil, fmt.Errorf("dispatch: waiting for the end of %v: %w", l.peer.WithSerial(dst), err)
		}
	}
	if l.life.HasEnded() {
		cause := l.life.Cause()
		l.mu.Unlock()
		l.d.notifyContextEnd(l.peer, []*ending{e}, cause)
		return func() bool { return false }, nil
	}
	list := l.endings[dst]
	if list == nil {
		list = new(endings)
		if l.endings == nil {
			l.endings = map[uint32]*endings{}
		}
		l.endings[dst] = list
		l.putLocked(wire.TypeNeed, dst, 0, l.limitLocked(dst))
	}
	list.push(e)
	e.at.Store(l)
	l.watchLocked()
	l.postLocked()
	return func() bool { return e.cancel(dst) }, nil
}

// limitLocked returns the credit that the flow to the resource dst has, or has asked for: a Need of
// that much asks for nothing. mu must be held.
func (l *link) limitLocked(dst uint32) uint64 {
	if f := l.flows[dst]; f != nil {
		return f.credit.Limit()
	}
	return firstCredit(dst)
}

// cancel takes e from the list of its link, which may be the successor of the one that it was put
// on. It reports false if e is in no list any more.
func (e *ending) cancel(dst uint32) bool {
	for {
		l := e.at.Load()
		l.mu.Lock()
		if e.at.Load() != l {
			l.mu.Unlock()
			continue
		}
		defer l.mu.Unlock()
		list := e.in
		if list == nil || !list.remove(e) {
			return false
		}
		if list.First() == nil && l.endings[dst] == list {
			delete(l.endings, dst)
		}
		return true
	}
}

// takeEndingsLocked returns the functions that wait for the end of the peer's resource dst. mu must
// be held.
func (l *link) takeEndingsLocked(dst uint32) []*ending {
	list := l.endings[dst]
	if list == nil {
		return nil
	}
	delete(l.endings, dst)
	return list.take()
}
