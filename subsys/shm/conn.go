// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

// A conn is one end of a connection. Its memory and its socket stay until its last user drops it. A
// conn is retained while it is open, by the port's list, while messages lie in the peer's pages,
// and during calls. The end of the socket tells the peer that none of its pages are read any more,
// so the socket is closed last.
type conn struct {
	port   *port
	remote string
	sink   subsys.Sink
	poller *subsys.Poller
	sock   int
	bell   *bell         // the peer's
	rungAt atomic.Uint64 // word of the peer's bell when this end last rang it
	refs   atomic.Int32
	closed atomic.Bool
	stage  atomic.Uint32
	dead   atomic.Bool // the socket has ended
	ofUser bool        // the peer is a process of this process's user

	mine, theirs segment

	out  sender
	in   receiver
	back returns

	granted quota  // what the peer may have mapped in this process
	onKnown func() // called when the sink knows the peer, or at the end; may be nil
}

// The life of a conn. Each step names the function that makes it:
//
//	unused ──Start──► started ──end──► closed ──finish──► finished ──delist──► delisted ──drop──► freed
//	   │                                                                                    ▲
//	   └───end──► spared (closed and finished at once) ────────────────drop─────────────────┘
//
//	state       says                                  step into it
//	unused      stage is unused                       connect has made the conn
//	started     stage is started                      Start: the conn is in the port's list
//	spared      stage is spared, closed, in.finished  end, before Start: no goroutine reads
//	closed      closed                                end, called by Close or fail
//	finished    in.finished                           finish: lookAt, look, Start or Port.Close calls it
//	delisted    not in port.list                      delist: lookAt if no loans are out, or Port.Close
//	freed       refs is 0                             drop by the last user
//
// A conn that Start cannot enlist is finished by Start, and never was in the list.

// Stages of a conn. The change from unused decides which goroutine reads.
const (
	unused  = iota
	started // read by the goroutine that makes progress, or that holds the port's cfg.Progress
	spared  // read by no goroutine: the conn was closed before Start
)

func (c *conn) Transport() string { return "shm" }
func (c *conn) Remote() string    { return c.remote }

