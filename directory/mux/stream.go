// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/rocl-go/rocl/internal/netsource"
	"github.com/rocl-go/rocl/resource"
)

const (
	helloTime  = 2 * time.Second // for a stranger to show that it is a member
	maxPending = 256             // strangers at a time
)

// TLS has the functions that seal streams, memberlist's among them. Without them streams are not
// sealed. Each function shakes hands over a stream and returns the connection inside. If it fails,
// the port closes the stream.
type TLS struct {
	Client, Server func(context.Context, net.Conn) (net.Conn, error)
}

// accept accepts streams until the port closes, and greets each in a goroutine of its own.
func (p *Mux) accept() {
	defer p.busy.Done()
	for {
		nc, err := p.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			p.often.Warn("", "mux: accepting", "err", err)
			select { // descriptors ran out: only time mends that
			case <-time.After(20 * time.Millisecond):
			case <-p.life.Done():
				return
			}
			continue
		}
		s := p.stranger(nc)
		p.busy.Add(1)
		go func() {
			defer p.busy.Done()
			stop := context.AfterFunc(p.life, func() { nc.Close() })
			defer stop()
			if err := p.greet(s); err != nil {
				s.Close()
				p.count.StreamsRefused.Add(1)
				p.often.Info(netsource.Of(nc.RemoteAddr()), "mux: stream refused", "remote", nc.RemoteAddr(), "err", err)
			}
		}()
	}
}

// greet lets the caller of a stream prove that it is a member, reads the stream's first byte, and
// hands the stream to its user. If it returns an error, the caller must close s.
func (p *Mux) greet(s *stranger) error {
	_ = s.SetDeadline(time.Now().Add(helloTime))
	var c net.Conn = s
	if p.cfg.TLS.Server != nil { // before anything is believed, or said by this member
		var err error
		if c, err = p.cfg.TLS.Server(p.life, s); err != nil {
			return err
		}
		s.known()
	}
	c, first, err := peek(c)
	if err != nil {
		return err
	}
	switch first {
	case gossipByte:
		select {
		case p.streams <- c: // memberlist owns the stream now, and sets its own deadline
			return nil
		case <-p.life.Done():
			return ErrClosed
		}
	case largeByte:
		return p.hearLarge(s, c)
	}
	s.known()
	_ = s.SetDeadline(time.Time{})
	p.count.Streams.Add(1)
	p.cfg.Stream(c)
	return nil
}

// A peeked is a connection whose first byte was read to learn its user. Read returns that byte
// again.
type peeked struct {
	net.Conn
	first []byte
}

// peek reads the first byte of c, and returns a connection that yields it again.
func peek(c net.Conn) (net.Conn, byte, error) {
	var first [1]byte
	_, err := io.ReadFull(c, first[:])
	return &peeked{c, first[:]}, first[0], err
}

func (c *peeked) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// Dial opens a stream to a member. The first byte written names the user of the stream. It must be
// neither of the two that the port takes itself.
func (p *Mux) Dial(ctx context.Context, node resource.NodeID) (net.Conn, error) {
	to := p.peer(node)
	if to == nil {
		return nil, fmt.Errorf("%w: %012x", ErrUnknown, uint64(node))
	}
	return p.dial(ctx, to)
}

