// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/internal/node"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// Protocol: A takeover
//
// If the registration connection ends, another process serves the node, or will soon. The client
//
// 1. connects again, every 1 to 50 ms, and sends `join` with its identifier and token, and
//    `offers`, the number of its resources that the last server has acknowledged;
// 2. sends each of them, its own too, in a `register` with its revision, before anything else;
// 3. repeats the registrations that had no answer, with revision 1, and the questions.
//
// A client shows that it lives by a lock of one byte of `PATH.lock` (`F_OFD_SETLK`, `F_RDLCK`) at
// the offset of its context's number. It takes it when it has joined, and again when terms come and
// the file is another one. A new server denies nothing until each context with a lock has offered
// all, or was silent for 2 s, and for 30 s at most.

// join makes one registration connection. It announces that the resources of offers, which is
// called once there is a server, will be offered over it; nil means none.
func (c *Client) join(ctx context.Context, offers func() int) (*registrationConn, error) {
	nc, err := c.dial(ctx)
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("directory: joining: %w", context.Cause(ctx))
		}
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	k := wire.NewConn(nc)
	sent := c.sendJoin(k, offers)
	if err := c.readJoined(k, sent); err != nil {
		nc.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if isFinal := errors.Is(err, ErrDenied) || errors.Is(err, ErrProtocol) || ctx.Err() != nil; !isFinal {
			err = fmt.Errorf("%w: %w", ErrNoDirectory, err) // the server ended while the client joined
		}
		return nil, fmt.Errorf("directory: joining: %w", err)
	}
	return newRegistrationConn(k), nil
}

// sendJoin sends the greeting, then what join announces.
func (c *Client) sendJoin(k *wire.Conn, offers func() int) error {
	// The greeting goes first: from then on the server waits for the offer.
	_, err := k.Conn.Write(wire.Greeting(wire.KindRegistration))
	k.Begin(wire.MsgJoin, 0)
	k.GID(c.self)
	k.Append(c.token[:])
	var offer resource.List
	if c.member {
		_ = offer.Add(wire.JoinMember, nil)
	}
	if offers != nil {
		if n := offers(); n > 0 {
			_ = offer.Add(wire.JoinOffers, binary.LittleEndian.AppendUint64(nil, uint64(n)))
		}
	}
	k.Append(offer.Wire())
	if err != nil {
		return err
	}
	return k.Send()
}

// readJoined reads the server's answer to a join and takes the identifier, the token and the terms
// in it. sent is the error of sendJoin: the server may refuse before it has read everything.
func (c *Client) readJoined(k *wire.Conn, sent error) error {
	m, err := k.ReadMessage()
	switch {
	case err != nil:
		return cmp.Or(sent, err)
	case m.Type == wire.MsgError:
		return wire.ParseError(m.Body)
	case m.Type != wire.MsgJoined:
		return fmt.Errorf("%w: no answer to join", ErrProtocol)
	}
	p := m.Parser()
	self, token := p.GID(), p.Take(32)
	if err := c.takeTerms(p); err != nil {
		return err
	}
	if c.self.IsZero() {
		c.self = self
		copy(c.token[:], token)
	}
	c.show(k)
	return nil
}

// show shows that the context lives, to the server that follows the one at the other end of k.
func (c *Client) show(k *wire.Conn) {
	err := c.presence.Show(k.Conn, c.self)
	if err != nil && !c.isHidden {
		// Cause: a byte of `PATH.lock` cannot be locked. Remedy: give the program the folder, not
		// only the socket.
		c.log.Warn("directory: the next server will not wait for this context, and may deny its resources for a moment", "err", err)
	}
	c.isHidden = err != nil
}

// takeTerms makes the terms that end a message the present ones.
func (c *Client) takeTerms(p wire.Parser) error {
	l, err := p.List()
	if err != nil {
		return err
	}
	t, err := parseTerms(&l)
	if err != nil {
		return err
	}
	if old := c.terms.Swap(t); c.onTerms != nil && (old == nil || !old.equal(t)) {
		c.onTerms(*t)
	}
	return nil
}

// publish makes lc the connection that operations use. If the context no longer owns some of what
// was offered over lc, publish returns these identifiers instead: the server must forget them
// first. open is false when the client was closed meanwhile; Close does not wait for a connection
// that it has not seen.
func (c *Client) publish(lc *registrationConn, offered []offered) (forget []resource.GID, open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, false
	}
	for i := range offered {
		if c.owned[offered[i].id] != offered[i].own {
			forget = append(forget, offered[i].id)
		}
	}
	if len(forget) == 0 {
		c.conn = lc
		close(c.joined)
		c.busy.Go(lc.write)
	}
	return forget, true
}

// lost forgets lc, which has ended, and everything that leads to its server. It reports whether the
// client is closed. Only the first call for lc makes a new joined channel: callers of current
// already wait on it when the second call comes.
func (c *Client) lost(lc *registrationConn) (closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == lc {
		c.conn, c.joined = nil, make(chan struct{})
		c.dropIndexLocked()
		for _, a := range c.idle {
			a.c.Close()
		}
		c.idle = nil
	}
	return c.closed
}

