// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"encoding/binary"
	"fmt"

	"github.com/rocl-go/rocl"
)

// An Envelope is the data of a message besides its values. PackMessage packs both.
type Envelope struct {
	Context uint32   // the message context
	Tag     int32    // the sender's tag
	From    rocl.GID // the sender
	To      rocl.GID // the receiver
}

// Envelope returns the envelope that SetEnvelope set, or the one with which the message was packed.
func (r *Reader) Envelope() Envelope { return r.env }

// SetEnvelope sets the envelope of the message, for PackMessage.
func (r *Reader) SetEnvelope(e Envelope) { r.env = e }

// A message within a message has the form of PVM, except that the identifiers of the sender and the
// receiver have 16 bytes each. The form is: length, context, tag, wait identifier, encoding and
// checksum as ints, sender, receiver, and then, unless the length is zero, the length again and the
// bytes.

// The values of PVM for the encoding in the header of a message within a message.
const (
	pvmXDR     = 0x10000000
	pvmInPlace = 0x20000000
	pvmRaw     = 0x00408c41 // the data signature of a little-endian machine with longs of eight bytes
	typedFlag  = 0x08000000 // a bit that PVM leaves zero
)

const innerHeader = 6*4 + 2*16

// PackMessage packs the message of r, with its envelope, into b. The message is copied whatever the
// encoding of b is, and from its beginning even if some of it has been unpacked. The encodings of
// the two messages may differ.
func (b *Buffer) PackMessage(r *Reader) error {
	xdr, n := b.enc == Default, len(r.whole)
	size := innerHeader
	if n > 0 {
		size += 4 + n
	}
	if n > maxMessage-innerHeader-8 {
		return b.tooLarge(n)
	}
	p, err := b.grow(padIf(xdr, size))
	if err != nil {
		return err
	}
	b.add(span{messageKind, 1})
	enc := [...]int{Default: pvmXDR, Raw: pvmRaw, InPlace: pvmInPlace}[r.enc]
	if r.typed {
		enc |= typedFlag
	}
	for i, v := range [...]int{n, int(int32(r.env.Context)), int(r.env.Tag), 0, enc, 0} {
		putInt(p[i*4:], v, xdr)
	}
	putGID(p[24:], r.env.From)
	putGID(p[40:], r.env.To)
	p = p[innerHeader:]
	if n > 0 {
		putInt(p, n, xdr)
		p = p[4+copy(p[4:], r.whole):]
	}
	clear(p)
	return nil
}

// PackMessageBody appends the values of the message of r to b, as if they had been packed into b.
// They are copied, from the beginning of the message even if some have been unpacked. The encodings
// must be the same, except that Raw and InPlace may be mixed, and a typed b takes only the values
// of a typed message. Otherwise PackMessageBody fails with ErrMismatch.
func (b *Buffer) PackMessageBody(r *Reader) error {
	if err := b.valid(); err != nil {
		return err
	}
	if (b.enc == Default) != (r.enc == Default) {
		return fmt.Errorf("%w: %v into %v", ErrMismatch, r.enc, b.enc)
	}
	if b.typed && !r.typed {
		return fmt.Errorf("%w: the message that is added has no types, and the other message has types", ErrMismatch)
	}
	if len(r.data) == 0 {
		return nil
	}
	p, err := b.grow(padIf(b.enc == Default, len(r.data)))
	if err != nil {
		return err
	}
	clear(p[copy(p, r.data):])
	if b.typed {
		for d := r.whole[len(r.data) : len(r.whole)-trailer]; len(d) > 0; {
			var next span
			next, d, _ = nextSpan(d)
			b.add(next)
		}
	}
	return nil
}

// UnpackMessage unpacks a message that PackMessage packed. The result refers to the memory of r's
// message.
func (r *Reader) UnpackMessage() (*Reader, error) {
	if err := r.check(messageKind, 1); err != nil {
		return nil, err
	}
	var in inner
	n, err := in.parse(r.data[r.off:], r.enc == Default)
	if err != nil {
		return nil, err
	}
	m, err := NewReader(in.enc, in.typed, in.data)
	if err != nil {
		return nil, err
	}
	if m.env.From, err = getGID(in.header[24:]); err == nil {
		m.env.To, err = getGID(in.header[40:])
	}
	if err != nil {
		return nil, err
	}
	m.env.Context = uint32(getInt(in.header[4:], r.enc == Default))
	m.env.Tag = int32(getInt(in.header[8:], r.enc == Default))
	r.skip(1, n)
	return m, nil
}

// An inner is a message within a message.
type inner struct {
	header []byte
	enc    Encoding
	typed  bool
	data   []byte
}

// parse reads the message at the start of p, and returns the number of bytes that it takes.
func (in *inner) parse(p []byte, xdr bool) (int, error) {
	if len(p) < innerHeader {
		return 0, fmt.Errorf("%w: %d bytes cannot hold a message", ErrNoData, len(p))
	}
	n, enc := getInt(p, xdr), getInt(p[16:], xdr)
	in.header, in.typed = p[:innerHeader], enc&typedFlag != 0
	switch enc &^ typedFlag {
	case pvmXDR:
		in.enc = Default
	case pvmRaw:
		in.enc = Raw
	case pvmInPlace:
		in.enc = InPlace
	default:
		return 0, fmt.Errorf("%w: the message has encoding %#x", ErrDamaged, enc)
	}
	switch p = p[innerHeader:]; {
	case n < 0:
		return 0, fmt.Errorf("%w: the message has %d bytes", ErrDamaged, n)
	case n == 0:
		return innerHeader, nil
	case len(p) < 4 || n > len(p)-4:
		return 0, fmt.Errorf("%w: the message has %d bytes, and %d are left", ErrNoData, n, len(p))
	case getInt(p, xdr) != n:
		return 0, fmt.Errorf("%w: the message has %d bytes, of which %d come first", ErrDamaged, n, getInt(p, xdr))
	}
	in.data = p[4 : 4+n : 4+n]
	return innerHeader + 4 + min(padIf(xdr, n), len(p)-4), nil
}

// putGID writes g in 16 bytes: six of the node, six of the context, four of the serial.
func putGID(p []byte, g rocl.GID) {
	binary.BigEndian.PutUint64(p, uint64(g.Node())<<16|g.Ctx()>>32&0xffff)
	binary.BigEndian.PutUint64(p[8:], g.Ctx()<<32|uint64(g.Serial()))
}

// getGID reads an identifier that putGID wrote. It goes by way of a text, because package rocl
// makes a GID only from its text.
func getGID(p []byte) (rocl.GID, error) {
	hi, lo := binary.BigEndian.Uint64(p), binary.BigEndian.Uint64(p[8:])
	if hi == 0 && lo == 0 {
		return rocl.GID{}, nil
	}
	return rocl.ParseGID(fmt.Sprintf("%012x-%x-%x", hi>>16, hi&0xffff<<32|lo>>32, uint32(lo)))
}
