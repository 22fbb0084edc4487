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

// Attr is the name of an attribute that [Listen] adds to those of the caller. Its value is the
// version of the protocol, 1. Because of it [Dial] finds only listeners, and the command rocl find
// netrocl=1 lists them.
const Attr = "netrocl"

const (
	version = "1"

	// backlog limits how many connections wait for Accept. Further dialers wait in Dial.
	backlog = 128
)

// with returns the attributes a together with Attr.
func with(a rocl.Attributes) (*rocl.List, error) {
	l := new(rocl.List)
	if a != nil {
		if err := a.AppendAttrs(l); err != nil {
			return nil, err
		}
	}
	return l, l.Set(Attr, []byte(version))
}

// A Listener accepts connections to a resource; [Listen] returns it. All methods may be called
// concurrently.
type Listener struct {
	c     *rocl.Context
	r     *rocl.Resource  // the listener's resource
	ctx   context.Context // ends with Close, or when the context c is closed
	end   context.CancelCauseFunc
	slots chan struct{} // one for each connection in conns or being made
	conns chan *Conn    // connections that wait for Accept
	done  chan struct{} // closed when serve has returned
	close sync.Once
}

// A ListenOption changes one default of [Listen].
type ListenOption func(*listenConfig)

type listenConfig struct{ registration []rocl.RegisterOption }

// WithRegister adds options to the registration of the listener's resource, such as rocl.Unique.
func WithRegister(opts ...rocl.RegisterOption) ListenOption {
	return func(c *listenConfig) { c.registration = append(c.registration, opts...) }
}

// Listen registers a resource with the attributes a and [Attr], by which [Dial] finds it. The
// net.Listener is a *[Listener]. ctx limits the registration only. Listen fails as
// [rocl.Context.Register] does.
//
// Up to 128 connections are made in the background and wait for Accept.
func Listen(ctx context.Context, c *rocl.Context, a rocl.Attributes, opts ...ListenOption) (net.Listener, error) {
	var cfg listenConfig
	for _, o := range opts {
		if o != nil {
			o(&cfg)
		}
	}
	l, err := with(a)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	r, err := c.Register(ctx, l, cfg.registration...)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	ln := &Listener{c: c, r: r, slots: make(chan struct{}, backlog), conns: make(chan *Conn, backlog), done: make(chan struct{})}
	ln.ctx, ln.end = context.WithCancelCause(context.Background())
	go ln.serve()
	return ln, nil
}

// serve answers dialers until the listener ends. The listener's goroutine runs it.
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
		l.conns <- c // does not block: conns has room for each slot
	}
}

// connect returns the next connection. An error ends the listener.
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

// answer makes a connection with the origin of m, or sends it the reason why not.
func (l *Listener) answer(m *rocl.Message) (*Conn, error) {
	c, err := l.accept(m)
	if err != nil {
		reason := []byte(err.Error())
		if errors.Is(l.r.SendAndForget(l.ctx, m.From(), tagRefuse, reason), rocl.ErrLimit) {
			_ = sendBytes(l.ctx, l.r, m.From(), tagRefuse, reason)
		}
		return nil, err
	}
	if err := sendBytes(l.ctx, l.r, m.From(), tagAccept, []byte(c.r.ID().String())); err != nil {
		go c.reset()
		return nil, err
	}
	return c, nil
}

// accept registers the accepting end of a connection with the origin of m.
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

// Accept returns the next connection, a *[Conn]. It waits for one, and fails with net.ErrClosed
// when the listener or its context is closed.
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

// fail returns the *net.OpError of an operation that fails because of err.
func (l *Listener) fail(op string, err error) error {
	return &net.OpError{Op: op, Net: network, Addr: l.Addr(), Err: err}
}

// Close deletes the listener's resource, so that Dial does not find it any more, and resets the
// connections that wait for Accept. Connections that Accept has returned stay open. Close waits for
// the directory as [rocl.Resource.Close] does.
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

// Dial connects to a listener whose attributes match the pattern. If several match, Dial varies its
// choice, so that connections spread. If the chosen listener is gone, out of reach or refuses, Dial
// tries the others, and waits for a connection to each context once. The net.Conn is a *[Conn]. ctx
// limits the dialing only. Dial fails with rocl.ErrNotFound if no listener matches, and otherwise
// as [rocl.Context.Find] and [DialID] do.
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
	unreached := map[rocl.GID]bool{} // contexts
	for f, ferr := range c.FindAll(ctx, p, rocl.Want(Attr)) {
		if ferr != nil {
			break
		}
		if none := (*rocl.NoConnectionError)(nil); errors.As(err, &none) {
			unreached[none.Peer] = true
		}
		if f.ID == first.ID || unreached[f.ID.Context()] {
			continue
		}
		if conn, err = DialID(ctx, c, f.ID); !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
	}
	return nil, err
}

// DialID connects to the listener whose resource has the identifier id. The net.Conn is a *[Conn].
// ctx limits the dialing only. It must end for DialID to return if the listener lives but does not
// call Accept.
//
// DialID fails with syscall.ECONNREFUSED if the listener is gone, which rocl.ErrGone or
// rocl.ErrUnreachable matches too, or if it refuses. If no connection to the listener's context was
// made, the error has a *rocl.NoConnectionError with the reason. It fails with the cause of ctx's
// end, and otherwise as [rocl.Context.Register] does.
func DialID(ctx context.Context, c *rocl.Context, id rocl.GID) (net.Conn, error) {
	conn, err := dial(ctx, c, id)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: Addr{id}, Err: err}
	}
	return conn, nil
}

// dial registers the dialing end of a connection and asks the listener id for the other end.
func dial(ctx context.Context, c *rocl.Context, id rocl.GID) (_ *Conn, err error) {
	r, err := c.Register(ctx, nil, rocl.MailboxLimit(mailbox))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			go r.Close() // in a goroutine that needs no ctx, which may have ended
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

// ask asks a listener for a connection with r, and returns the resource of the other end.
func ask(ctx context.Context, r *rocl.Resource, listener rocl.GID) (peer rocl.GID, err error) {
	stop, err := r.Monitor(ctx, listener, tagGone)
	if err != nil {
		return peer, err
	}
	defer stop()
	if err := sendBytes(ctx, r, listener, tagDial, []byte(version)); err != nil {
		return peer, err
	}
	for {
		m, err := r.Recv(ctx, rocl.From(listener)) // From, because the other end may send data already
		if err != nil {
			return peer, err
		}
		gone, tag, text := m.GoneErr(), m.Tag(), string(m.Bytes())
		m.Release()
		switch {
		case gone != nil:
			return peer, gone
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
