// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/subsys"
)

// A sender that sends one message right after another would waste a system call on each. So would a
// process that answers a batch of requests, or makes as many calls as replies have come. Its link
// is paced: messages are only queued. Their sender writes them when there are enough of them. A
// goroutine of this context that is about to wait writes them too, because then another process may
// need to answer. If neither happens, the flusher writes them after a delay.

const (
	burst          = 2 * time.Microsecond  // the time between two messages, below which their link becomes paced
	flushBytes     = 32 << 10              // unsent bytes at which a sender writes the frames itself: their bytes are still in its cache
	callsDue       = 24                    // unsent requests or replies at which their sender writes them, so that the peer works meanwhile
	flushDelay     = 50 * time.Microsecond // how long the flusher lets messages queue up
	longFlushDelay = time.Millisecond      // the same, where senders and waiters write the frames themselves
	fewFrames      = 8                     // a link with fewer frames in one delay is no longer paced
	answersInBatch = 8                     // frames received since a message was queued last, from which on the peer sends in batches
)

// pace says how a link writes. link.mu guards what is not atomic.
type pace struct {
	slot    int          // the place in Dispatcher.paced, from 1; 0: each message is written at once
	wrote   atomic.Int64 // when the last message had been written, on Dispatcher.clock; 0: not known
	isTimed bool         // the write of the message that was queued last sets wrote
	rx      uint32       // Session.Expected when a message was last queued
	seen    uint32       // Session.Next at the last delay
	calls   atomic.Int32 // requests and replies that were queued since the last write; changed with link.mu held
	pumped  bool         // a sender has written since the last delay, at flushBytes or callsDue
}

// pacedLinks has the paced links of a context. They are in slots, so that a waiting goroutine can
// go through them without a lock or an allocation.
type pacedLinks struct {
	slots [16]atomic.Pointer[link]
	wake  chan struct{} // wakes the flusher
}

// clock returns the time since the context was made, which is quicker to read than time.Now.
func (d *Dispatcher) clock() int64 { return int64(time.Since(d.made)) }

// isPacedLocked reports whether l is in Dispatcher.paced. mu must be held.
func (l *link) isPacedLocked() bool { return l.pace.slot > 0 }

// updatePaceLocked reports whether the message that was just queued is to be written now. It makes
// the link paced if the messages follow each other fast, or if batches of calls go over it. mu must
// be held.
func (l *link) updatePaceLocked() bool {
	if l.isPacedLocked() {
		if l.s.Due() < flushBytes && l.pace.calls.Load() < callsDue {
			return false
		}
		l.pace.pumped = true
		return true
	}
	p := &l.pace
	if rx := l.s.Expected(); rx != p.rx { // perhaps an answer: the clock is not read
		isBatch := rx-p.rx >= answersInBatch && p.calls.Load() > 0 // then as many requests or replies will follow
		p.rx, p.isTimed = rx, false
		if p.wrote.Load() != 0 {
			p.wrote.Store(0)
		}
		return !isBatch || !l.setPaceLocked()
	}
	p.isTimed = true
	wrote := p.wrote.Load()
	isFast := wrote != 0 && l.d.clock()-wrote < int64(burst)
	return !isFast || !l.setPaceLocked()
}

// setPaceLocked makes l paced if a slot is free, and reports whether l is paced. mu must be held.
func (l *link) setPaceLocked() bool {
	if l.isPacedLocked() {
		return true
	}
	d := &l.d.paced
	for i := range d.slots {
		if d.slots[i].CompareAndSwap(nil, l) {
			l.pace.slot, l.pace.seen = i+1, l.s.Next()
			l.d.progress.Paced.Add(1)
			select {
			case d.wake <- struct{}{}:
			default:
			}
			return true
		}
	}
	return false
}

// unpaceLocked makes l no longer paced. mu must be held.
func (l *link) unpaceLocked() {
	if l.isPacedLocked() {
		l.d.paced.slots[l.pace.slot-1].Store(nil)
		l.d.progress.Paced.Add(-1)
		l.pace.slot = 0
		l.pace.wrote.Store(0)
	}
}

