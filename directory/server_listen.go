// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"fmt"
	"net"

	"github.com/rocl-go/rocl/directory/internal/node"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// Listen makes a server that serves the node at path. It creates the folder of path (0700) if
// necessary, and replaces a socket that a crash left behind. It fails with ErrInUse if another
// server serves the node.
func Listen(path string, opts ...Option) (*Server, error) {
	s := newServer(opts)
	if err := s.listen(path); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// listen makes s, which is new, the server of the node at path.
func (s *Server) listen(path string) error {
	var labels []byte // nil: the labels stay
	if s.labelled || s.daemon {
		labels = s.labels.wire()
	}
	id, err := s.node.Claim(path, labels)
	if err != nil {
		return err
	}
	s.id, s.labels = id, parseLabels(id.Labels)
	s.registerNode("")
	if err := s.membership(); err != nil {
		return err
	}
	if err := s.node.Open(); err != nil {
		return err
	}
	for _, second := range s.alsoAt {
		if err := s.node.OpenSecond(second); err != nil {
			return err
		}
	}
	s.markOpen()
	return nil
}

// Also makes a server of Listen serve at further paths too. The file PATH.node of a second path
// names the first one. A context that has joined at a second path does not serve there when the
// server ends, because another server may serve at the first path. It waits for the server to
// return.
func Also(paths ...string) Option {
	return func(s *Server) { s.alsoAt = append(s.alsoAt, paths...) }
}

// ListenTCP makes the server serve also at tcp://HOST:PORT of the loopback interface, and returns
// the address. If the port is 0, the kernel chooses it. A TCP socket has no owner, so both ends
// must know the node's key, which is in a file that only its user can read. The connection is not
// encrypted, so other addresses than loopback are refused.
func (s *Server) ListenTCP(addr string) (string, error) { return s.node.OpenTCP(addr) }

// Displaced returns a channel that is closed when the server has ended because another server
// serves the node. That happens if the files at its path were removed while it served.
func (s *Server) Displaced() <-chan struct{} { return s.node.Displaced() }

// Dialer returns a Dialer that connects to s itself, in memory.
func (s *Server) Dialer() Dialer {
	return func(context.Context) (net.Conn, error) {
		s.mu.Lock()
		closed := s.closed
		s.mu.Unlock()
		if closed {
			return nil, fmt.Errorf("%w: it was closed", ErrNoDirectory)
		}
		near, far := net.Pipe()
		go s.ServeConn(far)
		return near, nil
	}
}

// serveYield gives the node to a daemon: the socket's name and the open lock change hands, so that
// no other process can take the lock in between.
func (s *Server) serveYield(c *wire.Conn) error {
	s.mu.Lock()
	refused := s.daemon || s.isHandedOver || !c.CarriesDescriptors() || !s.node.CanHandOver()
	s.isHandedOver = s.isHandedOver || !refused
	s.mu.Unlock()
	if refused {
		return c.SendError(0, ErrInUse)
	}
	pid, name := node.Process(c.Conn)
	s.log.Info("directory: giving way to a daemon", "program", name, "pid", pid)
	err := s.node.HandOver(func(lock int) error { return c.SendDescriptor(0, 0, lock) })
	go s.Close()
	return err
}

// awaitsContexts reports whether a context that lived when the server began still lives and has not
// joined.
func (s *Server) awaitsContexts() bool {
	return s.node.Awaits(func(ctx uint64) bool { return s.hasJoined(resource.MakeGID(s.id.Node, ctx, 0)) })
}
