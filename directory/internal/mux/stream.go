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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/internal/os/netsource"
	"github.com/rocl-go/rocl/internal/os/sockerr"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
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
func (x *Mux) accept() {
	for {
		nc, err := x.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Cause: mostly no descriptors are left. Remedy: raise `LimitNOFILE`.
			x.often.Warn("", "mux: accepting", "err", err)
			select { // descriptors ran out: only time mends that
			case <-time.After(20 * time.Millisecond):
			case <-x.lifetime.Done():
				return
			}
			continue
		}
		s := x.admitStranger(nc)
		x.busy.Go(func() {
			stop := context.AfterFunc(x.lifetime, func() { nc.Close() })
			defer stop()
			if err := x.greet(s); err != nil {
				s.Close()
				x.count.StreamsRefused.Add(1)
				if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || sockerr.Is(err, syscall.EPIPE) || sockerr.Is(err, syscall.ECONNRESET) {
					x.log.Debug("mux: stream ended before it was accepted", "remote", nc.RemoteAddr(), "err", err)
					return
				}
				// Cause: as `mux: gossip refused`.
				x.often.Info(netsource.Of(nc.RemoteAddr()), "mux: stream refused", "remote", nc.RemoteAddr(), "err", err)
			}
		})
	}
}

// A stranger is a stream whose caller has not shown yet that it is a member. memberlist's streams
// stay strangers, because memberlist does not report when a caller has. There is room for
// maxPending strangers; then one gives way, see [subsys.Handshakes].
type stranger struct {
	net.Conn
	slot *subsys.Handshake
}

// admitStranger takes up a connection, for which the oldest stranger may have to give way.
func (x *Mux) admitStranger(c net.Conn) *stranger {
	return &stranger{c, x.waiting.Add(netsource.Of(c.RemoteAddr()), func() { c.Close() })}
}

// markKnown notes that the caller has shown that it is a member.
func (n *stranger) markKnown() { n.slot.Done() }

func (n *stranger) Close() error {
	n.markKnown()
	return n.Conn.Close()
}