// keepJoined reads the registration connection and replaces it when it ends. It runs in a goroutine
// of its own until the client is closed.
func (c *Client) keepJoined(lc *registrationConn) {
	for {
		c.readAnswers(lc)
		if closed := c.lost(lc); closed {
			return
		}
		c.log.Info("directory: server lost")
		if lc = c.rejoin(); lc == nil {
			return
		}
		pid, name := node.Process(lc.c.Conn)
		c.log.Info("directory: joined again", "program", name, "pid", pid)
	}
}

// readAnswers reads answers from lc until the connection ends.
func (c *Client) readAnswers(lc *registrationConn) {
	for {
		m, err := lc.c.ReadMessage()
		if err == nil && m.Type == wire.MsgTerms {
			if err = c.takeTerms(m.Parser()); err == nil {
				c.show(lc.c)
				continue
			}
			// Cause: the server's settings are not understood. Remedy: upgrade the older one.
			c.log.Warn("directory: invalid terms from the server", "err", err)
		}
		if err != nil {
			break
		}
		lc.answered(&m)
	}
	lc.c.Close()
	close(lc.gone)
}

// rejoin joins the next server, or becomes it, and offers what the context owns. It returns nil
// when the client is closed.
func (c *Client) rejoin() *registrationConn {
	backoff := time.Millisecond
	lastProblem := "" // the one that was logged last
	for {
		var all []offered
		lc, err := c.join(c.lifetime, func() int {
			all = c.owns()
			return len(all)
		})
		if errors.Is(err, ErrNoDirectory) && c.serve != nil {
			serveErr := c.serve(c.lifetime)
			if serveErr == nil {
				continue
			}
			if text := serveErr.Error(); text != lastProblem && !errors.Is(serveErr, ErrInUse) && c.lifetime.Err() == nil {
				lastProblem = text
				// Cause: no process serves, and this one cannot. Remedy: correct `err`, or start a
				// daemon.
				c.log.Warn("directory: cannot serve the node", "err", serveErr)
			}
		}
		if (errors.Is(err, ErrUntrusted) || errors.Is(err, ErrDenied)) && err.Error() != lastProblem {
			lastProblem = err.Error()
			// Cause: the new server is of another user or node. Remedy: restart the program.
			c.log.Warn("directory: not joining the directory that serves now", "err", err)
		}
		if err == nil {
			var open bool
			if open, err = c.offer(lc, all); open {
				return lc
			}
			lc.c.Close()
			if err == nil {
				return nil // the client was closed meanwhile
			}
		}
		if c.lifetime.Err() != nil {
			return nil
		}
		c.log.Debug("directory: joining again", "err", err)
		if sleep(c.lifetime, backoff/2+rand.N(backoff)) != nil {
			return nil
		}
		backoff = min(backoff*2, 50*time.Millisecond)
	}
}

// offered is a resource in the state in which it is offered to a new server.
type offered struct {
	id       resource.GID
	own      *own
	revision uint64
	attrs    resource.List
}

// owns returns what the context has registered. It leaves out a resource whose registration has not
// been answered: the caller of Register asks the next server again.
func (c *Client) owns() []offered {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]offered, 0, len(c.owned))
	for id, o := range c.owned {
		if o.revision > 0 {
			all = append(all, offered{id, o, o.revision, o.attrs})
		}
	}
	return all
}

// offer registers all, the resources that the context owned before it joined, with a new server.
// Then operations may use lc. Before that, the server learns which of them were deleted meanwhile.
// open is false if the client was closed meanwhile.
func (c *Client) offer(lc *registrationConn, all []offered) (open bool, err error) {
	stop := context.AfterFunc(c.lifetime, func() { lc.c.Close() })
	defer stop()
	err = c.sendAll(lc, len(all), func(b *wire.Builder, i int) {
		b.Begin(wire.MsgRegister, uint64(i))
		b.GID(all[i].id)
		b.U64(all[i].revision)
		b.Append(all[i].attrs.Wire())
	})
	for err == nil {
		var forget []resource.GID
		if forget, open = c.publish(lc, all); len(forget) == 0 {
			return open, nil
		}
		gone := make(map[resource.GID]bool, len(forget))
		for _, id := range forget {
			gone[id] = true
		}
		all = slices.DeleteFunc(all, func(o offered) bool { return gone[o.id] })
		err = c.sendAll(lc, len(forget), func(b *wire.Builder, i int) {
			b.Begin(wire.MsgDelete, uint64(i))
			b.GID(forget[i])
		})
	}
	return false, err
}

// sendAll writes n messages in a goroutine of its own, reads their answers meanwhile, and returns
// when both have ended.
func (c *Client) sendAll(lc *registrationConn, n int, message func(b *wire.Builder, i int)) error {
	wrote := make(chan error, 1)
	go func() {
		w := wire.NewConn(lc.c.Conn)
		for i := range n {
			message(&w.Builder, i)
			if err := w.Send(); err != nil {
				wrote <- err
				return
			}
		}
		wrote <- nil
	}()
	var err error
	for got := 0; got < n && err == nil; {
		m, e := lc.c.ReadMessage()
		switch {
		case e != nil:
			err = e
		case m.Type == wire.MsgTerms:
			err = c.takeTerms(m.Parser())
		default:
			got++
			if m.Type == wire.MsgError {
				// Cause: the next server refused a resource. Remedy: report a bug, unless two
				// servers ran.
				c.log.Warn("directory: offering again", "err", wire.ParseError(m.Body))
			}
		}
	}
	if err != nil {
		lc.c.Close()
	}
	return errors.Join(err, <-wrote)
}
