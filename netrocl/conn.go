// SPDX-License-Identifier: Apache-2.0

package netrocl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rocl-go/rocl"
)

const (
	network = "rocl" // the network of an Addr

	// maxPiece limits how many bytes of a Write travel in one message.
	maxPiece = 64 << 10
	// mailbox limits the bytes that were written to a connection and not yet read.
	mailbox = 1 << 20
	// endMost limits how long Close waits for room for the end of the stream.
	endMost = time.Second
	// lingerMost limits how long a closed connection waits for its peer to end too.
	lingerMost = time.Minute
)

// The tags of messages; see the package documentation. Programs are unlikely to choose the same
// tags, so a message to the wrong resource is recognized.
const (
	tagDial uint64 = 0x6e6574726f636c<<8 + iota // "netrocl"
	tagAccept
	tagRefuse
	tagData
	tagEnd
	tagClose
	tagGone
	tagWake
)

// errReset is the error of a Write to a connection whose peer has closed it.
var errReset = fmt.Errorf("%w: %w", syscall.ECONNRESET, rocl.ErrGone)

// expired is a context that has ended. A send with it does only what needs no waiting.
var expired = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// An Addr is the address of a listener or of one end of a connection: the identifier of its
// resource.
type Addr struct{ ID rocl.GID }

// Network returns "rocl".
func (Addr) Network() string { return network }

// String returns the identifier of the resource.
func (a Addr) String() string { return a.ID.String() }

// A Conn is a connection that [Dial] or [Listener.Accept] has returned. All methods may be called
// concurrently. Concurrent Reads proceed one after another, and so do concurrent Writes.
//
// Errors are of type *net.OpError, except io.EOF. They match os.ErrDeadlineExceeded after a
// deadline, with a *rocl.NoConnectionError if the peer was not reached meanwhile, and net.ErrClosed
// after Close. After Close of the context they match net.ErrClosed and
// rocl.ErrClosed. They match syscall.ECONNRESET and rocl.ErrGone if the peer is gone: its resource
// was deleted, or its process or node died, before it ended the stream. If the peer's context is
// out of reach for as long as rocl.WithGiveUp says, they match rocl.ErrUnreachable instead of
// rocl.ErrGone, and have the reason.
type Conn struct {
	r             *rocl.Resource
	peer          rocl.GID // the resource of the other end
	local, remote Addr
	unmonitor     func() // ends the monitor of peer

	life    context.Context // ends with Close
	end     context.CancelCauseFunc
	closing atomic.Bool
	rd, wr  deadline

	reading  sync.Mutex
	m        *rocl.Message         // the message that Read is reading; nil: none
	off      int                   // bytes of m that were read
	readErr  error                 // why no more bytes can be read: io.EOF, or that of lost; nil while they can
	receives atomic.Bool           // a Read waits, or is about to wait
	hasPeer  atomic.Bool           // false once the peer is known to have closed its end, or to be gone
	lost     atomic.Pointer[error] // why the peer is gone; nil: it is not known to be

	writing sync.Mutex
	isEnded bool // tagEnd or tagClose was sent
	isStuck bool // the last send ended with its context before there was room
}

// newConn returns the connection of the resource r with the resource peer, which r monitors. If it
// fails, the caller still owns r.
func newConn(r *rocl.Resource, peer, local, remote rocl.GID) (*Conn, error) {
	c := &Conn{r: r, peer: peer, local: Addr{local}, remote: Addr{remote}}
	stop, err := r.Monitor(context.Background(), peer, tagGone)
	if err != nil {
		return nil, err
	}
	c.unmonitor = stop
	c.hasPeer.Store(true)
	c.life, c.end = context.WithCancelCause(context.Background())
	c.rd.init(c.life, c.wakeReader)
	c.wr.init(c.life, func() {})
	return c, nil
}

// LocalAddr returns the address of this end. For an accepted connection it is the address of the
// listener.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address of the other end. For a dialed connection it is the address of the
// listener.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// fail returns the *net.OpError of an operation that fails because of err.
func (c *Conn) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Source: c.local, Addr: c.remote, Err: err}
}