// flush writes what a paced link has queued. After a delay it also checks whether the link stays
// paced, and reports whether its traffic is dense: its senders or waiting goroutines wrote all
// frames.
func (l *link) flush(afterDelay bool) (isDense bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := &l.pace; afterDelay {
		if l.life.HasEnded() || l.s.Next()-p.seen < fewFrames {
			l.unpaceLocked()
		}
		isDense, p.pumped = p.pumped || l.s.Due() == 0, false
		p.seen = l.s.Next()
	}
	l.writeLocked()
	return isDense
}

// flushAll writes what the paced links have queued, and reports whether all of them are dense.
func (d *Dispatcher) flushAll(afterDelay bool) (isDense bool) {
	isDense = true
	for i := range d.paced.slots {
		if l := d.paced.slots[i].Load(); l != nil && !l.flush(afterDelay) {
			isDense = false
		}
	}
	return isDense
}

// written is what the token holder does besides polling: it writes what links have queued.
type written struct{ d *Dispatcher }

// Flush implements progress.Work.
func (w written) Flush() { w.d.flushAll(false) }

// FlushCalls writes what the paced links with queued requests or replies have queued. The goroutine
// that polls calls it: other goroutines, such as those that answer requests, leave theirs to it.
func (w written) FlushCalls() {
	for i := range w.d.paced.slots {
		if l := w.d.paced.slots[i].Load(); l != nil && l.pace.calls.Load() > 0 {
			l.flush(false)
		}
	}
}

// Acknowledge acknowledges what has come over each link and has not been acknowledged with other
// frames.
func (w written) Acknowledge() { w.d.eachLink((*link).flushAck) }

// deferredLinks lists links with unwritten requests. The token holder writes them after it has
// yielded (Engine.Yields).
type deferredLinks struct {
	isSome atomic.Bool
	mu     sync.Mutex // guards links; no lock is taken while it is held
	links  []*link
}

// postSoonLocked is post for the request of a call. While the token holder yields, postSoonLocked
// leaves the request to the holder, which writes all such requests of a link in one batch. mu must
// be held; postSoonLocked releases it.
func (l *link) postSoonLocked() {
	d := l.d
	if !d.progress.Yields() || l.conn == nil || l.isPacedLocked() {
		l.postLocked()
		return
	}
	if !l.isDeferred {
		l.isDeferred = true
		d.deferred.mu.Lock()
		d.deferred.links = append(d.deferred.links, l)
		d.deferred.isSome.Store(true)
		d.deferred.mu.Unlock()
		if !d.progress.Yields() { // the token holder may have emptied the list before l was added
			l.postLocked()
			return
		}
	}
	l.mu.Unlock()
}

// FlushDeferred writes the requests that postSoonLocked has deferred to the token holder.
func (w written) FlushDeferred() {
	d := w.d
	if !d.deferred.isSome.Load() {
		return
	}
	d.deferred.mu.Lock()
	links := d.deferred.links
	d.deferred.links = nil
	d.deferred.isSome.Store(false)
	d.deferred.mu.Unlock()
	for i, l := range links {
		l.mu.Lock()
		l.isDeferred = false
		l.writeLocked()
		l.mu.Unlock()
		links[i] = nil
	}
	d.deferred.mu.Lock()
	if d.deferred.links == nil {
		d.deferred.links = links[:0]
	}
	d.deferred.mu.Unlock()
}

// flusher writes what paced links have queued, after a delay. New starts its goroutine, which ends
// with the Dispatcher.
func (d *Dispatcher) flusher() {
	defer d.running.Done()
	for {
		select {
		case <-d.paced.wake:
		case <-d.stop:
			return
		}
		for long := false; d.progress.Paced.Load() > 0; {
			if long {
				// The senders write themselves, and so do waiting goroutines. Only the messages of
				// a sender that stops without waiting are kept a little longer. SleepThread holds a
				// thread, and every 20 µs the runtime checks whether to take its processor away. On
				// a full processor that costs a tenth of its time. Without a poller, the transports
				// are in memory, perhaps in a bubble of testing/synctest, where time.Sleep is
				// exact.
				time.Sleep(longFlushDelay)
			} else if d.oneP || d.progress.Poller() == nil {
				time.Sleep(flushDelay)
			} else {
				subsys.SleepThread(flushDelay)
			}
			long = d.flushAll(true)
		}
	}
}