func (c *conn) tryRetain() bool {
	for {
		n := c.refs.Load()
		if n == 0 {
			return false
		}
		if c.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (c *conn) drop() {
	if c.refs.Add(-1) > 0 {
		return
	}
	if c.hasLoans() { // the conn was never in the port's list
		c.out.abandonLoans(c)
	}
	c.port.forget(c)
	if c.sock >= 0 {
		c.poller.Remove(c.sock)
		unix.Close(c.sock)
	}
	c.in.free()
	c.mine.unmap()
	c.theirs.unmap()
	c.port.budget.reclaim(&c.granted)
	if c.onKnown != nil {
		c.onKnown()
	}
	if c.bell != nil {
		c.bell.close()
	}
}

func (c *conn) Start() {
	if !c.tryRetain() {
		return
	}
	defer c.drop()
	if !c.stage.CompareAndSwap(unused, started) {
		return
	}
	c.in.reader.Start(c, c.sink, &c.closed, &c.port.cfg, c.port.nudge)
	if err := c.poller.AddQuiet(c.sock, c); err != nil {
		c.fail(err)
	}
	if c.closed.Load() || !c.port.enlist(c) {
		c.poller.Remove(c.sock)
		c.port.cfg.Progress.Lock()
		c.finish()
		c.port.cfg.Progress.Unlock()
	}
}

func (c *conn) Close() error {
	c.end()
	return nil
}

// end closes the connection, once. isFirst reports whether this call closed it. Only the first
// call may tell the sink of a failure.
func (c *conn) end() (isFirst bool) {
	if !c.tryRetain() {
		return false
	}
	defer c.drop()
	if !c.closed.CompareAndSwap(false, true) {
		return false
	}
	c.out.stop()
	isSpared := c.stage.CompareAndSwap(unused, spared)
	if isSpared { // no goroutine would look for returned loans
		c.out.abandonLoans(c)
		c.finish()
	}
	c.drop() // the reference for being open
	if !isSpared {
		c.port.nudge() // the progress goroutine removes the conn from the list
	}
	return true
}

// finish tells the peer, once, that this end reads nothing more. The caller must be the
// goroutine that makes progress, or must have set the stage to spared.
func (c *conn) finish() {
	if c.in.finished.Swap(true) {
		return
	}
	c.in.free()
	c.in.returnUnread()
	c.in.publishHead(c)
	c.mine.closed.Store(1)
	c.back.end(c)
	c.ring()
}

// fail closes the connection because of err and tells the sink, unless the connection was closed
// before.
func (c *conn) fail(err error) {
	if c.end() {
		c.sink.Down(c, err)
	}
}

// Ready implements subsys.Source. It is called when the socket is readable.
func (c *conn) Ready(subsys.Readiness) (frames int, again bool) {
	if !c.tryRetain() {
		return 0, false
	}
	defer c.drop()
	again, ended, err := c.readNotes(mostNotes)
	hasRung := c.in.noteRang
	c.in.noteRang = false
	if ended {
		c.dead.Store(true)
		c.poller.Remove(c.sock)
		// The records that the peer published before are at most a ring full. The peer may still be
		// writing.
		for from := c.in.head; c.in.head-from < ringLen && !c.closed.Load() && c.canRead(); {
			frames += c.look()
		}
		c.out.endLoansOfDeadPeer(c)
		if c.in.reader.Starved() && !c.closed.Load() {
			return frames, false // look processes the other records and then the end
		}
		err = fmt.Errorf("shm: from %s: %w", c.remote, subsys.ErrPeerClosed)
	}
	if err != nil {
		c.fail(err)
		return frames, false
	}
	if hasRung {
		frames += c.port.answer(c)
	}
	return frames, again
}

// hasWork reports whether look has something to do.
func (c *conn) hasWork() bool {
	o := &c.out
	if o.hasReturns(c) || o.hasUnmapped.Load() {
		return true
	}
	peerClosed := c.theirs.closed.Load() != 0
	if c.closed.Load() {
		mustFinish := !c.in.finished.Load()
		mayBeDelisted := !c.hasLoans()
		hasUnreadLoans := peerClosed && !o.unreadEnded.Load()
		isPeerDone := c.theirs.done.Load() != 0
		return mustFinish || mayBeDelisted || hasUnreadLoans || isPeerDone
	}
	mustEnd := peerClosed && !c.in.reader.Starved()
	hasPeerRead := o.isFull.Load() && c.theirs.head.Load() != o.peerHead.Load()
	return mustEnd || hasPeerRead || c.canRead()
}

// canRead reports whether the next record has arrived, and the reader has memory for it.
func (c *conn) canRead() bool {
	return c.theirs.word(c.in.head).Load() != 0 && !c.in.reader.Starved()
}

// look processes what the peer has published.
func (c *conn) look() (frames int) {
	c.back.giveBack(c)
	came := c.canRead()
	if !came {
		c.back.tell(c)
	}
	// A goroutine waits for records, but not for returned loans. So if a record has come, the line
	// of the returns is not read: the peer writes that line soon after it has published.
	o := &c.out
	mayReadReturns := !came || o.loansOut.Load() >= manyLoans
	seesReturns := mayReadReturns && o.hasReturns(c)
	awaitsLoans := c.closed.Load() && c.hasLoans()
	if seesReturns || o.isFull.Load() || o.hasUnmapped.Load() || awaitsLoans {
		if writable, err := o.resume(c); err != nil {
			c.fail(err)
		} else if writable && !c.closed.Load() {
			c.sink.Writable(c)
		}
	}
	if c.closed.Load() {
		return 0
	}
	if c.in.reader.Starved() {
		return 0
	}
	peerClosed := c.dead.Load() || c.theirs.closed.Load() != 0 // read before the ring, which gets no records afterwards
	if c.canRead() {
		n, err := c.receive()
		frames = n
		if err != nil {
			c.fail(err)
		}
		if c.closed.Load() {
			c.finish()
		}
		return frames
	}
	if c.in.isUnpublished {
		c.in.isUnpublished = false
		c.in.publishHead(c)
	}
	if peerClosed {
		c.fail(fmt.Errorf("shm: from %s: %w", c.remote, subsys.ErrPeerClosed))
	}
	return frames
}

// trim releases memory that a conn needs only while records arrive.
func (c *conn) trim() {
	if in := &c.in; in.used || in.made > keptLoans {
		in.used = false
		in.reader.Trim()
		in.trimLoans()
	}
}

// hasLoans reports whether the peer holds loans of this end.
func (c *conn) hasLoans() bool { return c.out.loansOut.Load() > 0 }
