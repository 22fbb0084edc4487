// SPDX-License-Identifier: Apache-2.0

package netrocl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"github.com/rocl-go/rocl"
)

// Attr is an attribute that Listen gives to its resource beside those of the caller. Its
// value is the version of the protocol, 1. So Dial finds no resource of another kind, and
// rocl find netrocl=1 lists the listeners.
const Attr = "netrocl"

const (
	version = "1"

	// backlog is how many connections wait for Accept. Further ones wait in Dial.
	backlog = 128
)

// with returns the attributes a, and that of a listener.
func with(a rocl.Attributes) (*rocl.List, error) {
	l := new(rocl.List)
	if a != nil {
		if err := a.AppendAttrs(l); err != nil {
			return nil, err
		}
	}
	return l, l.Set(Attr, []byte(version))
}

// A Listener is what [Listen] returns. All methods may be called concurrently.
type Listener struct {
	c     *rocl.Context
	r     *rocl.Resource
	ctx   context.Context // until Close, or the end of the context
	end   context.CancelCauseFunc
	slots chan struct{} // of the backlog
	conns chan *Conn
	done  chan struct{} // the goroutine has ended
	close sync.Once
}

// Listen registers a resource with the attributes a and [Attr], with which [Dial] connects.
// The net.Listener is a *[Listener]. ctx bounds the registration only. Listen fails as
// [rocl.Context.Register] does.
//
// Connections are made in the background, also before Accept is called, up to 128.
func Listen(ctx context.Context, c *rocl.Context, a rocl.Attributes) (net.Listener, error) {
	l, err := with(a)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	r, err := c.Register(ctx, l)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	ln := &Listener{c: c, r: r, slots: make(chan struct{}, backlog), conns: make(chan *Conn, backlog), done: make(chan struct{})}
	ln.ctx, ln.end = context.WithCancelCause(context.Background())
	go ln.serve()
	return ln, nil
}

// serve connects those that dial.
func (l *Listener) serve() {
	defer close(l.done)
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.ctx.Done():
			return
		}
		c, err := l.connect()
		if err != nil {
			l.end(fmt.Errorf("%w: %w", net.ErrClosed, err))
			return
		}
		l.conns <- c // has room for each slot
	}
}

// connect returns the next connection. An error is the end of the listener.
func (l *Listener) connect() (*Conn, error) {
	for {
		m, err := l.r.Recv(l.ctx)
		if err != nil {
			return nil, err
		}
		if m.Tag() != tagDial {
			m.Release()
			continue
		}
		c, err := l.answer(m)
		m.Release()
		if err == nil {
			return c, nil
		}
		if errors.Is(err, rocl.ErrClosed) || l.ctx.Err() != nil {
			return nil, err
		}
	}
}

// answer connects the origin of m, or tells it why not.
func (l *Listener) answer(m *rocl.Message) (*Conn, error) {
	c, err := l.accept(m)
	if err != nil {
		_ = l.r.SendBytes(l.ctx, m.From(), tagRefuse, []byte(err.Error()))
		return nil, err
	}
	if err := l.r.SendBytes(l.ctx, m.From(), tagAccept, []byte(c.r.ID().String())); err != nil {
		go c.reset()
		return nil, err
	}
	return c, nil
}

func (l *Listener) accept(m *rocl.Message) (*Conn, error) {
	if string(m.Bytes()) != version {
		return nil, fmt.Errorf("netrocl: the listener has version %s of the protocol", version)
	}
	r, err := l.c.Register(l.ctx, nil, rocl.MailboxLimit(mailbox))
	if err != nil {
		return nil, err
	}
	c, err := newConn(r, m.From(), l.r.ID(), m.From())
	if err != nil {
		go r.Close()
	}
	return c, err
}

// Accept returns the next connection, a *[Conn]. It fails with net.ErrClosed when the listener
// or its context is closed.
func (l *Listener) Accept() (net.Conn, error) {
	if l.ctx.Err() == nil {
		select {
		case c := <-l.conns:
			<-l.slots
			return c, nil
		case <-l.ctx.Done():
		}
	}
	return nil, l.fail("accept", context.Cause(l.ctx))
}

