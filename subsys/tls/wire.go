// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

const (
	recordAlert  = 21 // the type of a record in the clear (RFC 8446, 5.1)
	recordHeader = 5
	recordMost   = recordHeader + 16384 + 256 // most bytes of a TLS 1.3 record (RFC 8446, 5.2)

	firstIn    = 20 << 10  // bytes of a read of sealed input at first
	mostIn     = 128 << 10 // bytes of a read when sealed input fills every read
	mostSealed = 1 << 20   // bytes of pending sealed output that cut the connection: no honest peer causes so much
)

// A wire is the net.Conn that crypto/tls uses. During the handshake it passes bytes on, and reads
// no further than the current record. So all bytes after the handshake are still in the socket.
// Afterwards a wire is two buffers: crypto/tls reads whole records from one and writes sealed
// records to the other, and never waits.
type wire struct {
	net.Conn      // for the handshake
	shaken   bool // the handshake is over
	mute     bool // drops alerts in clear text, so that a client without access gets no answer

	head [recordHeader]byte // of the current record, during the handshake
	got  int                // bytes of head that have arrived
	left int                // bytes of the current record that crypto/tls has not read

	in         []byte // in[start:end] is read from the socket, but not yet by crypto/tls
	start, end int
	full       bool // the last read filled in

	mu     sync.Mutex // crypto/tls may write while it reads
	sealed []byte
	off    int // sealed[:off] is written
}

// again is the error of a Read that would have to wait. It is Temporary, so crypto/tls can continue
// after it.
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

// whole returns the length of the next record if all of it has arrived, else 0. For a record that
// is too long it returns the length of the header, from which crypto/tls refuses the record.
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

// space returns the memory for the next read. All whole records must have been read, so what is
// left is less than one.
func (w *wire) space() []byte {
	to := w.in
	if w.full && len(w.in) < mostIn || w.in == nil {
		to = make([]byte, max(firstIn, min(2*len(w.in), mostIn)))
	}
	w.end = copy(to, w.in[w.start:w.end])
	w.start, w.in, w.full = 0, to, false
	return w.in[w.end:]
}

// took records that n more bytes have come into the space.
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
		return 0, errors.New("tls: peer causes too much output that it does not read")
	}
	w.sealed = append(w.sealed, p...)
	return len(p), nil
}

// flush writes the sealed bytes until all are written, or until a write to the socket fails,
// perhaps because the socket has no room.
func (w *wire) flush(sock io.Writer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.off < len(w.sealed) {
		n, err := sock.Write(w.sealed[w.off:])
		if err != nil {
			return err
		}
		w.off += n
	}
	w.sealed, w.off = w.sealed[:0], 0
	return nil
}

// pending returns the number of sealed bytes that are not written yet.
func (w *wire) pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sealed) - w.off
}
