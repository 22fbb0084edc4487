// SPDX-License-Identifier: Apache-2.0

package tls

import (
	stdtls "crypto/tls"
	"errors"
	"io"
	"syscall"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

const (
	record        = 16 << 10 // most plain-text bytes of one record
	inline        = 2 << 10  // payloads up to this size are gathered with their headers into one record
	gather        = 64 << 10 // sealed bytes that are written at once
	recordsPerKey = 1 << 24  // most records under one key
)

// errKeyUsedUp ends a connection whose key has sealed as many records as it may.
var errKeyUsedUp = errors.New("tls: key of the connection is used up")

// A sealer is the [stream.Writer] and [stream.Opener] of a connection: frames are sealed when they
// are sent, and opened when they arrive. What writes and what reads share only tls and wire, which
// lock.
type sealer struct {
	wire *wire
	tls  *stdtls.Conn

	// For reading.
	more      bool // crypto/tls may hold more plain text
	delivered int  // frames delivered that Took has not returned

	// For writing.
	plain         []byte          // headers and small payloads for the next record
	payload       []byte          // bytes of a payload that was taken, still to be sealed
	buf           *buffers.Buffer // buffer in which payload lies, retained; may be nil
	records       uint64          // records sealed
	recordsPerKey uint64          // most records under one key
	isFull        bool            // the socket has no room
}

func (s *sealer) Space(c *stream.Conn, in *stream.Reader) ([]byte, error) {
	if err := s.open(c, in); err != nil { // opens what the Reader had no memory for
		return nil, err
	}
	return s.wire.space(), nil
}

func (s *sealer) Took(c *stream.Conn, in *stream.Reader, n int) (frames int, err error) {
	s.wire.took(n)
	err = s.open(c, in)
	frames, s.delivered = s.delivered, 0
	return frames, err
}

// open decrypts the records that have arrived whole, and delivers their frames. If a record has
// more than the Reader's space holds, crypto/tls keeps the remaining bytes.
func (s *sealer) open(c *stream.Conn, in *stream.Reader) error {
	for s.more || s.wire.whole() > 0 {
		space, err := in.Space()
		if err != nil {
			return err
		}
		n, err := s.tls.Read(space)
		if _, none := err.(again); none { // the record had no data
			s.more = false
			continue
		}
		if errors.Is(err, io.EOF) {
			err = subsys.ErrPeerClosed
		}
		if err != nil {
			return c.ReadError(err)
		}
		c.CountCopies(1, n)
		s.more = n == len(space)
		frames, err := in.Took(n)
		s.delivered += frames
		if err != nil {
			return err
		}
		if c.IsClosed() {
			return subsys.ErrClosed
		}
	}
	return nil
}

func (s *sealer) Send(c *stream.Conn, fs []subsys.Frame) (taken int, isFull bool, err error) {
	if s.records >= s.recordsPerKey {
		return 0, false, errKeyUsedUp
	}
	s.isFull = false
	for taken < len(fs) && !s.isFull && err == nil {
		f := &fs[taken]
		taken++
		if f.Type == subsys.TypeBatch {
			err = s.sealPayload(c, f)
			continue
		}
		small := len(f.Data) <= inline
		need := subsys.HeaderLen
		if small {
			need += len(f.Data)
		}
		if len(s.plain)+need > record {
			if err = s.seal(c, s.plain); err != nil {
				break
			}
			s.plain = s.plain[:0]
			if err = s.write(c, gather); err != nil {
				break
			}
		}
		var h [subsys.HeaderLen]byte
		f.Put(h[:])
		s.plain = append(s.plain, h[:]...)
		if small {
			s.plain = append(s.plain, f.Data...)
		} else {
			err = s.sealPayload(c, f)
		}
	}
	if err == nil {
		err = s.seal(c, s.plain)
		s.plain = s.plain[:0]
	}
	if err == nil {
		err = s.write(c, 0)
	}
	return taken, s.isFull, err
}

func (s *sealer) Resume(c *stream.Conn) (isFull bool, err error) {
	s.isFull = false
	if err = s.write(c, 0); err == nil {
		err = s.continuePayload(c)
	}
	if err == nil {
		err = s.write(c, 0)
	}
	return s.isFull, err
}

func (s *sealer) Free() {
	s.payload = nil
	if s.buf != nil {
		s.buf.Release()
		s.buf = nil
	}
}

// sealPayload seals a payload from where it lies, after the plain text gathered before it.
func (s *sealer) sealPayload(c *stream.Conn, f *subsys.Frame) error {
	if err := s.seal(c, s.plain); err != nil {
		return err
	}
	s.plain = s.plain[:0]
	s.payload = f.Data
	err := s.continuePayload(c)
	if len(s.payload) > 0 && f.Buf != nil {
		// The link may release the frame as soon as it has another connection.
		s.buf = f.Buf.Retain()
	}
	return err
}

// continuePayload seals and writes the current payload until all of it is sealed, or the socket is
// full.
func (s *sealer) continuePayload(c *stream.Conn) error {
	for len(s.payload) > 0 && !s.isFull {
		n := min(len(s.payload), gather)
		if err := s.seal(c, s.payload[:n]); err != nil {
			return err
		}
		s.payload = s.payload[n:]
		if err := s.write(c, gather); err != nil {
			return err
		}
	}
	if len(s.payload) == 0 {
		s.Free()
	}
	return nil
}

func (s *sealer) seal(c *stream.Conn, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	s.records += uint64((len(p) + record - 1) / record)
	c.CountCopies(1, len(p))
	_, err := s.tls.Write(p)
	return err
}

// write writes the sealed bytes if there are at least least bytes.
func (s *sealer) write(c *stream.Conn, least int) error {
	if s.isFull || least > 0 && s.wire.pending() < least {
		return nil
	}
	err := s.wire.flush(c)
	if err == syscall.EAGAIN {
		s.isFull = true
		return nil
	}
	return err
}
