// SPDX-License-Identifier: Apache-2.0

package search

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/resource"
)

// ErrMalformed is returned for bytes that are no packet of this protocol.
var ErrMalformed = errors.New("search: malformed packet")

// ID names one question: the node that asks, and a number that this node uses once.
type ID struct {
	Asker resource.NodeID
	N     uint64
}

// Protocol: Searches
//
// A packet is about a question of the asker and a range of members, lo to hi:
//
//     type u8 | 0 u8 | fan u16 | asker u64 | number u64 | lo u64 | hi u64 | body
//
// Type 1 asks: cover the range for the sender (fan 1: answer for yourself); body: the question. 2
// found: the member u64, the answer. 3 none: covered u32 (bit 31: known follows), number of failed
// u32, checksum u64, known u64, failed u64 each. 4 busy: the range is being covered.
//
// Between the asker and the one member of the range: type u8, 1 u8, fan u16, number u64, body,
// without the member.
//
// Filters: 16, epoch u32, version u32, keys u32: added since that version; 17 and a summary: epoch
// u32, version u32, capacity u32, hashes u32, bits u32, words u64 (a Bloom filter of
// bits-and-blooms/bloom v3); 18, epoch u32, version u32: asks for what came after. A key is the
// lower half of the XXH64 of an attribute's form in a list.

// Packet types.
const (
	typeAsk   = 1 + iota // cover [Lo,Hi] for the sender
	typeFound            // an answer
	typeNone             // all of [Lo,Hi] say no
	typeBusy             // the answer to a repeated ask: [Lo,Hi] is being covered
)

// A Packet is what one node sends to another about one question and one range. Most packets are
// about one node alone, and travel between that node and the asker. These have a short form
// (AppendTo).
type Packet struct {
	Type   uint8
	Fan    uint16
	ID     ID
	Lo, Hi resource.NodeID
	Body   []byte // of ask and found

	From resource.NodeID // of found: the node that has the answer

	Covered uint32
	Sum     uint64
	Known   uint64 // [Checksum] of the members that the sender knows; 0: not given
	Failed  []resource.NodeID
}

// hasKnown is set in the count of covered members of a packet that has Known.
const hasKnown = 1 << 31

const (
	head      = 36
	shortHead = 12
)

// Size returns at least the number of bytes that Append writes.
func (p *Packet) Size() int { return head + 32 + len(p.Body) + 8*len(p.Failed) }

// Append appends p to b.
func (p *Packet) Append(b []byte) []byte {
	b = append(b, p.Type, 0, byte(p.Fan), byte(p.Fan>>8))
	for _, v := range []uint64{uint64(p.ID.Asker), p.ID.N, uint64(p.Lo), uint64(p.Hi)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	if p.Type == typeFound {
		b = binary.LittleEndian.AppendUint64(b, uint64(p.From))
	}
	return p.appendBody(b)
}

// AppendTo appends p, which self sends to another node, to b. It uses the short form if p is about
// these two nodes alone.
func (p *Packet) AppendTo(b []byte, self, to resource.NodeID) []byte {
	asker, asked := self, to
	if p.Type != typeAsk {
		asker, asked = to, self
	}
	if p.ID.Asker != asker || p.Lo != asked || p.Hi != asked || p.Type == typeFound && p.From != asked {
		return p.Append(b)
	}
	b = append(b, p.Type, 1, byte(p.Fan), byte(p.Fan>>8))
	return p.appendBody(binary.LittleEndian.AppendUint64(b, p.ID.N))
}

// appendBody appends what follows the head of p.
func (p *Packet) appendBody(b []byte) []byte {
	switch p.Type {
	case typeAsk, typeFound:
		return append(b, p.Body...)
	case typeBusy:
		return b
	}
	covered := p.Covered
	if p.Known != 0 {
		covered |= hasKnown
	}
	b = binary.LittleEndian.AppendUint32(b, covered)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(p.Failed)))
	b = binary.LittleEndian.AppendUint64(b, p.Sum)
	if p.Known != 0 {
		b = binary.LittleEndian.AppendUint64(b, p.Known)
	}
	for _, f := range p.Failed {
		b = binary.LittleEndian.AppendUint64(b, uint64(f))
	}
	return b
}