// dial opens a stream to a member, within helloTime.
func (p *Mux) dial(ctx context.Context, to *peer) (net.Conn, error) {
	if p.life.Err() != nil {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	c, err := p.DialAddr(ctx, hostPort(to.addr))
	if err != nil {
		return nil, fmt.Errorf("mux: dialling %012x: %w", uint64(to.node), err)
	}
	return c, nil
}

// DialAddr opens a stream to an address. It is sealed if streams are.
func (p *Mux) DialAddr(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil || p.cfg.TLS.Client == nil {
		return nc, err
	}
	c, err := p.cfg.TLS.Client(ctx, nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// A payload that is too large for a datagram has a stream of its own. It is sealed as two
// datagrams, whose counters follow each other:
//
//	largeByte | head: length u32 | body
const (
	largeByte        = 'L'
	largeHead        = overhead + 4
	defaultLargeTime = 10 * time.Second
	mostLarge        = 32 // to one member, under way or waiting
)

var errForeign = errors.New("mux: forged, replayed, or of nobody known")

// hearLarge receives a payload by the stream c, passes it to Receive, and closes s. If it returns
// an error, the caller must close s.
func (p *Mux) hearLarge(s *stranger, c net.Conn) error {
	var head [1 + largeHead]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	n := counterOf(head[1:])
	from, plain := p.openPart(head[1:], kindLarge)
	if from == nil || len(plain) != 4 {
		p.count.Foreign.Add(1)
		return errForeign
	}
	if !from.first(n) {
		p.count.Replayed.Add(1)
		return errForeign
	}
	size := binary.LittleEndian.Uint32(plain)
	if size > MaxLarge {
		return fmt.Errorf("mux: %d bytes announced", size)
	}
	s.known()
	_ = c.SetDeadline(time.Now().Add(p.cfg.largeTime))
	var b bytes.Buffer // grows as the bytes come: an announced length alone costs no memory
	if _, err := io.CopyN(&b, c, overhead+int64(size)); err != nil {
		return err
	}
	body := b.Bytes()
	if counterOf(body) != n+1 || senderOf(body) != from.node {
		p.count.Foreign.Add(1)
		return errForeign
	}
	again, plain := p.openPart(body, kindBody)
	if again != from {
		p.count.Foreign.Add(1)
		return errForeign
	}
	s.Close() // the sender waits for it
	if p.life.Err() == nil {
		p.count.Streams.Add(1)
		p.received(len(head) + len(body))
		p.cfg.Receive(from.node, nil, plain)
	}
	return nil
}

// openPart opens a part of a stream. from is nil if the part does not open.
func (p *Mux) openPart(b []byte, kind byte) (from *peer, plain []byte) {
	m := p.peer(senderOf(b))
	if m == nil || b[0] != magic || b[1] != kind {
		return nil, nil
	}
	k := p.keys.Load()
	k.each(b, func(b []byte, i int) (ok bool) {
		if plain, ok = open(b, p.from(m, k, i)); ok {
			from = m
		}
		return ok
	})
	return from, plain
}

// sendLarge sends a payload in a goroutine of its own. The payload must not change afterwards.
func (p *Mux) sendLarge(to *peer, payload []byte) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.life.Err() != nil {
		return
	}
	if to.large.Add(1) > mostLarge {
		to.large.Add(-1)
		return // dropped, as by a network that is overloaded
	}
	p.busy.Add(1)
	go func() {
		defer p.busy.Done()
		defer to.large.Add(-1)
		select {
		case p.large <- struct{}{}:
			defer func() { <-p.large }()
		case <-p.life.Done():
			return
		}
		n, err := p.writeLarge(to, payload)
		if err != nil {
			p.log.Debug("mux: sending", "to", to.addr, "err", err)
			return
		}
		p.count.Sent.Add(1)
		p.count.SentBytes.Add(uint64(n))
	}()
}

// writeLarge sends a payload by a stream, and returns the bytes written.
func (p *Mux) writeLarge(to *peer, payload []byte) (int, error) {
	c, err := p.dial(p.life, to)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	stop := context.AfterFunc(p.life, func() { c.Close() })
	defer stop()
	_ = c.SetDeadline(time.Now().Add(p.cfg.largeTime))
	k := p.keys.Load()
	n := to.sent.Add(2)
	size := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	b := append(make([]byte, 0, 1+largeHead+overhead+len(payload)), largeByte)
	b = seal(b, p.to(to, k), kindLarge, k.tags[0], p.cfg.Self, n-1, size)
	b = seal(b, p.to(to, k), kindBody, k.tags[0], p.cfg.Self, n, payload)
	if _, err := c.Write(b); err != nil {
		return 0, err
	}
	// If a socket is closed with unread bytes, as TLS has them, it throws away what it has not sent
	// yet. So the other side closes first.
	_, _ = c.Read(make([]byte, 1))
	return len(b), nil
}
