// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/subsys"
)

// A Writer puts frames on the stream of one connection. It belongs to the goroutine that calls
// Send. After Send has reported a full socket, it belongs to the goroutine that makes progress,
// until Resume has written everything. The errors of a Writer do not name the connection.
type Writer interface {
	// Send writes frames until all are written or the socket is full, and returns how many it has
	// taken. If the socket is full, the Writer keeps what is left of these, with a reference to its
	// buffers.
	Send(c *Conn, fs []subsys.Frame) (taken int, isFull bool, err error)
	// Resume continues to write what is left, and reports whether the socket is full again.
	Resume(c *Conn) (isFull bool, err error)
	// Free releases the buffers of what is left. No other call is in progress, and none follows.
	Free()
}

// An Opener is a Writer of a connection on which the frames are sealed. It reads the bytes of the
// socket, and gives the bytes of the frames to the connection's [Reader]. The goroutine that makes
// progress calls it.
type Opener interface {
	// Space returns the memory for the next bytes of the socket. It returns [ErrStarved] if the
	// Reader lacks memory for bytes that have come before.
	Space(c *Conn, in *Reader) ([]byte, error)
	// Took opens what is whole after n more bytes have come into the space, and returns the number
	// of frames that the Reader has delivered since the last call.
	Took(c *Conn, in *Reader, n int) (frames int, err error)
}

// levelConn is the lock level of Conn.mu.
type levelConn struct{}

func (levelConn) Depth() (int, string) { return 120, "stream" }

// A Conn is a [subsys.Conn] over a byte stream. It has the life of the connection: a [Writer] and
// perhaps an [Opener] know the bytes.
//
// The descriptor stays open during each call of a method, and until Close. The last of these calls
// frees the memory of the connection.
type Conn struct {
	port   *Port
	sock   socket
	remote string
	sink   subsys.Sink
	closed atomic.Bool
	poller *subsys.Poller
	knock  knock

	in     Reader // used by the progress goroutine only
	spinIn spinner
	opener Opener // nil if in reads the bytes of the socket

	out          Writer
	spinOut      spinner
	mu           lock.Mutex[levelConn] // guards changes of isHandedOver together with the poller's WantWrite
	isHandedOver atomic.Bool           // out belongs to the progress goroutine
}

// Transport implements [subsys.Conn].
func (c *Conn) Transport() string { return c.port.proto.Scheme }

// Remote implements [subsys.Conn].
func (c *Conn) Remote() string { return c.remote }

// Unanswered implements [subsys.Prober].
func (c *Conn) Unanswered() (owes bool, heard time.Duration) {
	if !c.sock.tryRetain() {
		return false, 0
	}
	defer c.drop()
	return c.unanswered()
}

// Streams implements [subsys.Streamer].
func (c *Conn) Streams() {}

// Start implements [subsys.Conn].
func (c *Conn) Start() {
	if !c.sock.tryRetain() {
		return
	}
	defer c.drop()
	c.in.Start(c, c.sink, &c.closed, &c.port.cfg, func() { c.poller.Again(c.sock.fd) })
	if err := c.poller.Add(c.sock.fd, c); err != nil {
		c.fail(err)
	}
	if c.closed.Load() { // closed meanwhile, so Close did not remove it
		c.poller.Remove(c.sock.fd)
	}
}

func (c *Conn) drop() {
	if c.sock.drop() {
		c.in.Free()
		c.out.Free()
	}
}

// Close implements [subsys.Conn].
func (c *Conn) Close() error {
	c.end()
	return nil
}

// end closes the connection, once. isFirst reports whether this call closed it. Only the first
// call may tell the sink of a failure.
func (c *Conn) end() (isFirst bool) {
	if !c.closed.CompareAndSwap(false, true) {
		return false
	}
	c.poller.Remove(c.sock.fd)
	c.knock.end()
	c.sock.shut()
	c.drop()
	c.port.forget(c)
	return true
}

// fail closes the connection because of err and tells the sink, unless the connection was closed
// before.
func (c *Conn) fail(err error) {
	if c.end() {
		c.sink.Down(c, err)
	}
}

// Ready implements [subsys.Source].
func (c *Conn) Ready(on subsys.Readiness) (frames int, again bool) {
	if !c.sock.tryRetain() {
		return 0, false
	}
	defer c.drop()
	if on&subsys.Writable != 0 {
		isBack, err := c.resume()
		if err != nil && !isEnded(err) {
			c.fail(c.sendError(err))
			return 0, false
		}
		if isBack && !c.closed.Load() {
			c.sink.Writable(c)
		}
	}
	if on&subsys.Readable != 0 && !c.closed.Load() && !c.in.Starved() {
		return c.receive(on&subsys.Ended != 0)
	}
	return 0, false
}

