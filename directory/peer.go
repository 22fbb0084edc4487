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
	"github.com/rocl-go/rocl/resource"
)

const (
	// BeatTime is how often each end of a connection between members says that
	// it is there.
	BeatTime = time.Second
	// peerPatience is how long nothing may come, or be taken.
	peerPatience = 4 * BeatTime
	// mostWatches is how many watches of another member are served, and mostPatterns how
	// many bytes their patterns have together.
	mostWatches  = 1 << 14
	mostPatterns = 64 << 20
	// peerPiece is what is written at a time: whoever takes so much within
	// peerPatience is there.
	peerPiece = 64 << 10
)

// lively is a connection that ends when the other end is silent, or takes
// nothing, for peerPatience.
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

// ServePeer serves another member of the cluster until the connection ends; it
// closes nc. A member may watch what this node itself holds, and nothing else.
func (s *Server) ServePeer(nc net.Conn) { s.serveConn(lively{nc}, s.servePeer) }

func (s *Server) servePeer(c *codec) error {
	kind, err := c.greeted()
	if err != nil {
		return err
	}
	if kind != kindPeer {
		return fmt.Errorf("%w: a member begins with kind %d", ErrProtocol, kind)
	}
	p := peerServer{s: s, out: codec{nc: c.nc}, watches: map[uint64]peerWatch{}}
	ctx, cancel := context.WithCancel(s.life)
	defer p.busy.Wait()
	defer c.nc.Close() // whoever writes stops
	defer cancel()
	p.busy.Go(func() { p.beat(ctx) })
	for {
		m, err := c.read()
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

// peerServer serves one member.
type peerServer struct {
	s       *Server
	busy    sync.WaitGroup
	mu      sync.Mutex // of out
	out     codec
	watches map[uint64]peerWatch
	bytes   int // of their patterns
}

// peerWatch is one watch of a member.
type peerWatch struct {
	end   context.CancelFunc
	bytes int // of its pattern
}

func (p *peerServer) handle(ctx context.Context, m *message) error {
	switch m.typ {
	case msgBeat:
		return nil
	case msgStop:
		if w, ok := p.watches[m.id]; ok {
			w.end()
			p.bytes -= w.bytes
			delete(p.watches, m.id)
		}
		return nil
	case msgWatch:
		if _, ok := p.watches[m.id]; ok {
			return fmt.Errorf("%w: watch %d is there already", ErrProtocol, m.id)
		}
		b := parser{b: m.body}
		l, err := b.list()
		if err != nil {
			return err
		}
		size := len(l.Wire())
		if len(p.watches) >= mostWatches || p.bytes+size > mostPatterns {
			return p.send(func(out *codec) error {
				return out.sendError(m.id, fmt.Errorf("directory: a member may have %d watches here, with patterns of %d bytes together", mostWatches, mostPatterns))
			})
		}
		l = l.Clone()
		w := p.s.watch(&l)
		ctx, cancel := context.WithCancel(ctx)
		p.watches[m.id] = peerWatch{cancel, size}
		p.bytes += size
		id := m.id
		p.busy.Go(func() {
			defer w.Close()
			for {
				ev, err := w.Next(ctx)
				if err == nil {
					err = p.send(func(out *codec) error {
						out.event(id, &ev, &l)
						return out.send()
					})
				}
				if err != nil {
					return
				}
			}
		})
		return nil
	}
	return fmt.Errorf("%w: message type %d", ErrProtocol, m.typ)
}

func (p *peerServer) beat(ctx context.Context) {
	t := time.NewTicker(BeatTime)
	defer t.Stop()
	for {
		err := p.send(func(out *codec) error {
			out.begin(msgBeat, 0)
			return out.send()
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

// send lets one write. A connection that cannot be written has ended.
func (p *peerServer) send(write func(*codec) error) error {
	p.mu.Lock()
	err := write(&p.out)
	p.mu.Unlock()
	if err != nil {
		p.out.nc.Close()
	}
	return err
}

// A Peer is a connection to another member's server, over which any number of
// watches go. One goroutine may read and one write, side by side.
type Peer struct {
	in, out *codec
}

// NewPeer makes a peer of a connection to a server's ServePeer.
func NewPeer(nc net.Conn) (*Peer, error) {
	nc = lively{nc}
	if _, err := nc.Write(greeting(kindPeer)); err != nil {
		return nil, fmt.Errorf("directory: greeting a member: %w", err)
	}
	return &Peer{newCodec(nc), &codec{nc: nc}}, nil
}

// Watch begins a watch under a number of the caller's.
func (p *Peer) Watch(id uint64, pattern *resource.List) error {
	p.out.begin(msgWatch, id)
	p.out.bytes(pattern.Wire())
	return p.out.send()
}

// Stop ends a watch. Events of it may still come.
func (p *Peer) Stop(id uint64) error {
	p.out.begin(msgStop, id)
	return p.out.send()
}

// Beat says that we are there. It must be called each BeatTime.
func (p *Peer) Beat() error {
	p.out.begin(msgBeat, 0)
	return p.out.send()
}

// Next returns the next event and the watch it is of, or why a watch was
// refused. With another error the connection has ended.
func (p *Peer) Next() (id uint64, ev Event, refused, err error) {
	for {
		m, err := p.in.read()
		switch {
		case err != nil:
			return 0, ev, nil, fmt.Errorf("%w: %w", errLost, err)
		case m.typ == msgBeat:
			continue
		case m.typ == msgError:
			return m.id, ev, parseError(m.body), nil
		}
		ev, err = parseEvent(&m)
		return m.id, ev, nil, err
	}
}

// Close ends the connection, and so do calls under way.
func (p *Peer) Close() error { return p.in.nc.Close() }

// attached is a watch of a context, with the part of it that is elsewhere.
type attached struct {
	w       *database.Watch
	pattern *resource.List
	end     func() // of the part elsewhere; nil if there is none
}

// attach lets a watch be told what is elsewhere as well, by whoever is attached
// now or later.
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

// reattach lets all watches be told by r.
func (s *Server) reattach(r Remote) {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	for a := range s.watches {
		before := a.end
		a.end = r.Watch(a.pattern, a.w) // which holds it before the other lets it go
		if before != nil {
			before()
		}
	}
}