// Parse reads a packet that Append wrote. Body is a view of b.
func (p *Packet) Parse(b []byte) error {
	if len(b) < head || b[1] != 0 {
		return fmt.Errorf("%w: no head", ErrMalformed)
	}
	*p = Packet{Type: b[0], Fan: binary.LittleEndian.Uint16(b[2:]), Body: b[head:]}
	p.ID.Asker = resource.NodeID(binary.LittleEndian.Uint64(b[4:]))
	p.ID.N = binary.LittleEndian.Uint64(b[12:])
	p.Lo = resource.NodeID(binary.LittleEndian.Uint64(b[20:]))
	p.Hi = resource.NodeID(binary.LittleEndian.Uint64(b[28:]))
	if p.Type == typeFound {
		if len(p.Body) < 8 {
			return fmt.Errorf("%w: the packet does not name the node that found the answer", ErrMalformed)
		}
		p.From, p.Body = resource.NodeID(binary.LittleEndian.Uint64(p.Body)), p.Body[8:]
	}
	return p.parseBody()
}

// ParseFrom reads a packet that AppendTo wrote, sent by from to self. Body is a view of b.
func (p *Packet) ParseFrom(b []byte, from, self resource.NodeID) error {
	if len(b) < shortHead || b[1] != 1 {
		return p.Parse(b)
	}
	asker, asked := from, self
	if b[0] != typeAsk {
		asker, asked = self, from
	}
	*p = Packet{Type: b[0], Fan: binary.LittleEndian.Uint16(b[2:]), ID: ID{asker, binary.LittleEndian.Uint64(b[4:])}, Lo: asked, Hi: asked, Body: b[shortHead:]}
	if p.Type == typeFound {
		p.From = asked
	}
	return p.parseBody()
}

// parseBody reads what follows the head of p, which Body holds, and checks p.
func (p *Packet) parseBody() error {
	if p.Type < typeAsk || p.Type > typeBusy || p.Lo > p.Hi || p.Fan < castFan || p.Fan == castFan && p.Type != typeAsk {
		return fmt.Errorf("%w: type %d, range %x to %x, fan %d", ErrMalformed, p.Type, p.Lo, p.Hi, p.Fan)
	}
	switch p.Type {
	case typeAsk, typeFound:
		return nil
	case typeBusy:
		if len(p.Body) > 0 {
			return fmt.Errorf("%w: busy with %d bytes", ErrMalformed, len(p.Body))
		}
		p.Body = nil
		return nil
	}
	b := p.Body
	p.Body = nil
	if len(b) < 16 {
		return fmt.Errorf("%w: none without count", ErrMalformed)
	}
	n := binary.LittleEndian.Uint32(b[4:])
	p.Covered, p.Sum = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint64(b[8:])
	b = b[16:]
	if p.Covered&hasKnown != 0 {
		if len(b) < 8 || binary.LittleEndian.Uint64(b) == 0 {
			return fmt.Errorf("%w: none without the checksum that it announces", ErrMalformed)
		}
		p.Covered, p.Known, b = p.Covered&^hasKnown, binary.LittleEndian.Uint64(b), b[8:]
	}
	if uint64(len(b)) != uint64(n)*8 {
		return fmt.Errorf("%w: %d failed in %d bytes", ErrMalformed, n, len(b))
	}
	for ; len(b) > 0; b = b[8:] {
		p.Failed = append(p.Failed, resource.NodeID(binary.LittleEndian.Uint64(b)))
	}
	return nil
}

// Question returns what p asks, and reports whether p is an ask.
func (p *Packet) Question() ([]byte, bool) { return p.Body, p.Type == typeAsk }
