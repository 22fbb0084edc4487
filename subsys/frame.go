// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"encoding/binary"
	"errors"

	"github.com/rocl-go/rocl/buffers"
)

// HeaderLen is the length in bytes of a frame's header on the wire.
const HeaderLen = 32

// MaxPayload is the largest payload of a frame in bytes (2 GiB - 1). A larger length on the wire is
// an error that cuts the connection.
const MaxPayload = 1<<31 - 1

// Protocol: Frames
//
// A frame between contexts begins with 32 bytes:
//
//     payload bytes u32 | type u8 | flags u8 | 0 u16 | seq u32 | ack u32 | tag u64 | src u32 | dst u32
//
// The payload follows, at most 2³¹-1 bytes. src and dst are serials: of the sender's resource, and
// of the receiver's.

// Header is the header in front of every payload; see the package comment.
type Header struct {
	Len      uint32
	Type     uint8
	Flags    uint8
	Seq, Ack uint32
	Tag      uint64
	Src, Dst uint32
}

// Put writes the 32 bytes of h to b, which must have room for them.
func (h *Header) Put(b []byte) {
	_ = b[HeaderLen-1]
	binary.LittleEndian.PutUint32(b, h.Len)
	binary.LittleEndian.PutUint32(b[4:], uint32(h.Type)|uint32(h.Flags)<<8)
	binary.LittleEndian.PutUint32(b[8:], h.Seq)
	binary.LittleEndian.PutUint32(b[12:], h.Ack)
	binary.LittleEndian.PutUint64(b[16:], h.Tag)
	binary.LittleEndian.PutUint32(b[24:], h.Src)
	binary.LittleEndian.PutUint32(b[28:], h.Dst)
}

// ErrBadHeader is returned by Parse for 32 bytes that cannot start a frame.
var ErrBadHeader = errors.New("subsys: malformed frame header")

// Parse reads the header at the start of b, which has at least HeaderLen
// bytes. It refuses a non-zero reserved field and a length above MaxPayload.
func (h *Header) Parse(b []byte) error {
	_ = b[HeaderLen-1]
	tf := binary.LittleEndian.Uint32(b[4:])
	h.Len = binary.LittleEndian.Uint32(b)
	h.Type = uint8(tf)
	h.Flags = uint8(tf >> 8)
	h.Seq = binary.LittleEndian.Uint32(b[8:])
	h.Ack = binary.LittleEndian.Uint32(b[12:])
	h.Tag = binary.LittleEndian.Uint64(b[16:])
	h.Src = binary.LittleEndian.Uint32(b[24:])
	h.Dst = binary.LittleEndian.Uint32(b[28:])
	if tf>>16 != 0 || h.Len > MaxPayload {
		return ErrBadHeader
	}
	return nil
}

// TypeBatch marks a Frame whose Data is a batch: several whole frames with their headers, as they
// go on a stream. No header on the wire has this type. Only Seq of the frame's header is used: the
// number of the batch's first frame or an earlier one.
const TypeBatch = 0xff

// A Frame is a header and its payload. Data has Header.Len bytes and lies in Buf, or is nil. Buf is
// nil for payloads in plain Go memory.
type Frame struct {
	Header
	Data []byte
	Buf  *buffers.Buffer

	// Spare tells a sink that it may keep Buf without Retain: it takes over the connection's
	// reference and sets Buf to nil.
	Spare bool
}
