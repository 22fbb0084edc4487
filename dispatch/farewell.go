// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/rocl-go/rocl/dispatch/internal/life"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// The end of a resource is told behind all that the resource has sent. A Gone frame comes
// behind the frames that were numbered before it on its link. It would overtake large
// messages that wait in lines, and what other lanes carry. So where there is such, the frame
// is queued only after the peer has acknowledged it. A goroutine of the link waits for that
// (sayGoneLater). Refusals of messages are not delayed.
//
// The same holds where a context is told of its end that is in the process: the resource may
// have sent to it over a link.
//
// Where a context ends without a word, the link's end tells of its resources. What another
// lane's connection carries is read first: the end is told once the links of all lanes with
// that context have ended (mourn).

// farewell is what a link has to say of resources that are gone. Guarded by link.mu.
type farewell struct {
	dsts   map[uint32]struct{} // resources whose Gone frame has to wait
	isOwed bool                // a goroutine runs sayGoneLater
}

// sayGone queues a frame that tells the peer that the resource dst is gone, now or behind
// what was sent to the peer before. A peer that causes more than mostAnswers frames to wait,
// by asking for resources that do not exist, is told at once. No lock of a link may be held.
func (l *link) sayGone(dst uint32) {
	isBehind := l.d.owes(l.peer, l)
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.farewell
	switch {
	case l.life.HasEnded():
	case !isBehind && !w.isOwed || len(w.dsts) > mostAnswers:
		l.put(wire.TypeGone, dst, 0, 0)
	default:
		if w.dsts == nil {
			w.dsts = map[uint32]struct{}{}
		}
		w.dsts[dst] = struct{}{}
		if !w.isOwed {
			w.isOwed = true
			l.d.inBackground(l.sayGoneLater)
		}
	}
}

// sayGoneLater queues the Gone frames that wait, each behind what was sent before.
func (l *link) sayGoneLater() {
	for {
		l.mu.Lock()
		dsts := l.farewell.dsts
		l.farewell.dsts = nil
		if len(dsts) == 0 || l.life.HasEnded() {
			l.farewell.isOwed = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		if l.d.awaitOwed(l.d.life, l.peer) != nil {
			return // the context closes: the peer hears a goodbye
		}
		l.mu.Lock()
		for dst := range dsts {
			if !l.life.HasEnded() {
				l.put(wire.TypeGone, dst, 0, 0)
			}
		}
		l.mu.Unlock()
		l.speak()
	}
}

// lanes yields the links with peer over which this context sends messages.
func (d *Dispatcher) lanes(peer resource.GID, yield func(*link) bool) {
	most := 1
	if r := d.cfg.Rules; r != nil {
		most = len(r.lanes)
	}
	for lane := range most {
		d.mu.RLock()
		l := d.links[linkKey{peer: peer, lane: uint8(lane)}]
		d.mu.RUnlock()
		if l != nil && !yield(l) {
			return
		}
	}
}

// owes reports whether something that was sent to peer may come after what is put into its
// process now: a frame of the link own, or, if own is nil, a call. No lock of a link may be
// held.
func (d *Dispatcher) owes(peer resource.GID, own *link) (owes bool) {
	d.lanes(peer, func(l *link) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		owes = !l.life.HasEnded() && (l == own && l.s.HasQueued() || l != own && !l.s.IsIdle())
		return !owes
	})
	return owes
}

// awaitOwed waits until what was sent to peer before the call has been acknowledged.
func (d *Dispatcher) awaitOwed(ctx context.Context, peer resource.GID) error {
	var marks []watermark
	d.lanes(peer, func(l *link) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		marks = l.underWay(marks, 0)
		return true
	})
	for _, w := range marks {
		if err := w.passed(ctx); err != nil {
			return err
		}
	}
	return nil
}

// tellEnd calls e, and those that were taken from the same list, behind what m's context has
// sent to that of in, which is in the process. m must be closed, or in must have left.
func (m *Mailbox) tellEnd(in *inflow, e *ending) {
	o := in.from.(*Dispatcher)
	m.d.tellNeighbour(o, e, in.isOver())
}

// tellNeighbour calls e, and those that were taken from the same list, behind what d has sent
// to o, another context of the process or d itself.
func (d *Dispatcher) tellNeighbour(o *Dispatcher, e *ending, cause error) {
	if o == d || o.hasBegunClosing() || !d.owes(o.self, nil) {
		e.callAll(cause)
		return
	}
	d.inBackground(func() {
		if d.awaitOwed(d.life, o.self) == nil {
			o.take() // the goroutine with the token may deliver still what it has acknowledged
			o.give()
		}
		e.callAll(cause)
	})
}

// A grief is ends that are told once the links of all lanes with a context have ended.
type grief struct {
	links atomic.Int32 // of which so many live
	ended *ending
	cause error
}

// leave says that one of the links has ended.
func (g *grief) leave() {
	if g.links.Add(-1) == 0 {
		g.ended.callAll(g.cause)
	}
}

// mourn calls ended, and those that were taken with it, when the links of all lanes with peer
// have ended: one has, because of cause. It does so at once if peer need not have ended. No
// lock of a link may be held.
func (d *Dispatcher) mourn(peer resource.GID, ended *ending, cause error) {
	g := &grief{ended: ended, cause: cause}
	g.links.Store(1)
	for lane := range uint8(MaxLanes) {
		for _, theirs := range [...]bool{false, true} {
			d.mu.RLock()
			l := d.links[linkKey{peer: peer, lane: lane, theirs: theirs}]
			d.mu.RUnlock()
			if l != nil && errors.Is(cause, ErrGone) {
				l.mu.Lock()
				if l.life.State() != life.Dead {
					g.links.Add(1)
					l.mourned = append(l.mourned, g)
					l.watch() // its connection may be silent,
					l.act(l.life.Wanted())
				}
				l.mu.Unlock()
			}
		}
	}
	g.leave()
}