// Read reads at least one byte, if p has room for one, and waits for it until the deadline. It
// returns io.EOF when the peer has called Close or CloseWrite and everything before that was read.
func (c *Conn) Read(p []byte) (int, error) {
	c.reading.Lock()
	defer c.reading.Unlock()
	ctx := c.rd.context()
	if err := c.cause(ctx); err != nil {
		return 0, c.fail("read", err)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if c.m == nil {
		m, err := c.next(ctx)
		if err == io.EOF {
			return 0, err
		}
		if err != nil {
			return 0, c.fail("read", err)
		}
		c.m, c.off = m, 0
	}
	n := copy(p, c.m.Bytes()[c.off:])
	if c.off += n; c.off == c.m.Len() {
		c.m.Release()
		c.m = nil
	}
	return n, nil
}

// next returns the next message with bytes of the stream. reading must be held.
func (c *Conn) next(ctx context.Context) (*rocl.Message, error) {
	c.receives.Store(true)
	defer c.receives.Store(false)
	for c.readErr == nil {
		m, err := c.r.Recv(ctx)
		if err != nil {
			return nil, c.broken(ctx, err)
		}
		if c.isData(m) {
			return m, nil
		}
		m.Release()
		if c.cause(ctx) != nil {
			return nil, c.broken(ctx, nil)
		}
	}
	return nil, c.readErr
}

// isData reports whether m has bytes of the stream. If m is the peer's end, isData notes that.
// reading must be held, except by linger.
func (c *Conn) isData(m *rocl.Message) bool {
	if m.From() != c.peer {
		return false
	}
	switch tag := m.Tag(); {
	case m.IsGone():
		err := fmt.Errorf("%w: %w", syscall.ECONNRESET, m.GoneErr())
		c.lost.Store(&err)
		c.hasPeer.Store(false)
		c.readErr = cmp.Or(c.readErr, err)
	case tag == tagEnd:
		c.readErr = io.EOF
	case tag == tagClose:
		c.hasPeer.Store(false)
		c.readErr = io.EOF
	case tag == tagData:
		return m.Len() > 0
	}
	return false
}

// wakeReader makes a waiting Read check its context at once, by a message to its own resource. A
// receive whose context ends may sleep for another millisecond; a receive that gets a message does
// not.
func (c *Conn) wakeReader() {
	if c.receives.Load() {
		_ = c.r.SendBytes(expired, c.r.ID(), tagWake, nil)
	}
}

// cause returns why ctx, the context of a Read or Write, has ended, or nil.
func (c *Conn) cause(ctx context.Context) error {
	return cmp.Or(context.Cause(c.life), context.Cause(ctx))
}

// broken converts an error of Send or Recv to the error of a connection. If ctx, the context of a
// Read or Write that has waited, has ended, err may be nil.
func (c *Conn) broken(ctx context.Context, err error) error {
	switch {
	case context.Cause(c.life) != nil:
		return context.Cause(c.life)
	case ctx.Err() != nil:
		return c.r.Context().Explain(context.Cause(ctx), c.peer)
	case errors.Is(err, rocl.ErrGone), errors.Is(err, rocl.ErrUnreachable):
		return fmt.Errorf("%w: %w", syscall.ECONNRESET, err)
	case errors.Is(err, rocl.ErrClosed):
		return fmt.Errorf("%w: %w", net.ErrClosed, err)
	}
	return err
}

// Write sends a copy of p, in messages of up to 64 KiB. It waits until the deadline while the
// peer's mailbox, which takes 1 MiB, has no room, or the context has no memory. A nil error means
// accepted, as with [rocl.Resource.Send]. If Write fails, the peer receives at most the first n
// bytes.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	ctx := c.wr.context()
	for {
		switch err := c.cause(ctx); {
		case err != nil:
			return n, c.fail("write", err)
		case c.isEnded:
			return n, c.fail("write", syscall.EPIPE)
		case n == len(p):
			return n, nil
		case !c.hasPeer.Load():
			if err := c.lost.Load(); err != nil {
				return n, c.fail("write", *err)
			}
			return n, c.fail("write", errReset)
		}
		piece := p[n:min(n+maxPiece, len(p))]
		if err := c.send(ctx, tagData, piece); err != nil {
			return n, c.fail("write", err)
		}
		n += len(piece)
	}
}

// send sends a message to the peer. writing must be held, except by linger.
func (c *Conn) send(ctx context.Context, tag uint64, p []byte) error {
	err := sendBytes(ctx, c.r, c.peer, tag, p)
	c.isStuck = err != nil && ctx.Err() != nil
	if err != nil {
		return c.broken(ctx, err)
	}
	return nil
}

// sendBytes sends a copy of p from r. It waits for memory until ctx ends.
func sendBytes(ctx context.Context, r *rocl.Resource, to rocl.GID, tag uint64, p []byte) error {
	err := r.SendBytes(ctx, to, tag, p)
	if !errors.Is(err, rocl.ErrLimit) {
		return err
	}
	b, err := r.Context().BufferWait(ctx, len(p))
	if err != nil {
		return err
	}
	copy(b.Bytes(), p)
	if err = r.Send(ctx, to, tag, b); err != nil {
		b.Release()
	}
	return err
}

