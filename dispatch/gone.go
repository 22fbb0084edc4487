// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/rocl-go/rocl/dispatch/internal/life"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/planted"
	"github.com/rocl-go/rocl/resource"
)

// A peer learns of the end of a resource behind all messages that the resource has sent to it. A
// Gone frame comes behind the frames that were numbered before it on its link. It would overtake
// large messages that wait in lines, and messages on other lanes. If there are such messages, the
// Gone frame is queued only after the peer has acknowledged them. A goroutine of the link waits for
// that (queueGoneLater). Refusals of messages are not delayed.
//
// The same holds for another context of the process: the resource may have sent to it over a link.
//
// If a context ends without a goodbye, the end of its link stands for the ends of its resources.
// Messages may still be on the connections of other lanes. So this context reports the ends once
// the links of all lanes with that context have ended (notifyContextEnd).

// A goneQueue is what a link has to tell about resources that are gone. link.mu guards it.
type goneQueue struct {
	dsts      map[uint32]struct{} // resources with a Gone frame that has to wait
	isRunning bool                // a goroutine runs queueGoneLater
}

// queueGone queues a frame that tells the peer that the resource dst is gone, now or behind what
// was sent to the peer before. A peer may ask for resources that do not exist. If that makes more
// than mostAnswers frames wait, the peer is notified at once. No lock of a link may be held.
func (l *link) queueGone(dst uint32) {
	isBehind := l.d.owes(l.peer, l)
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.goneQueue
	switch {
	case l.life.HasEnded():
	case !isBehind && !w.isRunning || len(w.dsts) > mostAnswers:
		l.putLocked(wire.TypeGone, dst, 0, 0)
	default:
		if w.dsts == nil {
			w.dsts = map[uint32]struct{}{}
		}
		w.dsts[dst] = struct{}{}
		if !w.isRunning {
			w.isRunning = true
			l.d.inBackground(l.queueGoneLater)
		}
	}
}

// queueGoneLater queues the Gone frames that wait, each behind what was sent before. It runs in a
// goroutine of its own.
func (l *link) queueGoneLater() {
	for {
		l.mu.Lock()
		dsts := l.goneQueue.dsts
		l.goneQueue.dsts = nil
		if len(dsts) == 0 || l.life.HasEnded() {
			l.goneQueue.isRunning = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		if l.d.awaitOwed(l.d.ctx, l.peer) != nil {
			return // the context closes: the peer hears a goodbye
		}
		l.mu.Lock()
		for dst := range dsts {
			if !l.life.HasEnded() {
				l.putLocked(wire.TypeGone, dst, 0, 0)
			}
		}
		l.mu.Unlock()
		l.lockAndPost()
	}
}

// owes reports whether something that was sent to peer before may arrive later than news of an end
// that peer is given now. The news is a frame of the link own, or, if own is nil, a function call
// within the process. No lock of a link may be held.
func (d *Dispatcher) owes(peer resource.GID, own *link) bool {
	return slices.ContainsFunc(d.lanes(peer), func(l *link) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.heir != nil || !l.life.HasEnded() && (l == own && (l.s.HasQueued() || l.held > 0) || l != own && !l.isIdleLocked())
	})
}

// awaitOwed waits until what was sent to peer before the call has been acknowledged.
func (d *Dispatcher) awaitOwed(ctx context.Context, peer resource.GID) error {
	var marks []watermark
	for _, l := range d.lanes(peer) {
		l.mu.Lock()
		marks = l.underWayLocked(marks, allMessages)
		l.mu.Unlock()
	}
	for _, w := range marks {
		if err := w.passed(ctx, allMessages); err != nil {
			return err
		}
	}
	return nil
}

// notifyEnd calls the functions of ended, behind what m's context has sent to the context of in,
// which is in the process. m must be closed, or in must have left.
func (m *Mailbox) notifyEnd(in *inflow, ended []*ending) {
	o := in.from.(*Dispatcher)
	m.d.notifyLocal(o, ended, o.closedErr())
}

// notifyLocal calls the functions of ended, behind what d has sent to o, another context of the
// process or d itself.
func (d *Dispatcher) notifyLocal(o *Dispatcher, ended []*ending, cause error) {
	if o == d || o.hasBegunClosing() || !d.owes(o.self, nil) {
		callAll(ended, cause)
		return
	}
	d.inBackground(func() {
		if d.awaitOwed(d.ctx, o.self) == nil {
			o.progress.Settle() // the goroutine with the token may still deliver what it has acknowledged
		}
		callAll(ended, cause)
	})
}

// A contextEnd is ends that are reported once the links of all lanes with a context have ended.
type contextEnd struct {
	links atomic.Int32 // how many of these links live
	ended []*ending
	cause error
}

// linkEnded says that one of the links has ended.
func (g *contextEnd) linkEnded() {
	if g.links.Add(-1) == 0 {
		callAll(g.ended, g.cause)
	}
}

// notifyContextEnd calls the functions of ended when the links of all lanes with peer have ended.
// One link has ended because of cause. If cause does not say that peer has ended, notifyContextEnd
// calls them at once. No lock of a link may be held.
func (d *Dispatcher) notifyContextEnd(peer resource.GID, ended []*ending, cause error) {
	if planted.Is(planted.ForgottenMonitor) && errors.Is(cause, ErrGone) {
		return
	}
	g := &contextEnd{ended: ended, cause: cause}
	g.links.Store(1)
	for _, l := range d.lanes(peer) {
		if !errors.Is(cause, ErrGone) {
			break
		}
		l.mu.Lock()
		if l.life.State() != life.Dead {
			g.links.Add(1)
			l.contextEnds = append(l.contextEnds, g)
			l.watchLocked() // notices if the connection is silent
			l.actLocked(l.life.RequestConn())
		}
		l.mu.Unlock()
	}
	g.linkEnded()
}
