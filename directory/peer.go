// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

const (
	// BeatTime is the interval at which each end of a connection between members sends a beat.
	BeatTime = time.Second
	// peerPatience is how long the other end may send nothing, or take nothing, before the
	// connection ends.
	peerPatience = 4 * BeatTime
	// mostWatches limits the watches of another member, and mostPatterns the bytes of their
	// patterns together.
	mostWatches  = 1 << 14
	mostPatterns = 64 << 20
	// peerPiece is the number of bytes written at a time. A member that takes as much within
	// peerPatience is alive.
	peerPiece = 64 << 10
)

// lively is a connection that ends when the other end sends nothing, or takes nothing, for
// peerPatience.
type lively struct{ net.Conn }

func (l lively) Read(b []byte) (int, error) {
	if err := l.SetReadDeadline(time.Now().Add(peerPatience)); err != nil {
		return 0, err
	}
	return l.Conn.Read(b)
}

func (l lively) Write(b []byte) (n int, err error) {
	for err == nil && n < len(b) {
		var k int
		if err = l.SetWriteDeadline(time.Now().Add(peerPatience)); err == nil {
			k, err = l.Conn.Write(b[n:min(len(b), n+peerPiece)])
			n += k
		}
	}
	return n, err
}

// ServePeer serves another member of the cluster until the connection ends, and closes nc. A member
// may watch what this node itself holds, and nothing else.
func (s *Server) ServePeer(nc net.Conn) { s.serveConn(lively{nc}, s.servePeer) }

// servePeer carries out what a member sends, until the connection ends.
func (s *Server) servePeer(c *wire.Conn) error {
	kind, err := c.ReadGreeting()
	if err != nil {
		return err
	}
	if kind != wire.KindPeer {
		return fmt.Errorf("%w: a member begins with kind %d", ErrProtocol, kind)
	}
	p := peerServer{s: s, out: *wire.NewConn(c.Conn), watches: map[uint64]peerWatch{}}
	ctx, cancel := context.WithCancel(s.life)
	defer p.busy.Wait()
	defer c.Close() // ends writes under way
	defer cancel()
	p.busy.Go(func() { p.beat(ctx) })
	for {
		m, err := c.ReadMessage()
		if err == nil {
			err = p.handle(ctx, &m)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("directory: a member says nothing any more: %w", err)
		}
		if err != nil {
			return err
		}
	}
}

// peerServer serves one member. The goroutine of the connection uses watches and bytes.
type peerServer struct {
	s       *Server
	busy    sync.WaitGroup
	mu      sync.Mutex // guards out
	out     wire.Conn
	watches map[uint64]peerWatch
	bytes   int // of the patterns of all watches
}

// peerWatch is one watch of a member.
type peerWatch struct {
	end   context.CancelFunc // ends the watch
	bytes int                // of its pattern
}

// handle carries out one message of the member.
func (p *peerServer) handle(ctx context.Context, m *wire.Message) error {
	switch m.Type {
	case wire.MsgBeat:
		return nil
	case wire.MsgStop:
		if w, ok := p.watches[m.ID]; ok {
			w.end()
			p.bytes -= w.bytes
			delete(p.watches, m.ID)
		}
		return nil
	case wire.MsgWatch:
		if _, ok := p.watches[m.ID]; ok {
			return fmt.Errorf("%w: watch %d is there already", ErrProtocol, m.ID)
		}
		b := m.Parser()
		l, err := b.List()
		if err != nil {
			return err
		}
		size := len(l.Wire())
		if len(p.watches) >= mostWatches || p.bytes+size > mostPatterns {
			return p.send(func(out *wire.Conn) error {
				return out.SendError(m.ID, fmt.Errorf("directory: a member may have %d watches here, with patterns of %d bytes together", mostWatches, mostPatterns))
			})
		}
		l = l.Clone()
		w := p.s.watch(&l)
		ctx, cancel := context.WithCancel(ctx)
		p.watches[m.ID] = peerWatch{cancel, size}
		p.bytes += size
		id := m.ID
		p.busy.Go(func() {
			defer w.Close()
			for {
				ev, err := w.Next(ctx)
				if err == nil {
					err = p.send(func(out *wire.Conn) error {
						out.Event(id, &ev, &l)
						return out.Send()
					})
				}
				if err != nil {
					return
				}
			}
		})
		return nil
	}
	return fmt.Errorf("%w: message type %d", ErrProtocol, m.Type)
}

// beat sends a beat each BeatTime until ctx ends or the connection cannot be written.
func (p *peerServer) beat(ctx context.Context) {
	t := time.NewTicker(BeatTime)
	defer t.Stop()
	for {
		err := p.send(func(out *wire.Conn) error {
			out.Begin(wire.MsgBeat, 0)
			return out.Send()
		})
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// send calls write with out locked. If writing fails, send closes the connection.
func (p *peerServer) send(write func(*wire.Conn) error) error {
	p.mu.Lock()
	err := write(&p.out)
	p.mu.Unlock()
	if err != nil {
		p.out.Close()
	}
	return err
}

// A Peer is a connection to another member's server, which carries any number of watches. One
// goroutine may read and one write at the same time.
type Peer struct {
	in, out *wire.Conn
}

// NewPeer makes a Peer of a connection to a server that calls ServePeer for it.
func NewPeer(nc net.Conn) (*Peer, error) {
	nc = lively{nc}
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

// attached is a watch of a context, with the part of it on other nodes.
type attached struct {
	w       *database.Watch
	pattern *resource.List
	end     func() // ends the part on other nodes; nil if there is none
}

// attach extends a watch to the resources of other nodes, through the Remote that is attached now
// or later. end must be called when the watch ends.
func (s *Server) attach(w *database.Watch, pattern *resource.List) (end func()) {
	a := &attached{w: w, pattern: pattern}
	s.wmu.Lock()
	defer s.wmu.Unlock()
	s.watches[a] = struct{}{}
	if remote := s.rest(); remote != nil {
		a.end = remote.Watch(pattern, w)
	}
	return func() {
		s.wmu.Lock()
		defer s.wmu.Unlock()
		delete(s.watches, a)
		if a.end != nil {
			a.end()
		}
	}
}

// reattach moves the watches to r, which takes the place of the former Remote.
func (s *Server) reattach(r Remote) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	for a := range s.watches {
		before := a.end
		a.end = r.Watch(a.pattern, a.w) // r holds Synced of a.w before the former Remote releases it
		if before != nil {
			before()
		}
	}
}
