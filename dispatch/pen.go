// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/rocl-go/rocl/dispatch/internal/life"
	"github.com/rocl-go/rocl/subsys"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
)

// The pen of a link says which goroutine calls Send of its connection.
//
//	from               to         when
//	idle               writing    takePenLocked; onAttach, to write Ready
//	writing            called     callWriter: another goroutine wants the writer to check again
//	called             writing    the writer begins another round
//	writing, called    idle       all is written, or the rest is left to other goroutines
//	writing, called    full       the connection took too little
//	full               idle       Writable, or the connection is dropped
//
// The goroutine that took the pen from idle is the writer. Until the pen is idle or full, the
// writer alone calls Send, and the frames that the session has lent to the connection do not
// change. Other goroutines add their frames to the session, call the writer, and leave. While the
// pen is idle, the holder of mu may call SendBriefly.
//
// Every change needs link.mu, except one: a writer that has written everything takes the pen from
// writing to idle by a compare-and-swap, without mu. So a goroutine that holds mu and finds the pen
// at writing calls the writer by a compare-and-swap too. That fails only if the pen has become
// idle. A writer that was called takes mu and checks for more frames.
const (
	penIdle = iota
	penWriting
	penCalled
	penFull
)

// callWriter reports whether a goroutine writes, and makes that goroutine take mu and check again
// before it puts the pen down. If callWriter returns false, no goroutine writes while mu is held.
// mu must be held.
func (l *link) callWriter() bool {
	for {
		switch l.pen.Load() {
		case penWriting:
			if l.pen.CompareAndSwap(penWriting, penCalled) {
				return true
			}
		case penCalled:
			return true
		default:
			return false
		}
	}
}

// takePenLocked makes the caller the writer. It reports false if another goroutine writes, which
// then checks again, or if the connection is full. mu must be held.
func (l *link) takePenLocked() bool {
	if l.callWriter() || l.pen.Load() == penFull {
		return false
	}
	l.pen.Store(penWriting)
	return true
}

// putDownLocked ends a turn of writing: the pen becomes idle or full. mu must be held;
// putDownLocked releases it for a while if the link has ended.
func (l *link) putDownLocked(to uint32) {
	l.pen.Store(to)
	l.releaseLocked()
	l.unwritten.Broadcast()
	if l.life.State() == life.Dying {
		l.finishEndLocked()
	}
}

// canWriteLocked reports whether there are frames to write, and a connection for them. mu must be
// held.
func (l *link) canWriteLocked() bool {
	return l.conn != nil && !l.life.HasEnded() && l.binders == 0 && !l.s.IsQuiet()
}

// writeLocked writes the unsent frames, unless another goroutine writes or the connection is full.
// mu must be held; writeLocked releases it for a while.
func (l *link) writeLocked() {
	if l.canWriteLocked() && l.takePenLocked() {
		l.pump()
		l.mu.Lock()
	}
}

// sendBrieflyLocked writes the unsent frames with mu held, and reports whether it did. It does if
// they are small, the connection takes them at once, and nothing else is to be done. mu must be
// held, and no goroutine may write.
func (l *link) sendBrieflyLocked() bool {
	if l.brief == nil || l.needsLock.Load() || l.binders > 0 || !l.liveness.isWatched || l.life.HasEnded() {
		return false
	}
	l.s.Release()
	p := l.s.TakeOpen(subsys.BriefMost)
	if p == nil {
		return false
	}
	if !l.brief.SendBriefly(p) {
		l.s.UntakeOpen()
		return false
	}
	l.traffic.copies++
	l.traffic.copiedB += uint64(len(p))
	if l.pace.calls.Load() > 0 {
		l.pace.calls.Store(0)
	}
	return true
}

