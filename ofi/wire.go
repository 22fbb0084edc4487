// SPDX-License-Identifier: Apache-2.0

package ofi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/rocl-go/rocl/ofi/internal/fabric"
	"github.com/rocl-go/rocl/subsys"
)

// A message begins with a head, and records follow to its end:
//
//	receiver's number of the connection u64 | number of the message u32 | messages consumed u32 |
//	payloads read u32 | 0 u32
//
// The two counts acknowledge what came in the other direction. A message without records only
// acknowledges, and its number is not counted.
//
// A record is a frame (package subsys). If the first reserved byte of the frame's header is
// byReading, the payload is not in the message, but in the sender's memory: the address u64 and the
// key u64 follow, by which the receiver reads it.
const (
	headLen    = 24
	byReading  = 1
	locatorLen = 16
	markAt     = 6 // offset of the mark in a frame's header
)

// A record is what a message has at an offset.
type record struct {
	header  *subsys.Header
	next    int    // offset of the next record
	data    []byte // of a frame whose payload is in the message
	isLarge bool   // the payload is in the sender's memory, at an address with a key
	at, key uint64
}

// record parses the record at an offset below the end of m, and its header into h.
func (m *message) record(off int, h *subsys.Header) (r record, err error) {
	b := m.buf.Bytes()[off:m.end:m.end]
	if len(b) < subsys.HeaderLen {
		return r, subsys.ErrProtocol
	}
	r.header, r.isLarge = h, b[markAt] == byReading
	if r.isLarge {
		b[markAt] = 0
	}
	err = h.Parse(b)
	if r.isLarge {
		b[markAt] = byReading
	}
	if err != nil {
		return r, fmt.Errorf("%w: %w", subsys.ErrProtocol, err)
	}
	rest := b[subsys.HeaderLen:]
	n := uint64(h.Len)
	if r.isLarge {
		n = locatorLen
	}
	if n > uint64(len(rest)) || r.isLarge && h.Len == 0 {
		return r, subsys.ErrProtocol
	}
	if r.data = rest[:n:n]; r.isLarge {
		r.at, r.key = binary.LittleEndian.Uint64(r.data), binary.LittleEndian.Uint64(r.data[8:])
	}
	r.next = off + subsys.HeaderLen + int(n)
	return r, nil
}

// head is the head of a message.
type head struct {
	conn                 uint64
	seq, consumed, reads uint32
}

func (h *head) put(b []byte) {
	binary.LittleEndian.PutUint64(b, h.conn)
	binary.LittleEndian.PutUint32(b[8:], h.seq)
	binary.LittleEndian.PutUint32(b[12:], h.consumed)
	binary.LittleEndian.PutUint32(b[16:], h.reads)
	binary.LittleEndian.PutUint32(b[20:], 0)
}

func (h *head) parse(b []byte) {
	h.conn = binary.LittleEndian.Uint64(b)
	h.seq = binary.LittleEndian.Uint32(b[8:])
	h.consumed = binary.LittleEndian.Uint32(b[12:])
	h.reads = binary.LittleEndian.Uint32(b[16:])
}

// A hello is what each end says first on the control connection: the side that dialled begins.
//
//	"rocl-ofi" | version u8 | bytes of the provider u8 | bytes of the name u16 | number u64 | provider | name
//
// The number is that of the connection in messages to this end. It is random: a process that does
// not know it cannot send on the connection.
type hello struct {
	provider string
	name     []byte // of the endpoint
	conn     uint64
}

const (
	magic     = "rocl-ofi"
	wireVer   = 1
	helloLen  = len(magic) + 12
	mostNames = 256
)

func (h *hello) write(w io.Writer) error {
	b := append([]byte(magic), wireVer, byte(len(h.provider)))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(h.name)))
	b = binary.LittleEndian.AppendUint64(b, h.conn)
	b = append(append(b, h.provider...), h.name...)
	_, err := w.Write(b)
	return err
}

// read reads a hello. It reads no byte behind it.
func (h *hello) read(r io.Reader) error {
	var b [helloLen + 255 + mostNames]byte
	if _, err := io.ReadFull(r, b[:helloLen]); err != nil {
		return err
	}
	n, k := int(b[len(magic)+1]), int(binary.LittleEndian.Uint16(b[len(magic)+2:]))
	if string(b[:len(magic)]) != magic || b[len(magic)] != wireVer || k > mostNames {
		return fmt.Errorf("%w: not a greeting of this transport", subsys.ErrProtocol)
	}
	h.conn = binary.LittleEndian.Uint64(b[len(magic)+4:])
	rest := b[helloLen : helloLen+n+k]
	if _, err := io.ReadFull(r, rest); err != nil {
		return err
	}
	h.provider, h.name = string(rest[:n]), bytes.Clone(rest[n:])
	return nil
}

var errName = errors.New("the name of the peer's endpoint is malformed")

// checkName checks the name of a peer's endpoint, which comes from the host remote. A socket
// address gets that host's address: an endpoint that is bound to all addresses does not know it,
// and a peer must not send this process to another host.
func checkName(ep *fabric.Endpoint, name []byte, remote netip.Addr) error {
	own := ep.Name()
	if !ep.IsSocketName() {
		if prefix, _, isText := bytes.Cut(own, []byte("://")); isText {
			if !bytes.HasPrefix(name, append(bytes.Clone(prefix), "://"...)) || bytes.IndexByte(name, 0) != len(name)-1 {
				return errName
			}
			return nil
		}
	}
	if len(name) != len(own) || len(name) < 8 {
		return errName
	}
	if !ep.IsSocketName() {
		return nil
	}
	if !bytes.Equal(name[:2], own[:2]) { // the family
		return errName
	}
	switch {
	case len(name) == 16 && remote.Is4():
		copy(name[4:8], remote.AsSlice())
	case len(name) == 28 && remote.Is6():
		copy(name[8:24], remote.AsSlice())
	default:
		return errName
	}
	return nil
}

// Records of the control connection, behind the hellos: a type and a count u32.
const (
	recordLen  = 5
	recordEnd  = 1 // this end sends no message beyond the count
	recordPing = 2 // answered by the kernel of the peer's machine
)
