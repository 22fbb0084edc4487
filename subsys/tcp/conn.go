// SPDX-License-Identifier: Apache-2.0

package tcp

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
	"golang.org/x/sys/unix"
)

type conn struct {
	port   *port
	sock   stream.Socket
	remote string
	sink   subsys.Sink
	closed atomic.Bool
	poller *subsys.Poller

	in  stream.Reader // used by the progress goroutine only
	out writer
}

func (c *conn) Transport() string { return "tcp" }
func (c *conn) Remote() string    { return c.remote }

// Unanswered implements subsys.Prober.
func (c *conn) Unanswered() (owes bool, heard time.Duration) {
	if !c.sock.Hold() {
		return false, 0
	}
	defer c.drop()
	return c.sock.Unanswered()
}

// Streams implements subsys.Streamer.
func (c *conn) Streams() {}

func (c *conn) Start() {
	if !c.sock.Hold() {
		return
	}
	defer c.drop()
	c.in.Start(c, c.sink, &c.closed, &c.port.cfg, func() { c.poller.Again(c.sock.FD()) })
	if err := c.poller.Add(c.sock.FD(), c); err != nil {
		c.fail(err)
	}
	if c.closed.Load() { // closed meanwhile, so Close did not remove it
		c.poller.Remove(c.sock.FD())
	}
}

func (c *conn) drop() {
	if c.sock.Drop() {
		c.in.Free()
		c.out.letGo()
	}
}

func (c *conn) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	c.poller.Remove(c.sock.FD())
	c.sock.Shut()
	c.drop()
	c.port.forget(c)
	return nil
}

// fail closes the connection because of err and tells the sink, unless the connection was closed
// before.
func (c *conn) fail(err error) {
	if c.closed.Load() {
		return
	}
	c.Close()
	c.sink.Down(c, err)
}

// Ready implements subsys.Source.
func (c *conn) Ready(on subsys.Readiness) (frames int, again bool) {
	if !c.sock.Hold() {
		return 0, false
	}
	defer c.drop()
	if on&subsys.Writable != 0 {
		unstuck, err := c.out.resume(c)
		if err != nil && !stream.Over(err) {
			c.fail(err)
			return 0, false
		}
		if unstuck && !c.closed.Load() {
			c.sink.Writable(c)
		}
	}
	if on&subsys.Readable != 0 && !c.closed.Load() && !c.in.Starved() {
		return c.receive(on&subsys.Ended != 0)
	}
	return 0, false
}

// rounds is how many times a connection is read before another source gets its turn.
const rounds = 8

// receive reads until nothing is left or rounds reads were made.
func (c *conn) receive(ended bool) (frames int, again bool) {
	for range rounds {
		space, err := c.in.Space()
		if errors.Is(err, stream.ErrStarved) {
			return frames, false // the peer's frames wait in the socket
		}
		if err != nil {
			c.fail(err)
			return frames, false
		}
		n, err := c.sock.Read(space)
		if err == unix.EAGAIN {
			return frames, false
		}
		if err == nil && n == 0 {
			err = subsys.ErrPeerClosed
		}
		if err != nil {
			c.fail(fmt.Errorf("tcp: reading from %s: %w", c.remote, err))
			return frames, false
		}
		f, err := c.in.Took(n)
		frames += max(f, 1) // the rest of a frame is worth polling for
		if err != nil {
			c.fail(err)
			return frames, false
		}
		if n < len(space) && !ended || c.closed.Load() {
			return frames, false // drained: the next bytes raise a new edge
		}
	}
	return frames, true
}

// Writing.

const (
	inline  = 2 << 10   // payloads up to this size are copied after their header
	gather  = 128 << 10 // bytes of headers and inline payloads in one write
	vectors = 64
)

// A writer collects frames and writes them. It belongs to the goroutine that calls Send. While
// stuck is true it belongs to the goroutine that makes progress, which writes what the socket had
// no room for and then clears stuck.
type writer struct {
	buf   []byte // headers and inline payloads
	n     int
	seg   int // start of the part of buf not yet in iov
	iov   [vectors]unix.Iovec
	niov  int
	first int // iov[first:niov] is still to be written

	mu    lock.Mutex[levelStuck] // guards changes of stuck together with the poller's WantWrite
	stuck atomic.Bool
	kept  []*buffers.Buffer // buffers of the frames that the socket has not taken completely, while stuck
}

// levelStuck is the lock level of writer.mu.
type levelStuck struct{}

func (levelStuck) Place() (int, string) { return 120, "tcp" }