// greet lets the caller of a stream prove that it is a member, reads the stream's first byte, and
// hands the stream to its user. If it returns an error, the caller must close s.
func (x *Mux) greet(s *stranger) error {
	_ = s.SetDeadline(time.Now().Add(helloTime))
	var c net.Conn = s
	if x.cfg.TLS.Server != nil { // before anything is believed, or said by this member
		var err error
		if c, err = x.cfg.TLS.Server(x.lifetime, s); err != nil {
			return err
		}
		s.markKnown()
	}
	c, first, err := peek(c)
	if err != nil {
		return err
	}
	switch first {
	case gossipByte:
		select {
		case x.streams <- c: // memberlist owns the stream now, and sets its own deadline
			return nil
		case <-x.lifetime.Done():
			return ErrClosed
		}
	case largeByte:
		return x.hearLarge(s, c)
	}
	s.markKnown()
	_ = s.SetDeadline(time.Time{})
	x.count.Streams.Add(1)
	x.cfg.Stream(c)
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
func (x *Mux) Dial(ctx context.Context, node resource.NodeID) (net.Conn, error) {
	to := x.peer(node)
	if to == nil {
		return nil, fmt.Errorf("%w: %012x", ErrUnknown, uint64(node))
	}
	return x.dial(ctx, to)
}

// dial opens a stream to a member, within helloTime.
func (x *Mux) dial(ctx context.Context, to *peer) (net.Conn, error) {
	if x.lifetime.Err() != nil {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, helloTime)
	defer cancel()
	c, err := x.DialAddr(ctx, hostPort(to.addr))
	if err != nil {
		return nil, fmt.Errorf("mux: dialling %012x: %w", uint64(to.node), err)
	}
	return c, nil
}

// DialAddr opens a stream to an address. It is sealed if streams are.
func (x *Mux) DialAddr(ctx context.Context, addr string) (net.Conn, error) {
	nc, err := x.dialStream(ctx, addr)
	if err != nil || x.cfg.TLS.Client == nil {
		return nc, err
	}
	c, err := x.cfg.TLS.Client(ctx, nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return c, nil
}

// dialStream opens a stream to an address, not sealed.
func (x *Mux) dialStream(ctx context.Context, addr string) (net.Conn, error) {
	if n := x.cfg.Network; n != nil {
		return n.DialContext(ctx, addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
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

var errForeign = errors.New("mux: the datagram is forged, replayed or from a node that is not a known member")

// hearLarge receives a payload by the stream c, passes it to Receive, and closes s. If it returns
// an error, the caller must close s.
func (x *Mux) hearLarge(s *stranger, c net.Conn) error {
	var head [1 + largeHead]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	refuse := func(count *atomic.Uint64) error {
		count.Add(1)
		return errForeign
	}
	n := counterOf(head[1:])
	from, plain := x.openPart(head[1:], kindLarge)
	if from == nil || len(plain) != 4 {
		return refuse(&x.count.Foreign)
	}
	if !from.first(n) {
		return refuse(&x.count.Replayed)
	}
	size := binary.LittleEndian.Uint32(plain)
	if size > MaxLarge {
		return fmt.Errorf("mux: %d bytes announced", size)
	}
	s.markKnown()
	_ = c.SetDeadline(time.Now().Add(x.cfg.largeTime))
	var b bytes.Buffer // grows as the bytes come: an announced length alone costs no memory
	if _, err := io.CopyN(&b, c, overhead+int64(size)); err != nil {
		return err
	}
	body := b.Bytes()
	again, plain := x.openPart(body, kindBody)
	if again != from || counterOf(body) != n+1 {
		return refuse(&x.count.Foreign)
	}
	s.Close() // the sender waits for it
	if x.lifetime.Err() == nil {
		x.count.Streams.Add(1)
		x.received(len(head) + len(body))
		x.cfg.Receive(from.node, nil, plain)
	}
	return nil
}

// openPart opens a part of a stream. from is nil if the part does not open.
func (x *Mux) openPart(b []byte, kind byte) (from *peer, plain []byte) {
	m := x.peer(senderOf(b))
	if m == nil || b[0] != magic || b[1] != kind {
		return nil, nil
	}
	k := x.keys.Load()
	k.each(b, func(b []byte, i int) (ok bool) {
		if plain, ok = open(b, x.opener(&m.session, "one", k, i)); ok {
			from = m
		}
		return ok
	})
	return from, plain
}

// sendLarge sends a payload in a goroutine of its own. The payload must not change afterwards.
func (x *Mux) sendLarge(to *peer, payload []byte) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.lifetime.Err() != nil {
		return
	}
	if to.large.Add(1) > mostLarge {
		to.large.Add(-1)
		return // dropped, as by a network that is overloaded
	}
	x.busy.Go(func() {
		defer to.large.Add(-1)
		select {
		case x.large <- struct{}{}:
			defer func() { <-x.large }()
		case <-x.lifetime.Done():
			return
		}
		n, err := x.writeLarge(to, payload)
		if err != nil {
			x.log.Debug("mux: sending", "to", to.addr, "err", err)
			return
		}
		x.count.Sent.Add(1)
		x.count.SentBytes.Add(uint64(n))
	})
}

// writeLarge sends a payload by a stream, and returns the bytes written.
func (x *Mux) writeLarge(to *peer, payload []byte) (int, error) {
	// It is sealed before the stream begins: the other side waits only helloTime for the head.
	k := x.keys.Load()
	n := to.sent.Add(2)
	size := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	b := append(make([]byte, 0, 1+largeHead+overhead+len(payload)), largeByte)
	b = seal(b, x.sealer(&to.session, "one", k), kindLarge, k.tags[0], x.cfg.Self, n-1, size)
	b = seal(b, x.sealer(&to.session, "one", k), kindBody, k.tags[0], x.cfg.Self, n, payload)
	c, err := x.dial(x.lifetime, to)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	stop := context.AfterFunc(x.lifetime, func() { c.Close() })
	defer stop()
	_ = c.SetDeadline(time.Now().Add(x.cfg.largeTime))
	if _, err := c.Write(b); err != nil {
		return 0, err
	}
	// If a socket is closed with unread bytes, as TLS has them, it throws away what it has not sent
	// yet. So the other side closes first.
	_, _ = c.Read(make([]byte, 1))
	return len(b), nil
}
