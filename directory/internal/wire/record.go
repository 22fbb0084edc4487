// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/resource"
)

// recordHead is the length of a record's part before the attributes.
const recordHead = 16 + 16 + 8

// AppendRecord appends r to b in the form of the body of an answer. The body has the pattern with
// its wanted values filled in, or all attributes if the pattern wants none.
func AppendRecord(b []byte, r *resource.Record, pattern *resource.List) []byte {
	k := Builder{slices.Grow(b, recordHead+len(r.Attrs.Wire()))}
	k.GID(r.ID)
	k.GID(r.Owner)
	k.U64(r.Revision)
	if pattern.Complete() {
		k.Append(r.Attrs.Wire())
		return k.out
	}
	l := pattern.Answer(&r.Attrs)
	k.Append(l.Wire())
	return k.out
}

// Record appends r to the body, as AppendRecord does.
func (b *Builder) Record(r *resource.Record, pattern *resource.List) {
	b.out = AppendRecord(b.out, r, pattern)
}

// BatchRecord appends r to the body of a batch: the record with its length before it.
func (b *Builder) BatchRecord(r *resource.Record, pattern *resource.List) {
	at := len(b.out)
	b.out = append(b.out, 0, 0, 0, 0)
	b.Record(r, pattern)
	binary.LittleEndian.PutUint32(b.out[at:], uint32(len(b.out)-at-4))
}

// ParseRecord returns the record in a body that AppendRecord wrote. The result does not refer to b.
func ParseRecord(b []byte) (r resource.Record, err error) {
	if r, err = ViewRecord(b); err == nil {
		r.Attrs = r.Attrs.Clone()
	}
	return r, err
}

// ViewRecord is ParseRecord with a result that refers to b. b must not change any more.
func ViewRecord(b []byte) (r resource.Record, err error) {
	p := Parser{b: b}
	r = p.head()
	r.Attrs, err = p.List()
	return r, err
}

// head takes the part of a record before the attributes.
func (p *Parser) head() resource.Record {
	if len(p.b) < recordHead {
		p.bad = true
		return resource.Record{}
	}
	b := p.b[:recordHead]
	p.b = p.b[recordHead:]
	return resource.Record{ID: resource.GetGID(b), Owner: resource.GetGID(b[16:]), Revision: binary.LittleEndian.Uint64(b[32:])}
}

// Batch yields the records of a batch's body. They are copies.
func Batch(b []byte) iter.Seq2[resource.Record, error] {
	return func(yield func(resource.Record, error) bool) {
		var memory Slab
		for len(b) > 0 {
			if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
				yield(resource.Record{}, fmt.Errorf("%w: truncated batch", ErrProtocol))
				return
			}
			n := 4 + int(binary.LittleEndian.Uint32(b))
			p := Parser{b: b[4:n]}
			r := p.head()
			p.b = memory.Clone(p.b, len(b)-recordHead)
			var err error
			r.Attrs, err = p.List()
			if b = b[n:]; !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// slabBytes is the size of the memory that small records of one batch share. A caller that keeps
// one of these records keeps all that memory.
const slabBytes = 2 << 10

// A Slab is memory for small copies, which costs less than one allocation for each.
type Slab struct{ free []byte }

// Clone returns a copy of b. left is about how many bytes are still to be copied, including b.
func (s *Slab) Clone(b []byte, left int) []byte {
	if len(b) > len(s.free) {
		if len(b) > slabBytes/4 {
			return slices.Clone(b)
		}
		s.free = make([]byte, max(len(b), min(left, slabBytes)))
	}
	c := s.free[:len(b):len(b)]
	s.free = s.free[copy(c, b):]
	return c
}

// Event makes b the message of an event of watch id.
func (b *Builder) Event(id uint64, ev *database.Event, pattern *resource.List) {
	b.Begin(MsgEvent, id)
	b.Append([]byte{byte(ev.Kind)})
	b.Record(&ev.Record, pattern)
}

// ParseEvent returns the event in a message, or ErrProtocol if the message is malformed.
func ParseEvent(m *Message) (ev database.Event, err error) {
	if m.Type != MsgEvent || len(m.Body) < 1 {
		return ev, fmt.Errorf("%w: message type %d", ErrProtocol, m.Type)
	}
	if ev.Kind = database.Kind(m.Body[0]); ev.Kind < database.Appeared || ev.Kind > database.Synced {
		return ev, fmt.Errorf("%w: event %d", ErrProtocol, ev.Kind)
	}
	ev.Record, err = ParseRecord(m.Body[1:])
	return ev, err
}

// ParseEnd returns what the body of a message end says: how many nodes reported all they have, and
// which could not be asked.
func ParseEnd(b []byte) (covered int, failed []resource.NodeID, err error) {
	if len(b) < 4 || (len(b)-4)%8 != 0 {
		return 0, nil, fmt.Errorf("%w: end of %d bytes", ErrProtocol, len(b))
	}
	covered = int(binary.LittleEndian.Uint32(b))
	for b = b[4:]; len(b) > 0; b = b[8:] {
		failed = append(failed, resource.NodeID(binary.LittleEndian.Uint64(b)))
	}
	return covered, failed, nil
}