// finish sends tag, which ends the stream, unless the end was sent or the peer is gone. writing
// must be held, except by linger.
func (c *Conn) finish(ctx context.Context, tag uint64) error {
	if c.isEnded || !c.hasPeer.Load() {
		return nil
	}
	err := c.send(ctx, tag, nil)
	c.isEnded = err == nil
	return err
}

// CloseWrite ends the stream to the peer. The peer reads io.EOF after the bytes that were written
// before. This end can still read. CloseWrite waits as Write does, and may be called again if it
// fails.
func (c *Conn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	ctx := c.wr.context()
	err := c.cause(ctx)
	if err == nil {
		err = c.finish(ctx, tagEnd)
	}
	if err != nil {
		return c.fail("close", err)
	}
	return nil
}

// Close ends the connection. A Read or Write that waits fails with net.ErrClosed. The peer reads
// what was written before, then io.EOF. What the peer writes from then on is lost, and its further
// Writes fail.
//
// Close waits, for a second at most, until the peer's mailbox has room for the end of the stream.
// It does not wait if a Write has waited for room in vain, or if bytes of the peer are unread. If
// Close could not send the end, a goroutine sends it within a minute. If the context is closed
// before that, or the process ends, the peer reads an error instead of io.EOF. The same happens, as
// with TCP, if the peer's mailbox is full and this end has not read everything that the peer has
// written.
func (c *Conn) Close() error {
	if !c.closing.CompareAndSwap(false, true) {
		return c.fail("close", net.ErrClosed)
	}
	c.end(net.ErrClosed)
	c.wakeReader()
	c.rd.stop()
	c.wr.stop()
	isUnread := c.drain()
	c.writing.Lock()
	ctx, cancel := context.WithTimeout(context.Background(), endMost)
	if c.isStuck || isUnread {
		cancel()
	}
	_ = c.finish(ctx, tagClose)
	c.writing.Unlock()
	cancel()
	go c.linger(isUnread)
	return nil
}

// drain drops all messages in the mailbox, and reports whether bytes of the stream were among them.
func (c *Conn) drain() (isUnread bool) {
	c.reading.Lock()
	defer c.reading.Unlock()
	if c.m != nil {
		c.m.Release()
		c.m, isUnread = nil, true
	}
	waiting, _ := c.r.Waiting()
	for range waiting + 1 { // a limit, because the peer may go on writing
		m, err := c.r.TryRecv()
		if err != nil {
			break
		}
		isUnread = c.isData(m) || isUnread
		m.Release()
	}
	return isUnread
}

// linger deletes the resource of a closed connection; a goroutine of its own runs it. Before that
// it sends the end of the stream, if Close could not, and waits until the peer ends its stream too.
// So what the peer sends meanwhile, above all its end, is not reported as undelivered. If bytes of
// the peer are unread, linger does not wait: the peer must learn that they are lost.
//
// linger needs no lock. Close has held both locks before, and any later operation sees that life
// has ended and touches nothing.
func (c *Conn) linger(isUnread bool) {
	ctx, cancel := context.WithTimeout(context.Background(), lingerMost)
	defer cancel()
	notified := make(chan struct{})
	go func() {
		defer close(notified)
		_ = c.finish(ctx, tagClose)
	}()
	for c.readErr == nil && !isUnread {
		m, err := c.r.Recv(ctx)
		if err != nil {
			break
		}
		isUnread = c.isData(m)
		m.Release()
	}
	if isUnread {
		cancel()
	}
	<-notified
	c.delete()
}

// reset deletes the resource at once: the peer reads an error.
func (c *Conn) reset() {
	c.closing.Store(true)
	c.end(net.ErrClosed)
	c.rd.stop()
	c.wr.stop()
	c.delete()
}

// delete ends the monitor and deletes the resource.
func (c *Conn) delete() {
	c.unmonitor()
	_ = c.r.Close()
}

// SetDeadline sets the deadlines of Read and of Write, also for operations that wait now. The zero
// time removes them.
func (c *Conn) SetDeadline(t time.Time) error { return c.set(t, &c.rd, &c.wr) }

// SetReadDeadline sets the deadline of Read, also for a Read that waits now. The zero time removes
// it.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.set(t, &c.rd) }

// SetWriteDeadline sets the deadline of Write and CloseWrite, also for one that waits now. The zero
// time removes it.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.set(t, &c.wr) }

// set sets the deadlines ds to t.
func (c *Conn) set(t time.Time, ds ...*deadline) error {
	if c.closing.Load() {
		return c.fail("set", net.ErrClosed)
	}
	for _, d := range ds {
		d.set(t)
	}
	return nil
}
