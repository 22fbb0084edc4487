// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rocl-go/rocl/directory/internal/index"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// askConn is a connection for questions. Only one goroutine uses it at a time.
type askConn struct {
	c *wire.Conn
	n uint64 // the number of the last question
}

const maxIdle = 8 // idle ask connections that a client keeps

// borrow returns an idle ask connection or makes a connection of a kind. It waits while no process
// serves.
func (c *Client) borrow(ctx context.Context, kind byte) (*askConn, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 && kind == wire.KindAsk {
		a := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		return a, nil
	}
	c.mu.Unlock()
	for {
		if _, err := c.current(ctx); err != nil {
			return nil, err
		}
		nc, err := c.dial(ctx)
		if err == nil {
			stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Now()) })
			_, err = nc.Write(wire.Greeting(kind))
			if stop(); err == nil {
				return &askConn{c: wire.NewConn(nc)}, nil
			}
			nc.Close()
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, ErrUntrusted) {
			return nil, err
		}
		// The server is ending: wait until the registration connection has ended too.
		if err := sleep(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// giveBack keeps a for the next question, or closes it.
func (c *Client) giveBack(a *askConn) {
	c.mu.Lock()
	if !c.closed && len(c.idle) < maxIdle {
		c.idle = append(c.idle, a)
		a = nil
	}
	c.mu.Unlock()
	if a != nil {
		a.c.Close()
	}
}

// errLost says that a question got no answer because the server has ended.
var errLost = errors.New("directory: server lost")

// ask sends one question over a and returns the answer.
func (a *askConn) ask(ctx context.Context, typ byte, body func(*wire.Builder)) (resource.Record, error) {
	b, err := a.exchange(ctx, typ, wire.MsgAnswer, body)
	if err != nil {
		return resource.Record{}, err
	}
	return wire.ParseRecord(b)
}

// exchange sends one question over a and returns the body of its answer, which must be of type
// want. The body is valid until the next call.
func (a *askConn) exchange(ctx context.Context, typ, want byte, body func(*wire.Builder)) ([]byte, error) {
	defer a.endWith(ctx)()
	if err := a.sendQuestion(ctx, typ, body); err != nil {
		return nil, err
	}
	return a.readAnswer(ctx, want)
}

// endWith ends what a reads and writes when ctx ends, until stop is called.
func (a *askConn) endWith(ctx context.Context) (stop func() bool) {
	if ctx.Done() == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(ctx, func() { _ = a.c.SetDeadline(time.Now()) })
}

// sendQuestion sends a question over a, unless ctx has ended.
func (a *askConn) sendQuestion(ctx context.Context, typ byte, body func(*wire.Builder)) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	a.n++
	a.c.Begin(typ, a.n)
	if body != nil {
		body(&a.c.Builder)
	}
	if err := a.c.Send(); err != nil {
		return endedBy(ctx, err)
	}
	return nil
}

// endedBy returns why a connection has failed: the cause of ctx if ctx has ended, else errLost.
func endedBy(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", errLost, err)
}

// readAnswer returns the body of the answer to the last question, which must be of type want. The
// body is valid until the next call.
func (a *askConn) readAnswer(ctx context.Context, want byte) ([]byte, error) {
	m, err := a.c.ReadMessage()
	switch {
	case err != nil:
		return nil, endedBy(ctx, err)
	case m.ID != a.n:
		return nil, fmt.Errorf("%w: answer to another question", ErrProtocol)
	case m.Type == wire.MsgError:
		return nil, wire.ParseError(m.Body)
	case m.Type == wire.MsgEnd:
		return nil, endOf(m.Body)
	case m.Type != want:
		return nil, fmt.Errorf("%w: message type %d", ErrProtocol, m.Type)
	}
	return m.Body, nil
}

// withConn calls put with an ask connection, and again with another one if the server is lost
// meanwhile.
func (c *Client) withConn(ctx context.Context, put func(*askConn) error) error {
	for {
		a, err := c.borrow(ctx, wire.KindAsk)
		if err != nil {
			return err
		}
		err = put(a)
		// If ctx has ended, a function of ctx may be about to change the deadline of the
		// connection.
		if (err == nil || errors.Is(err, ErrNotFound)) && ctx.Err() == nil {
			c.giveBack(a)
		} else {
			a.c.Close()
		}
		if !errors.Is(err, errLost) {
			return err
		}
	}
}

// once asks a question that has one answer.
func (c *Client) once(ctx context.Context, typ byte, body func(*wire.Builder)) (ans resource.Record, err error) {
	c.countQuestion()
	err = c.withConn(ctx, func(a *askConn) error {
		ans, err = a.ask(ctx, typ, body)
		return err
	})
	return ans, err
}

// localServer returns the server that this client can ask without a connection: the client has
// joined it, and it is in this process. It returns nil if there is none.
func (c *Client) localServer(ctx context.Context) *Server {
	if c.serving == nil || ctx.Err() != nil {
		return nil
	}
	c.mu.Lock()
	ok := c.conn != nil && !c.closed
	c.mu.Unlock()
	if !ok {
		return nil
	}
	return c.serving()
}

// Find returns one resource that matches, with the values that the pattern wants, or with all
// attributes if the pattern wants none. If the pattern has an order, Find returns the first
// resource in that order: see Best. It returns ErrNotFound if nothing matches, and ErrPartial if
// nothing was found and some nodes could not be asked.
func (c *Client) Find(ctx context.Context, pattern *resource.List) (resource.Record, error) {
	if pattern.Conditional() {
		if _, _, ordered := pattern.Order(); ordered {
			return c.Best(ctx, pattern, nil)
		}
	}
	if s := c.localServer(ctx); s != nil {
		if a, err := s.direct(ctx, pattern, func() (resource.Record, bool, error) { return s.find(ctx, pattern) }); !errors.Is(err, ErrClosed) {
			return a, err
		}
	}
	if a, err, ok := c.inIndex(ctx, pattern, false, func(r *index.Reader, buf []byte) (resource.Record, index.Verdict) { return r.Find(pattern, buf) }); ok {
		return a, err
	}
	return c.once(ctx, wire.MsgFind, func(b *wire.Builder) { b.Append(pattern.Wire()) })
}

// Lookup returns a resource by its identifier, with the attributes want, or all if want is empty.
// Its errors are those of Find.
func (c *Client) Lookup(ctx context.Context, id resource.GID, want ...string) (resource.Record, error) {
	p, err := resource.NewPattern(nil, want...)
	if err != nil {
		return resource.Record{}, err
	}
	if s := c.localServer(ctx); s != nil {
		if a, err := s.direct(ctx, p, func() (resource.Record, bool, error) { return s.lookup(ctx, id, p) }); !errors.Is(err, ErrClosed) {
			return a, err
		}
	}
	mine := id.Node() == c.self.Node() // then no other node can have it
	if a, err, ok := c.inIndex(ctx, p, mine, func(r *index.Reader, buf []byte) (resource.Record, index.Verdict) { return r.Lookup(id, buf) }); ok {
		return a, err
	}
	return c.once(ctx, wire.MsgLookup, func(b *wire.Builder) { b.GID(id); b.Append(p.Wire()) })
}