// pump writes the unsent frames. The caller must hold mu, which pump releases, and must have taken
// the pen.
func (l *link) pump() {
	l.releaseLocked()
	to := uint32(penIdle)
	for round := 0; l.canWriteLocked(); round++ {
		if round > 0 && l.leavesRestLocked(round) {
			break // other goroutines add frames as fast as this one writes: larger batches are cheaper
		}
		l.feedLinesLocked()
		if l.pace.calls.Load() > 0 {
			l.pace.calls.Store(0)
		}
		fs := l.s.Take()
		c, before, isAll := l.conn, l.writable, l.s.IsQuiet() && l.awaited == 0
		if l.pen.Load() != penWriting { // another goroutine has called, and its frames are taken
			l.pen.Store(penWriting)
		}
		l.watchLocked()
		l.mu.Unlock()
		n, err := c.Send(fs)
		if isAll && err == nil && n == len(fs) && l.pen.CompareAndSwap(penWriting, penIdle) {
			return
		}
		l.mu.Lock()
		if l.conn != c {
			continue
		}
		l.s.Untake(fs, n)
		if err != nil {
			l.dropFailedLocked(c, err)
			continue
		}
		l.releaseLocked()
		if n < len(fs) && l.writable == before {
			to = penFull
			break
		}
	}
	l.putDownLocked(to)
	l.mu.Unlock()
}

// leavesRestLocked reports whether the writer, after so many rounds, leaves the remaining frames to
// the goroutines that add them, or to the flusher. A goroutine that has called the writer of a
// paced link is about to wait, so the writer goes on for more rounds. mu must be held.
func (l *link) leavesRestLocked(rounds int) bool {
	most := pumpRounds
	switch isCalled := l.pen.Load() == penCalled; {
	case l.isPacedLocked() && isCalled:
		most = 4 * pumpRounds
	case l.isPacedLocked() && l.s.Due() < flushBytes:
		return true
	}
	return rounds >= most && !l.s.HasQueued() && l.setPaceLocked()
}

// awaitPenLocked waits until no goroutine writes. mu must be held; awaitPenLocked releases it while
// it waits.
func (l *link) awaitPenLocked() {
	l.awaited++
	for l.callWriter() { // the wait is short: a connection never blocks
		l.unwritten.Wait()
	}
	l.awaited--
}

// blockWritersLocked waits until no goroutine writes, and prevents new writers until
// unblockWritersLocked. mu must be held; blockWritersLocked releases it while it waits.
func (l *link) blockWritersLocked() {
	l.binders++
	l.awaitPenLocked()
}

// unblockWritersLocked ends blockWritersLocked. mu must be held; unblockWritersLocked releases it
// for a while.
func (l *link) unblockWritersLocked() {
	l.binders--
	l.writeLocked()
}

// onWritable continues to write after the connection c was full.
func (l *link) onWritable(c subsys.Conn) {
	l.mu.Lock()
	l.writable++
	if l.conn == c {
		l.pen.CompareAndSwap(penFull, penIdle)
		l.writeLocked()
	}
	l.mu.Unlock()
}

// sendAckLocked acknowledges in a frame of its own, if the session has no other frame to send. mu
// must be held; sendAckLocked releases it for a while.
func (l *link) sendAckLocked(c subsys.Conn) {
	if !l.s.IsQuiet() || !l.takePenLocked() {
		// A frame that is queued from now on carries the acknowledgement. The frames that wait or
		// are being written may all be older, so the next tick checks again.
		l.d.progress.OweAck()
		return
	}
	ack := l.s.TakeAck()
	fs := &l.ack // a local frame would be garbage
	fs[0] = subsys.Frame{}
	fs[0].Type, fs[0].Ack = wire.TypeAck, ack
	before := l.writable
	l.mu.Unlock()
	n, err := c.Send(fs[:])
	l.mu.Lock()
	to := uint32(penIdle)
	if l.conn == c {
		if err != nil {
			l.dropFailedLocked(c, err)
		} else if n == 0 {
			if l.writable == before {
				to = penFull
			}
			l.s.UntakeAck(ack)
			l.d.progress.OweAck()
		}
	}
	l.putDownLocked(to)
	l.writeLocked()
}
