// SPDX-License-Identifier: Apache-2.0

package tls

import (
	stdtls "crypto/tls"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

const (
	rounds = 4        // reads before another source gets its turn
	record = 16 << 10 // most plain-text bytes of one record
	inline = 2 << 10  // payloads up to this size are gathered with their headers into one record
	gather = 64 << 10 // sealed bytes that are written at once
	worn   = 1 << 24  // most records under one key
)

// errWorn ends a connection whose key has sealed as many records as it may.
var errWorn = errors.New("tls: its key is used up, a new connection is needed")

type conn struct {
	port   *port
	sock   stream.Socket
	remote string
	sink   subsys.Sink
	closed atomic.Bool
	poller *subsys.Poller

	wire *wire
	tls  *stdtls.Conn
	in   stream.Reader // used by the progress goroutine only
	more bool          // crypto/tls may hold more plain text; used by the progress goroutine only
	out  writer
	to   func([]byte) (int, error) // sock.Write, made once: a closure per call would be allocated
}

func (c *conn) Transport() string { return "tls" }
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
	}
}

// Close implements subsys.Conn. It sends no TLS close alert, because the session above TLS has its
// own end.
func (c *conn) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return nil
	}
	c.poller.Remove(c.sock.FD())
	c.sock.Shut()
	c.out.free()
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

// receive reads until nothing is left or rounds reads were made.
func (c *conn) receive(ended bool) (frames int, again bool) {
	if c.more || c.wire.whole() > 0 { // left over from when there was no memory
		var err error
		if frames, err = c.opened(0); err != nil || c.closed.Load() {
			return frames, false
		}
	}
	for range rounds {
		space := c.wire.space()
		n, err := c.sock.Read(space)
		if err == syscall.EAGAIN {
			return frames, false
		}
		if err == nil && n == 0 {
			err = subsys.ErrPeerClosed
		}
		if err != nil {
			c.fail(fmt.Errorf("tls: reading from %s: %w", c.remote, err))
			return frames, false
		}
		c.wire.took(n)
		if frames, err = c.opened(frames); err != nil {
			return frames, false
		}
		frames = max(frames, 1) // the rest of a frame is worth polling for
		if n < len(space) && !ended || c.closed.Load() {
			return frames, false // drained: the next bytes raise a new edge
		}
	}
	return frames, true
}

// opened calls open, adds the result to frames, and calls fail for an error other than ErrStarved.
func (c *conn) opened(frames int) (int, error) {
	f, err := c.open()
	if err != nil && !errors.Is(err, stream.ErrStarved) {
		c.fail(err)
	}
	return frames + f, err
}

// open decrypts the records that have arrived whole, and delivers their frames. If a record has
// more than the space holds, crypto/tls keeps the remaining bytes.
func (c *conn) open() (frames int, err error) {
	for c.more || c.wire.whole() > 0 {
		space, err := c.in.Space()
		if err != nil {
			return frames, err
		}
		n, err := c.tls.Read(space)
		if _, none := err.(again); none { // the record had no data
			c.more = false
			continue
		}
		if errors.Is(err, io.EOF) {
			err = subsys.ErrPeerClosed
		}
		if err != nil {
			return frames, fmt.Errorf("tls: reading from %s: %w", c.remote, err)
		}
		c.port.cfg.Count.Copies.Add(1)
		c.port.cfg.Count.CopiedB.Add(uint64(n))
		c.more = n == len(space)
		f, err := c.in.Took(n)
		frames += f
		if err != nil || c.closed.Load() {
			return frames, err
		}
	}
	return frames, nil
}

// Writing.

type writer struct {
	mu      sync.Mutex
	plain   []byte          // headers and small payloads for the next record
	rest    []byte          // bytes of a payload that was taken, still to be sealed
	buf     *buffers.Buffer // buffer in which rest lies, retained; may be nil
	records uint64
	stuck   bool
}

func (c *conn) Send(fs []subsys.Frame) (int, error) {
	if !c.sock.Hold() {
		return 0, fmt.Errorf("tls: sending to %s: %w", c.remote, subsys.ErrClosed)
	}
	defer c.drop()
	taken, err := c.out.send(c, fs)
	if err != nil {
		return taken, fmt.Errorf("tls: sending to %s: %w", c.remote, err)
	}
	return taken, nil
}

