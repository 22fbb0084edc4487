// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/subsys"
)

// A sender that sends one message right after another would waste a system
// call on each. Its link is paced: messages are only queued, and written when
// there are enough of them, when a goroutine of this context is about to wait,
// which is when somebody may need an answer, or, if neither happens, by the
// flusher after a nap.

const (
	burst      = 2 * time.Microsecond  // between messages that make a stream
	flushBytes = 32 << 10              // unsent bytes at which a sender writes them itself: they are still in its cache
	nap        = 50 * time.Microsecond // for which the flusher lets messages queue up,
	longNap    = time.Millisecond      // where senders come to flushBytes sooner
	fewFrames  = 8                     // of one nap, with which a link is no stream any more
)

// pace is how a link writes. Guarded by link.mu.
type pace struct {
	slot   int // in streams, from 1; 0: each message is written at once
	wrote  time.Time
	rx     uint32 // session.rxNext when a message was last queued
	seen   uint32 // session.next at the last nap
	pumped bool   // a sender came to flushBytes since
}

// streams are the paced links of a context, in slots so that whoever waits can
// look at them without a lock or garbage.
type streams struct {
	count atomic.Int32
	slots [16]atomic.Pointer[link]
	wake  chan struct{} // to the flusher
}

func (l *link) paced() bool { return l.stream.slot > 0 }

// now says whether what was just queued is to be written now. mu is held.
func (l *link) now() bool {
	if l.paced() {
		if l.s.Due() < flushBytes {
			return false
		}
		l.stream.pumped = true
		return true
	}
	p := &l.stream
	if rx := l.s.Expected(); rx != p.rx { // an answer, perhaps: no stream, and no clock is asked
		p.rx = rx
		p.wrote = time.Time{}
		return true
	}
	t := time.Now()
	fast := t.Sub(p.wrote) < burst
	p.wrote = t
	return !fast || !l.setPace()
}

// setPace makes l paced, if it is not and there is a slot left, and says
// whether it is. mu is held.
func (l *link) setPace() bool {
	if l.paced() {
		return true
	}
	d := &l.d.streams
	for i := range d.slots {
		if d.slots[i].CompareAndSwap(nil, l) {
			l.stream.slot, l.stream.seen = i+1, l.s.Next()
			d.count.Add(1)
			select {
			case d.wake <- struct{}{}:
			default:
			}
			return true
		}
	}
	return false
}

// unpace ends it. mu is held.
func (l *link) unpace() {
	if l.paced() {
		l.d.streams.slots[l.stream.slot-1].Store(nil)
		l.d.streams.count.Add(-1)
		l.stream.slot, l.stream.wrote = 0, time.Time{}
	}
}

// flush writes what a paced link has queued. After a nap it also judges
// whether the link is a stream still, and says whether it is a dense one.
func (l *link) flush(napped bool) (dense bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := &l.stream; napped {
		if l.life.HasEnded() || l.s.Next()-p.seen < fewFrames {
			l.unpace()
		}
		dense, p.pumped = p.pumped, false
		p.seen = l.s.Next()
	}
	l.write()
	return dense
}

// flushAll writes what the paced links have queued.
func (d *Dispatcher) flushAll(napped bool) (dense bool) {
	if d.streams.count.Load() == 0 {
		return false
	}
	for i := range d.streams.slots {
		if l := d.streams.slots[i].Load(); l != nil && l.flush(napped) {
			dense = true
		}
	}
	return dense
}

// flusher writes what paced links leave.
func (d *Dispatcher) flusher() {
	defer d.running.Done()
	for {
		select {
		case <-d.streams.wake:
		case <-d.stop:
			return
		}
		for long := false; d.streams.count.Load() > 0; {
			if long {
				// The senders write themselves, and whoever waits: only a sender
				// that stops without waiting is kept a little longer. A nap holds
				// a thread, and the runtime looks every 20 µs whether to take its
				// processor away, which costs a full processor a tenth.
				time.Sleep(longNap)
			} else {
				subsys.Nap(nap)
			}
			long = d.flushAll(true)
		}
	}
}