// receive reads until nothing is left, or as many times as the protocol allows.
func (c *Conn) receive(ended bool) (frames int, again bool) {
	for range c.port.proto.Rounds {
		space, err := c.space()
		if errors.Is(err, ErrStarved) {
			return frames, false // the peer's frames wait in the socket
		}
		if err != nil {
			c.fail(err)
			return frames, false
		}
		n, err := c.sock.read(space)
		isLarge := c.spinIn.most > 0 && len(space) >= spinFrom
		if err == syscall.EAGAIN && isLarge {
			n, err = c.spinIn.repeat(func() (int, error) { return c.sock.read(space) })
		}
		if err == syscall.EAGAIN {
			return frames, false
		}
		if err == nil && n == 0 {
			err = subsys.ErrPeerClosed
		}
		if err != nil {
			c.fail(c.ReadError(err))
			return frames, false
		}
		c.knock.came()
		f, err := c.took(n)
		frames += max(f, 1) // the rest of a frame is worth polling for
		if errors.Is(err, ErrStarved) {
			return frames, false
		}
		if err != nil {
			c.fail(err)
			return frames, false
		}
		if n < len(space) && !ended && !isLarge || c.closed.Load() {
			return frames, false // drained: the next bytes raise a new edge
		}
	}
	return frames, true
}

// space returns the memory for the next bytes of the socket.
func (c *Conn) space() ([]byte, error) {
	if c.opener == nil {
		return c.in.Space()
	}
	return c.opener.Space(c, &c.in)
}

// took delivers the frames that are complete after n more bytes have come into the space.
func (c *Conn) took(n int) (frames int, err error) {
	if c.opener == nil {
		return c.in.Took(n)
	}
	return c.opener.Took(c, &c.in, n)
}

// Send implements [subsys.Conn].
func (c *Conn) Send(fs []subsys.Frame) (int, error) {
	if !c.sock.tryRetain() {
		return 0, c.sendError(subsys.ErrClosed)
	}
	defer c.drop()
	if c.isHandedOver.Load() {
		return 0, nil
	}
	taken, isFull, err := c.out.Send(c, fs)
	if isEnded(err) && !c.closed.Load() {
		// The last frames of the peer, perhaps its goodbye, may be unread. The reader gets to the
		// end after them, and closes the connection.
		c.handOver(false)
		return taken, nil
	}
	if err != nil {
		return taken, c.sendError(err)
	}
	if isFull {
		c.handOver(true)
	}
	return taken, nil
}

// handOver hands the Writer to the goroutine that makes progress. If awaitsRoom, the poller tells
// that goroutine when the socket has room.
func (c *Conn) handOver(awaitsRoom bool) {
	c.mu.Lock()
	if awaitsRoom {
		c.poller.WantWrite(c.sock.fd, true)
	}
	c.isHandedOver.Store(true)
	c.mu.Unlock()
}

// resume continues to write after the socket was full. The goroutine that makes progress calls it.
func (c *Conn) resume() (isBack bool, err error) {
	c.mu.Lock() // the socket may have room before handOver has returned
	defer c.mu.Unlock()
	if !c.isHandedOver.Load() {
		return false, nil
	}
	isFull, err := c.out.Resume(c)
	if err != nil || isFull {
		return false, err
	}
	c.poller.WantWrite(c.sock.fd, false)
	c.isHandedOver.Store(false)
	return true, nil
}

// Write writes bytes to the socket, as many as there is room for. A [Writer] calls it. It returns
// syscall.EAGAIN, not wrapped, if there is no room.
func (c *Conn) Write(b []byte) (int, error) { return c.sock.write(b) }

// Writev is Write for bytes in several pieces.
func (c *Conn) Writev(iov []Iovec) (int, error) {
	n, err := c.sock.writev(iov)
	if err == syscall.EAGAIN && c.spinOut.most > 0 && iov[len(iov)-1].Len >= spinFrom {
		n, err = c.spinOut.repeat(func() (int, error) { return c.sock.writev(iov) })
	}
	return n, err
}

// CountCopies counts payloads that were copied, and their bytes.
func (c *Conn) CountCopies(payloads, bytes int) {
	c.port.cfg.Count.Copies.Add(uint64(payloads))
	c.port.cfg.Count.CopiedB.Add(uint64(bytes))
}

// IsClosed reports whether the connection was closed.
func (c *Conn) IsClosed() bool { return c.closed.Load() }

// ReadError returns the error of the connection when reading has failed because of err.
func (c *Conn) ReadError(err error) error {
	return fmt.Errorf("%s: reading from %s: %w", c.Transport(), c.remote, err)
}

func (c *Conn) sendError(err error) error {
	return fmt.Errorf("%s: sending to %s: %w", c.Transport(), c.remote, err)
}