func (w *writer) send(c *conn, fs []subsys.Frame) (taken int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case c.closed.Load(): // and free has run, or waits for mu
		return 0, subsys.ErrClosed
	case w.stuck:
		return 0, nil
	case w.records >= c.port.worn:
		return 0, errWorn
	}
	for taken < len(fs) && !w.stuck && err == nil {
		f := &fs[taken]
		taken++
		if f.Type == subsys.TypeRun {
			err = w.apart(c, f)
			continue
		}
		small := len(f.Data) <= inline
		need := subsys.HeaderLen
		if small {
			need += len(f.Data)
		}
		if len(w.plain)+need > record {
			if err = w.seal(c, w.plain); err != nil {
				break
			}
			w.plain = w.plain[:0]
			if err = w.write(c, gather); err != nil {
				break
			}
		}
		var h [subsys.HeaderLen]byte
		f.Put(h[:])
		w.plain = append(w.plain, h[:]...)
		if small {
			w.plain = append(w.plain, f.Data...)
		} else {
			err = w.apart(c, f)
		}
	}
	if err == nil {
		err = w.seal(c, w.plain)
		w.plain = w.plain[:0]
	}
	if err == nil {
		err = w.write(c, 0)
	}
	if stream.Over(err) && !c.closed.Load() {
		// The last frames of the peer, perhaps its goodbye, may be unread. The reader gets to the
		// end after them, and closes the connection.
		w.stuck, err = true, nil
	}
	return taken, err
}

// apart seals a payload from where it lies, after the plain text gathered before it.
func (w *writer) apart(c *conn, f *subsys.Frame) error {
	if err := w.seal(c, w.plain); err != nil {
		return err
	}
	w.plain = w.plain[:0]
	w.rest = f.Data
	err := w.carry(c)
	if len(w.rest) > 0 && f.Buf != nil {
		// The link may release the frame as soon as it has another connection.
		w.buf = f.Buf.Retain()
	}
	return err
}

// carry seals and writes the current payload until all of it is sealed, or the socket is full.
func (w *writer) carry(c *conn) error {
	for len(w.rest) > 0 && !w.stuck {
		if c.closed.Load() {
			return subsys.ErrClosed
		}
		n := min(len(w.rest), gather)
		if err := w.seal(c, w.rest[:n]); err != nil {
			return err
		}
		w.rest = w.rest[n:]
		if err := w.write(c, gather); err != nil {
			return err
		}
	}
	if len(w.rest) == 0 {
		w.forget()
	}
	return nil
}

func (w *writer) forget() {
	w.rest = nil
	if w.buf != nil {
		w.buf.Release()
		w.buf = nil
	}
}

// free releases the current payload when the connection is closed.
func (w *writer) free() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget()
}

func (w *writer) seal(c *conn, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	w.records += uint64((len(p) + record - 1) / record)
	c.port.cfg.Count.Copies.Add(1)
	c.port.cfg.Count.CopiedB.Add(uint64(len(p)))
	_, err := c.tls.Write(p)
	return err
}

// write writes the sealed bytes if there are at least least bytes.
func (w *writer) write(c *conn, least int) error {
	if w.stuck || least > 0 && c.wire.pending() < least {
		return nil
	}
	err := c.wire.flush(c.to)
	if err == syscall.EAGAIN {
		w.stuck = true
		c.poller.WantWrite(c.sock.FD(), true)
		return nil
	}
	return err
}

// resume continues to write after the socket was full.
func (w *writer) resume(c *conn) (unstuck bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stuck || c.closed.Load() {
		return false, nil
	}
	w.stuck = false
	if err = w.write(c, 0); err == nil {
		err = w.carry(c)
	}
	if err == nil {
		err = w.write(c, 0)
	}
	if err != nil {
		w.stuck = true
		return false, fmt.Errorf("tls: sending to %s: %w", c.remote, err)
	}
	if w.stuck {
		return false, nil
	}
	c.poller.WantWrite(c.sock.FD(), false)
	return true, nil
}
