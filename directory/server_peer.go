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

	"github.com/rocl-go/rocl/directory/internal/wire"
)

// ServePeer serves another member of the cluster until the connection ends, and closes nc. A member
// may watch what this node itself holds, and nothing else.
func (s *Server) ServePeer(nc net.Conn) { s.serveConn(timeoutConn{nc}, s.servePeer) }

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
	ctx, cancel := context.WithCancel(s.lifetime)
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
			return fmt.Errorf("directory: a member has stopped sending: %w", err)
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
		if len(p.watches) >= maxWatches || p.bytes+size > maxPatterns {
			return p.send(func(out *wire.Conn) error {
				return out.SendError(m.ID, fmt.Errorf("directory: a member may have %d watches here, with patterns of %d bytes together", maxWatches, maxPatterns))
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
