// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/image"
	"github.com/rocl-go/rocl/resource"
)

// askConn is a connection for questions, used by one goroutine at a time.
type askConn struct {
	c *codec
	n uint64
}

const maxIdle = 8

// borrow takes an ask connection, or makes one, waiting while nobody serves.
func (c *Client) borrow(ctx context.Context, kind byte) (*askConn, error) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 && kind == kindAsk {
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
			_, err = nc.Write(greeting(kind))
			if stop(); err == nil {
				return &askConn{c: newCodec(nc)}, nil
			}
			nc.Close()
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, ErrUntrusted) {
			return nil, err
		}
		// The server is going: wait for the life connection to notice.
		if err := sleep(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func (c *Client) giveBack(a *askConn) {
	c.mu.Lock()
	if !c.closed && len(c.idle) < maxIdle {
		c.idle = append(c.idle, a)
		a = nil
	}
	c.mu.Unlock()
	if a != nil {
		a.c.nc.Close()
	}
}

// errLost says that a question got no answer because the server is gone.
var errLost = errors.New("directory: server lost")

// ask puts one question over a and reads the answer.
func (a *askConn) ask(ctx context.Context, typ byte, body func(*codec)) (Answer, error) {
	b, err := a.exchange(ctx, typ, msgAnswer, body)
	if err != nil {
		return Answer{}, err
	}
	return ParseAnswer(b)
}

// exchange puts one question over a and reads the body of its answer, which is
// to be of type want, and is valid until the next.
func (a *askConn) exchange(ctx context.Context, typ, want byte, body func(*codec)) ([]byte, error) {
	if ctx.Err() != nil { // nothing has been said yet
		return nil, context.Cause(ctx)
	}
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { _ = a.c.nc.SetDeadline(time.Now()) })
		defer stop()
	}
	if err := a.say(typ, body); err != nil {
		return nil, endedBy(ctx, err)
	}
	return a.hear(ctx, want)
}

// say puts a question over a.
func (a *askConn) say(typ byte, body func(*codec)) error {
	a.n++
	a.c.begin(typ, a.n)
	if body != nil {
		body(a.c)
	}
	return a.c.send()
}

// endedBy returns why a connection has failed: because ctx has ended, or with the server.
func endedBy(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", errLost, err)
}

// hear reads the body of the answer to the last question, which is to be of type want. It is
// valid until the next.
func (a *askConn) hear(ctx context.Context, want byte) ([]byte, error) {
	m, err := a.c.read()
	switch {
	case err != nil:
		return nil, endedBy(ctx, err)
	case m.id != a.n:
		return nil, fmt.Errorf("%w: answer to another question", ErrProtocol)
	case m.typ == msgError:
		return nil, parseError(m.body)
	case m.typ == msgEnd:
		return nil, parseEnd(m.body)
	case m.typ != want:
		return nil, fmt.Errorf("%w: message type %d", ErrProtocol, m.typ)
	}
	return m.body, nil
}

// over lets put put a question over a connection, again if the server is lost
// meanwhile.
func (c *Client) over(ctx context.Context, put func(*askConn) error) error {
	for {
		a, err := c.borrow(ctx, kindAsk)
		if err != nil {
			return err
		}
		err = put(a)
		if (err == nil || errors.Is(err, ErrNotFound)) && ctx.Err() == nil { // else its deadline may be about to be moved
			c.giveBack(a)
		} else {
			a.c.nc.Close()
		}
		if !errors.Is(err, errLost) {
			return err
		}
	}
}

// once puts a question that has one answer.
func (c *Client) once(ctx context.Context, typ byte, body func(*codec)) (ans Answer, err error) {
	c.asks()
	err = c.over(ctx, func(a *askConn) error {
		ans, err = a.ask(ctx, typ, body)
		return err
	})
	return ans, err
}

// beside is the server this client can ask without a connection: it has joined
// it, and it is in this process.
func (c *Client) beside(ctx context.Context) *Server {
	if c.here == nil || ctx.Err() != nil {
		return nil
	}
	c.mu.Lock()
	ok := c.conn != nil && !c.closed
	c.mu.Unlock()
	if !ok {
		return nil
	}
	return c.here()
}

// Find returns one resource that matches, with the values the pattern wants,
// or all attributes if it wants none. If the pattern has an order, it is the first one
// in it: see Best. ErrNotFound.
func (c *Client) Find(ctx context.Context, pattern *resource.List) (Answer, error) {
	if pattern.Conditional() {
		if _, _, ordered := pattern.Order(); ordered {
			return c.Best(ctx, pattern, nil)
		}
		if err := c.understood(pattern); err != nil {
			return Answer{}, err
		}
	}
	if s := c.beside(ctx); s != nil {
		if a, err := s.direct(ctx, pattern, func() (database.Record, bool, error) { return s.find(ctx, pattern) }); !errors.Is(err, ErrClosed) {
			return a, err
		}
	}
	if a, err, ok := c.inImage(ctx, pattern, false, func(r *image.Reader, buf []byte) (image.Record, image.Verdict) { return r.Find(pattern, buf) }); ok {
		return a, err
	}
	return c.once(ctx, msgFind, func(k *codec) { k.bytes(pattern.Wire()) })
}

// Lookup returns a resource by its identifier. ErrNotFound.
func (c *Client) Lookup(ctx context.Context, id resource.GID, want ...string) (Answer, error) {
	p, err := resource.NewPattern(nil, want...)
	if err != nil {
		return Answer{}, err
	}
	if s := c.beside(ctx); s != nil {
		if a, err := s.direct(ctx, p, func() (database.Record, bool, error) { return s.lookup(ctx, id, p) }); !errors.Is(err, ErrClosed) {
			return a, err
		}
	}
	mine := id.Node() == c.self.Node() // then nobody else can have it
	if a, err, ok := c.inImage(ctx, p, mine, func(r *image.Reader, buf []byte) (image.Record, image.Verdict) { return r.Lookup(id, buf) }); ok {
		return a, err
	}
	return c.once(ctx, msgLookup, func(k *codec) { k.gid(id); k.bytes(p.Wire()) })
}