func (c *conn) Send(fs []subsys.Frame) (int, error) {
	if !c.sock.Hold() {
		return 0, fmt.Errorf("tcp: sending to %s: %w", c.remote, subsys.ErrClosed)
	}
	defer c.drop()
	w := &c.out
	if w.stuck.Load() {
		return 0, nil
	}
	taken := 0
	for taken < len(fs) {
		from := taken
		taken += w.fill(c, fs[taken:])
		isFull, err := w.flush(c)
		if stream.Over(err) && !c.closed.Load() {
			// The last frames of the peer, perhaps its goodbye, may be unread. The reader gets to
			// the end after them, and closes the connection.
			w.stick(c, false)
			return taken, nil
		}
		if err != nil {
			return taken, fmt.Errorf("tcp: sending to %s: %w", c.remote, err)
		}
		if isFull {
			w.keep(fs[from:taken])
			w.stick(c, true)
			return taken, nil
		}
	}
	return taken, nil
}

// keep retains the frames that the socket has no room for, because the sender may release them
// while they are written.
func (w *writer) keep(fs []subsys.Frame) {
	for i := range fs {
		if b := fs[i].Buf; b != nil {
			w.kept = append(w.kept, b.Retain())
		}
	}
}

// letGo undoes keep.
func (w *writer) letGo() {
	for i, b := range w.kept {
		b.Release()
		w.kept[i] = nil
	}
	w.kept = w.kept[:0]
}

// stick hands the writer to the goroutine that makes progress. If awaitsRoom, the poller tells that
// goroutine when the socket has room.
func (w *writer) stick(c *conn, awaitsRoom bool) {
	w.mu.Lock()
	if awaitsRoom {
		c.poller.WantWrite(c.sock.FD(), true)
	}
	w.stuck.Store(true)
	w.mu.Unlock()
}

// fill adds frames to the next write, as many as fit, and returns how many it took.
func (w *writer) fill(c *conn, fs []subsys.Frame) (taken int) {
	copies, copied := 0, 0
	for i := range fs {
		f := &fs[i]
		if f.Type == subsys.TypeRun {
			if w.niov+2 >= vectors {
				break
			}
			w.cut()
			w.vec(f.Data)
			taken++
			continue
		}
		need := subsys.HeaderLen
		small := len(f.Data) <= inline
		if small {
			need += len(f.Data)
		}
		if w.n+need > len(w.buf) && !w.grow(w.n+need) {
			break
		}
		if !small && w.niov+2 >= vectors {
			break
		}
		f.Put(w.buf[w.n:])
		if small {
			if len(f.Data) > 0 {
				copy(w.buf[w.n+subsys.HeaderLen:], f.Data)
				copies++
				copied += len(f.Data)
			}
			w.n += need
		} else {
			w.n += need
			w.cut()
			w.vec(f.Data)
		}
		taken++
	}
	if copies > 0 {
		c.port.cfg.Count.Copies.Add(uint64(copies))
		c.port.cfg.Count.CopiedB.Add(uint64(copied))
	}
	w.cut()
	return taken
}

// grow makes buf larger, up to gather. It reports false if need is more, or if iov already refers
// to buf.
func (w *writer) grow(need int) bool {
	if need > gather || w.niov > 0 {
		return false
	}
	size := max(len(w.buf)*4, 4<<10)
	for size < need {
		size *= 2
	}
	b := make([]byte, min(size, gather))
	copy(b, w.buf[:w.n])
	w.buf = b
	return true
}

func (w *writer) cut() {
	if w.n > w.seg {
		w.vec(w.buf[w.seg:w.n])
		w.seg = w.n
	}
}

func (w *writer) vec(b []byte) {
	w.iov[w.niov].Base = &b[0]
	w.iov[w.niov].SetLen(len(b))
	w.niov++
}

// flush writes until everything is written or the socket is full.
func (w *writer) flush(c *conn) (isFull bool, err error) {
	for w.first < w.niov {
		n, err := c.sock.Writev(w.iov[w.first:w.niov])
		if err == unix.EAGAIN {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		for n > 0 {
			v := &w.iov[w.first]
			if l := int(v.Len); n >= l {
				n -= l
				w.first++
				continue
			}
			v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
			v.SetLen(int(v.Len) - n)
			n = 0
		}
	}
	clear(w.iov[:w.niov])
	w.first, w.niov, w.n, w.seg = 0, 0, 0, 0
	return false, nil
}

// resume continues to write after the socket was full. The goroutine that makes progress calls it.
func (w *writer) resume(c *conn) (unstuck bool, err error) {
	w.mu.Lock() // the socket may have room before stick has returned
	defer w.mu.Unlock()
	if !w.stuck.Load() {
		return false, nil
	}
	isFull, err := w.flush(c)
	if err != nil {
		return false, fmt.Errorf("tcp: sending to %s: %w", c.remote, err)
	}
	if isFull {
		return false, nil
	}
	c.poller.WantWrite(c.sock.FD(), false)
	w.letGo()
	w.stuck.Store(false)
	return true, nil
}
