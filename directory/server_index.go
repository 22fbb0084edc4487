// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/os/memfd"
)

// WithoutIndex keeps a server from making an index of its database. All questions then come over
// the socket.
func WithoutIndex() Option { return func(s *Server) { s.index.off = true } }

// Errors of a request for the index: the server has none, or the connection cannot carry a
// descriptor.
var (
	errNoIndex = errors.New("directory: no index")
	errNotUnix = errors.New("directory: no Unix socket, over which alone an index comes")
)

// indexState is the server's state of the index.
type indexState struct {
	off     bool       // WithoutIndex was given
	mu      sync.Mutex // held while an index is made; guards all below
	ours    bool       // this server has made the database's present index
	problem string     // the reason that was logged last why there is none
}

// serveIndex hands the index to a context that has joined.
func (s *Server) serveIndex(c *wire.Conn) error {
	m, err := c.ReadMessage()
	if err != nil {
		return err
	}
	p := m.Parser()
	self, token := p.GID(), p.Take(32)
	if err := p.End(); err != nil || m.Type != wire.MsgIndex {
		return fmt.Errorf("%w: not a request for the index", ErrProtocol)
	}
	want := s.id.Token(self)
	switch {
	case !s.hasJoined(self) || !hmac.Equal(want[:], token):
		return c.SendError(m.ID, fmt.Errorf("%w: it does not know the context %v", ErrDenied, self))
	case !c.CarriesDescriptors():
		return c.SendError(m.ID, errNotUnix)
	}
	_ = s.awaitRecovery(s.lifetime) // from then on a "no" is certain
	fd, size, err := s.indexFile()
	if err != nil {
		return c.SendError(m.ID, err)
	}
	defer memfd.Close(fd)
	return c.SendDescriptor(m.ID, uint64(size), fd)
}

// indexFile returns a descriptor of the index and its size, and makes the index if necessary. The
// caller closes the descriptor.
func (s *Server) indexFile() (fd, size int, err error) {
	x := &s.index
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.off:
		return -1, 0, fmt.Errorf("%w: they are switched off", errNoIndex)
	case s.lifetime.Err() != nil:
		return -1, 0, ErrClosed
	}
	if x.ours {
		if fd, size, err = s.db.IndexFile(); err == nil {
			return fd, size, nil
		}
		s.log.Info("directory: making the index anew", "because", err)
		x.ours = false
	}
	begun := time.Now()
	if err = s.db.MakeIndex(s.lifetime, 0); err == nil {
		x.ours = true
		s.mu.Lock()
		s.db.SetIndexAlone(s.attachedRemote() == nil)
		s.mu.Unlock()
		s.log.Debug("directory: made an index", "took", time.Since(begun))
		fd, size, err = s.db.IndexFile()
	}
	if err != nil {
		if text := err.Error(); text != x.problem {
			x.problem = text
			// Cause: the kernel refused the [index](DAEMON.md#how-much-memory-it-takes). Remedy:
			// raise `ulimit -f`, or `--image off`.
			s.log.Warn("directory: no index of the database, all questions come over the socket", "err", err)
		}
		return -1, 0, fmt.Errorf("%w: %w", errNoIndex, err)
	}
	return fd, size, nil
}

// dropIndex ends the index, if this server has made it.
func (s *Server) dropIndex() {
	x := &s.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ours {
		x.ours = false
		s.db.DropIndex()
	}
}
