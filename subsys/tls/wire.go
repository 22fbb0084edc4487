// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
)

const (
	recordAlert  = 21 // the type of a record in the clear (RFC 8446, 5.1)
	recordHeader = 5
	recordMost   = recordHeader + 16384 + 256 // of a TLS 1.3 record (RFC 8446, 5.2)

	firstIn    = 20 << 10  // bytes of sealed input asked for at first
	mostIn     = 128 << 10 // and when they fill every read
	mostSealed = 1 << 20   // sealed output beyond which a conn is cut: nobody asks for so much
)

// A wire is what crypto/tls takes for the connection. While hands are shaken it
// passes bytes on, and reads no further than the record at hand; so when it is
// over, all that follows is still in the socket. From then on it is two buffers:
// crypto/tls finds whole records in the one and leaves sealed ones in the other,
// and never waits.
type wire struct {
	net.Conn      // for the handshake
	shaken   bool // it is over
	mute     bool // says nothing in the clear but a ServerHello: no alerts to strangers

	head [recordHeader]byte // of the record at hand, while hands are shaken
	got  int                // bytes of it
	left int                // bytes of the record at hand not yet read by crypto/tls

	in         []byte // read from the socket, and not by crypto/tls: in[start:end]
	start, end int
	full       bool // the last read filled it

	mu     sync.Mutex // crypto/tls may answer while it reads
	sealed []byte
	off    int // sealed[:off] is written
}

// again is the error of a Read that would have to wait. crypto/tls goes on after
// one that is Temporary.
type again struct{}

func (again) Error() string   { return "tls: no whole record yet" }
func (again) Timeout() bool   { return true }
func (again) Temporary() bool { return true }

// Read implements net.Conn for crypto/tls.
func (w *wire) Read(p []byte) (int, error) {
	if !w.shaken {
		return w.readShaking(p)
	}
	if w.left == 0 {
		if w.left = w.whole(); w.left == 0 {
			return 0, again{}
		}
	}
	n := copy(p, w.in[w.start:w.start+w.left])
	w.start += n
	w.left -= n
	return n, nil
}

func (w *wire) readShaking(p []byte) (int, error) {
	if w.left > 0 {
		n, err := w.Conn.Read(p[:min(len(p), w.left)])
		w.left -= n
		return n, err
	}
	n, err := w.Conn.Read(p[:min(len(p), recordHeader-w.got)])
	w.got += copy(w.head[w.got:], p[:n])
	if w.got == recordHeader {
		w.left, w.got = int(binary.BigEndian.Uint16(w.head[3:])), 0
	}
	return n, err
}

// whole returns the length of the next record if it is here: all of it, or as
// much as crypto/tls needs to refuse it.
func (w *wire) whole() int {
	b := w.in[w.start:w.end]
	if len(b) < recordHeader {
		return 0
	}
	n := recordHeader + int(binary.BigEndian.Uint16(b[3:]))
	if n > recordMost {
		return recordHeader
	}
	if n > len(b) {
		return 0
	}
	return n
}

// space is where to read more into. All whole records have been taken, so what
// is left is less than one.
func (w *wire) space() []byte {
	to := w.in
	if w.full && len(w.in) < mostIn || w.in == nil {
		to = make([]byte, max(firstIn, min(2*len(w.in), mostIn)))
	}
	w.end = copy(to, w.in[w.start:w.end])
	w.start, w.in, w.full = 0, to, false
	return w.in[w.end:]
}

// took says that n more bytes came into the space.
func (w *wire) took(n int) {
	w.end += n
	w.full = w.end == len(w.in)
}

// Write implements net.Conn for crypto/tls.
func (w *wire) Write(p []byte) (int, error) {
	if !w.shaken {
		if w.mute && len(p) > 0 && p[0] == recordAlert {
			return len(p), nil
		}
		return w.Conn.Write(p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.sealed)-w.off > mostSealed {
		return 0, errors.New("tls: too much to answer")
	}
	w.sealed = append(w.sealed, p...)
	return len(p), nil
}

// flush writes what is sealed until all is written, or write, which then
// returns an error, has no room.
func (w *wire) flush(write func([]byte) (int, error)) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.off < len(w.sealed) {
		n, err := write(w.sealed[w.off:])
		if err != nil {
			return err
		}
		w.off += n
	}
	w.sealed, w.off = w.sealed[:0], 0
	return nil
}

// pending is the number of sealed bytes not yet written.
func (w *wire) pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sealed) - w.off
}
