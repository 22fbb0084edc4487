// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory/image"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"golang.org/x/sys/unix"
)

// WithoutImage keeps a server from making an image of its database. All questions then come over
// the socket.
func WithoutImage() Option { return func(s *Server) { s.images.off = true } }

// Errors of a request for the image: the server has none, or the connection cannot carry a
// descriptor.
var (
	errNoImage = errors.New("directory: no image")
	errNotUnix = errors.New("directory: no Unix socket, over which alone an image comes")
)

// images is the server's state of the image of its database.
type images struct {
	off  bool       // WithoutImage was given
	mu   sync.Mutex // held while an image is made; guards all below
	ours bool       // this server has made the database's present image
	said string     // the reason that was logged last why there is none
}

// serveImage hands the image to a context that has joined.
func (s *Server) serveImage(c *wire.Conn) error {
	m, err := c.ReadMessage()
	if err != nil {
		return err
	}
	p := m.Parser()
	self, token := p.GID(), p.Take(32)
	if err := p.End(); err != nil || m.Type != wire.MsgImage {
		return fmt.Errorf("%w: not a request for the image", ErrProtocol)
	}
	s.mu.Lock()
	joined := s.lives[self] != nil
	s.mu.Unlock()
	want := s.id.Token(self)
	switch {
	case !joined || !hmac.Equal(want[:], token):
		return c.SendError(m.ID, fmt.Errorf("%w: %v", ErrDenied, self))
	case !c.CarriesDescriptors():
		return c.SendError(m.ID, errNotUnix)
	}
	s.settle() // from then on a "no" is certain
	fd, size, err := s.image()
	if err != nil {
		return c.SendError(m.ID, err)
	}
	defer unix.Close(fd)
	return c.SendDescriptor(m.ID, uint64(size), fd)
}

// image returns a descriptor of the image and its size, and makes the image if necessary. The
// caller closes the descriptor.
func (s *Server) image() (fd, size int, err error) {
	im := &s.images
	im.mu.Lock()
	defer im.mu.Unlock()
	switch {
	case im.off:
		return -1, 0, fmt.Errorf("%w: they are switched off", errNoImage)
	case s.life.Err() != nil:
		return -1, 0, ErrClosed
	}
	if im.ours {
		if fd, size, err = s.db.ImageFile(); err == nil {
			return fd, size, nil
		}
		s.log.Info("directory: making the image anew", "because", err)
		im.ours = false
	}
	begun := time.Now()
	if err = s.db.Image(s.life, image.DefaultSize); err == nil {
		im.ours = true
		s.mu.Lock()
		s.db.ImageAlone(s.rest() == nil)
		s.mu.Unlock()
		s.log.Debug("directory: made an image", "took", time.Since(begun))
		fd, size, err = s.db.ImageFile()
	}
	if err != nil {
		if text := err.Error(); text != im.said {
			im.said = text
			s.log.Warn("directory: no image of the database, all questions come over the socket", "err", err)
		}
		return -1, 0, fmt.Errorf("%w: %w", errNoImage, err)
	}
	return fd, size, nil
}

// dropImage ends the image, if this server has made it.
func (s *Server) dropImage() {
	im := &s.images
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.ours {
		im.ours = false
		s.db.DropImage()
	}
}
