// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"fmt"
	"net"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

const (
	// BeatTime is the interval at which each end of a connection between members sends a beat.
	BeatTime = time.Second
	// peerTimeout is how long the other end may send nothing, or take nothing, before the
	// connection ends.
	peerTimeout = 4 * BeatTime
	// maxWatches limits the watches of another member, and maxPatterns the bytes of their
	// patterns together.
	maxWatches  = 1 << 14
	maxPatterns = 64 << 20
	// peerPiece is the number of bytes written at a time. A member that takes as much within
	// peerTimeout is alive.
	peerPiece = 64 << 10
)

// timeoutConn is a connection that ends when the other end sends nothing, or takes nothing, for
// peerTimeout.
type timeoutConn struct{ net.Conn }

func (l timeoutConn) Read(b []byte) (int, error) {
	if err := l.SetReadDeadline(time.Now().Add(peerTimeout)); err != nil {
		return 0, err
	}
	return l.Conn.Read(b)
}

func (l timeoutConn) Write(b []byte) (n int, err error) {
	for err == nil && n < len(b) {
		var k int
		if err = l.SetWriteDeadline(time.Now().Add(peerTimeout)); err == nil {
			k, err = l.Conn.Write(b[n:min(len(b), n+peerPiece)])
			n += k
		}
	}
	return n, err
}

// A Peer is a connection to another member's server, which carries any number of watches. One
// goroutine may read and one write at the same time.
type Peer struct {
	in, out *wire.Conn
}

// NewPeer makes a Peer of a connection to a server that calls ServePeer for it.
func NewPeer(nc net.Conn) (*Peer, error) {
	nc = timeoutConn{nc}
	if _, err := nc.Write(wire.Greeting(wire.KindPeer)); err != nil {
		return nil, fmt.Errorf("directory: greeting a member: %w", err)
	}
	return &Peer{wire.NewConn(nc), wire.NewConn(nc)}, nil
}

// Watch begins a watch under a number that the caller chooses.
func (p *Peer) Watch(id uint64, pattern *resource.List) error {
	p.out.Begin(wire.MsgWatch, id)
	p.out.Append(pattern.Wire())
	return p.out.Send()
}

// Stop ends a watch. Events of the watch may still come.
func (p *Peer) Stop(id uint64) error {
	p.out.Begin(wire.MsgStop, id)
	return p.out.Send()
}

// Beat tells the other member that this one is alive. It must be called each BeatTime.
func (p *Peer) Beat() error {
	p.out.Begin(wire.MsgBeat, 0)
	return p.out.Send()
}

// Next returns the next event and the number of its watch. refused says why the server refused the
// watch id. After any other error the connection has ended.
func (p *Peer) Next() (id uint64, ev Event, refused, err error) {
	for {
		m, err := p.in.ReadMessage()
		switch {
		case err != nil:
			return 0, ev, nil, fmt.Errorf("%w: %w", errLost, err)
		case m.Type == wire.MsgBeat:
			continue
		case m.Type == wire.MsgError:
			return m.ID, ev, wire.ParseError(m.Body), nil
		}
		ev, err = wire.ParseEvent(&m)
		return m.ID, ev, nil, err
	}
}

// Close ends the connection, and with it calls under way.
func (p *Peer) Close() error { return p.in.Close() }
