// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

// A conn is one end. Its memory and its socket are there until nobody holds it:
// it is held for being open, by the port's list, while messages lie in the peer's
// pages, and by who is using it. The socket's end is what tells the peer
// that none of its pages are read any more, so it comes last.
type conn struct {
	port   *port
	remote string
	sink   subsys.Sink
	poller *subsys.Poller
	sock   int
	bell   *bell // the peer's
	rung   atomic.Uint64
	refs   atomic.Int32
	closed atomic.Bool
	stage  atomic.Uint32
	dead   atomic.Bool // the socket has ended
	ofUser bool        // the peer is a process of this process's user

	mine, theirs segment

	out  sender
	in   receiver
	back returns

	granted grant  // what the peer may have us map
	known   func() // to be called when the sink knows the peer, or at the end; nil: by nobody
}

// Stages of a conn. The goroutine that changes it from unused says who reads.
const (
	unused  = iota
	started // the goroutine that makes progress, or has the port's cfg.Progress
	spared  // no goroutine: it was closed before it was started
)

func (c *conn) Transport() string { return "shm" }
func (c *conn) Remote() string    { return c.remote }

func (c *conn) hold() bool {
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
	if c.lingers() { // it never came to be looked at
		c.out.abandon(c)
	}
	c.port.forget(c)
	if c.sock >= 0 {
		c.poller.Remove(c.sock)
		unix.Close(c.sock)
	}
	c.in.free()
	c.mine.unmap()
	c.theirs.unmap()
	c.port.budget.giveBack(&c.granted)
	if c.known != nil {
		c.known()
	}
	if c.bell != nil {
		c.bell.close()
	}
}

func (c *conn) Start() {
	if !c.hold() {
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
		c.sayClosed()
		c.port.cfg.Progress.Unlock()
	}
}

func (c *conn) Close() error {
	if !c.hold() {
		return nil
	}
	defer c.drop()
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	c.out.stop()
	isSpared := c.stage.CompareAndSwap(unused, spared)
	if isSpared { // no goroutine would look for what comes back
		c.out.abandon(c)
		c.sayClosed()
	}
	c.drop() // for being open
	if !isSpared {
		c.port.nudge() // the goroutine that looks takes it from the list
	}
	return nil
}

// sayClosed tells the peer that nothing more is read, once. The caller must make progress,
// or have spared c.
func (c *conn) sayClosed() {
	if c.in.over.Swap(true) {
		return
	}
	c.in.free()
	c.in.giveUp()
	c.in.tell(c)
	c.mine.closed.Store(1)
	c.back.end(c)
	c.ring()
}

// fail takes the conn down because of err and tells the sink, unless somebody
// closed it before.
func (c *conn) fail(err error) {
	if c.closed.Load() {
		return
	}
	c.Close()
	c.sink.Down(c, err)
}

// Ready implements subsys.Source: something is on the socket.
func (c *conn) Ready(subsys.Readiness) (frames int, again bool) {
	if !c.hold() {
		return 0, false
	}
	defer c.drop()
	again, ended, err := c.listen(mostNotes)
	rung := c.in.rung
	c.in.rung = false
	if ended {
		c.dead.Store(true)
		c.poller.Remove(c.sock)
		// What the peer said before is at most a ring full. It may be writing still.
		for from := c.in.head; c.in.head-from < ringLen && !c.closed.Load() && c.comes(); {
			frames += c.look()
		}
		c.out.collect(c)
		if c.in.reader.Starved() && !c.closed.Load() {
			return frames, false // look comes to the rest, and to the end
		}
		err = fmt.Errorf("shm: from %s: %w", c.remote, subsys.ErrPeerClosed)
	}
	if err != nil {
		c.fail(err)
		return frames, false
	}
	if rung {
		frames += c.port.answer(c)
	}
	return frames, again
}

// news says whether there is something to look at.
func (c *conn) news() bool {
	o := &c.out
	if o.due(c) || o.isGone.Load() {
		return true
	}
	over := c.theirs.closed.Load() != 0
	if c.closed.Load() {
		return !c.in.over.Load() || !c.lingers() || over && !o.swept.Load() || c.theirs.done.Load() != 0
	}
	return over && !c.in.reader.Starved() || c.comes() || o.stuck.Load() && c.theirs.head.Load() != o.head.Load()
}

// comes reports whether there is a record, and memory for it.
func (c *conn) comes() bool {
	return c.theirs.word(c.in.head).Load() != 0 && !c.in.reader.Starved()
}

// look works on what the peer has published.
func (c *conn) look() (frames int) {
	c.back.tell(c)
	came := c.comes()
	// What came is waited for, what comes back is not: then we do not even look at
	// that line, which the peer writes as soon as it has published.
	if o := &c.out; (!came || o.lent.Load() >= manyLoans) && o.due(c) ||
		o.stuck.Load() || o.isGone.Load() || c.closed.Load() && c.lingers() {
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
	over := c.dead.Load() || c.theirs.closed.Load() != 0 // before the ring, into which nothing comes afterwards
	if c.comes() {
		n, err := c.receive()
		frames = n
		if err != nil {
			c.fail(err)
		}
		if c.closed.Load() {
			c.sayClosed()
		}
		return frames
	}
	if c.in.untold {
		c.in.untold = false
		c.in.tell(c)
	}
	if over {
		c.fail(fmt.Errorf("shm: from %s: %w", c.remote, subsys.ErrPeerClosed))
	}
	return frames
}

// rest gives back what a conn needs only while it is read.
func (c *conn) rest() {
	if in := &c.in; in.used || in.made > keptLoans {
		in.used = false
		in.reader.Rest()
		in.trim()
	}
}

// lingers says whether loans are out.
func (c *conn) lingers() bool { return c.out.lent.Load() > 0 }