func (l *Listener) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Addr: l.Addr(), Err: err}
}

// Close deletes the resource, so that no further Dial finds it, and resets the connections
// that wait for Accept. Those that Accept returned stay. It waits
// for the directory as [rocl.Resource.Close] does.
func (l *Listener) Close() error {
	err := net.ErrClosed
	l.close.Do(func() {
		l.end(net.ErrClosed)
		<-l.done
		err = l.r.Close()
		l.clear()
	})
	if err != nil {
		return l.fail("close", err)
	}
	return nil
}

// clear resets the connections that wait for Accept.
func (l *Listener) clear() {
	for {
		select {
		case c := <-l.conns:
			go c.reset()
		default:
			return
		}
	}
}

// Addr returns the address of the listener, an [Addr].
func (l *Listener) Addr() net.Addr { return Addr{l.r.ID()} }

// Dial connects to a listener whose attributes match the pattern. Where several do, any of them
// is chosen, so that connections spread; if it is gone, the others are tried. The net.Conn is
// a *[Conn]. ctx bounds the dialing only. Dial fails with rocl.ErrNotFound where no listener
// matches, and otherwise as [rocl.Context.Find] and [DialID] do.
func Dial(ctx context.Context, c *rocl.Context, pattern rocl.Attributes) (net.Conn, error) {
	p, err := with(pattern)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	first, err := c.Find(ctx, p, rocl.Want(Attr))
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	conn, err := DialID(ctx, c, first.ID)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return conn, err
	}
	for f, ferr := range c.FindAll(ctx, p, rocl.Want(Attr)) {
		if ferr != nil {
			break
		}
		if f.ID == first.ID {
			continue
		}
		if conn, err := DialID(ctx, c, f.ID); !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
	}
	return nil, err
}

// DialID connects to the listener whose resource has this identifier. ctx bounds the
// dialing only, and must end for a listener that lives and does not Accept. DialID fails with
// syscall.ECONNREFUSED, which rocl.ErrGone or rocl.ErrUnreachable matches too, where the listener
// is gone, or refuses; or with the cause of ctx's end.
func DialID(ctx context.Context, c *rocl.Context, id rocl.GID) (net.Conn, error) {
	conn, err := dial(ctx, c, id)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: Addr{id}, Err: err}
	}
	return conn, nil
}

func dial(ctx context.Context, c *rocl.Context, id rocl.GID) (_ *Conn, err error) {
	r, err := c.Register(ctx, nil, rocl.MailboxLimit(mailbox))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			go r.Close() // ctx may have ended
		}
	}()
	peer, err := ask(ctx, r, id)
	if errors.Is(err, rocl.ErrGone) || errors.Is(err, rocl.ErrUnreachable) {
		err = fmt.Errorf("%w: %w", syscall.ECONNREFUSED, err)
	}
	if err != nil {
		return nil, err
	}
	return newConn(r, peer, r.ID(), id)
}

// ask asks a listener for a connection with r, and returns its other end.
func ask(ctx context.Context, r *rocl.Resource, listener rocl.GID) (peer rocl.GID, err error) {
	stop, err := r.Monitor(ctx, listener, tagGone)
	if err != nil {
		return peer, err
	}
	defer stop()
	if err := r.SendBytes(ctx, listener, tagDial, []byte(version)); err != nil {
		return peer, err
	}
	for {
		m, err := r.Recv(ctx, rocl.From(listener)) // the other end may send already
		if err != nil {
			return peer, err
		}
		isGone, tag, text := m.IsGone(), m.Tag(), string(m.Bytes())
		m.Release()
		switch {
		case isGone:
			return peer, rocl.ErrGone
		case tag == tagRefuse:
			return peer, fmt.Errorf("%w: %s", syscall.ECONNREFUSED, text)
		case tag == tagAccept:
			if peer, err = rocl.ParseGID(text); err != nil {
				return peer, fmt.Errorf("netrocl: what the listener says: %w", err)
			}
			return peer, nil
		}
	}
}
