// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/subsys"
)

// A message above pieceLen travels over a stream in pieces: a Begin frame, then Piece
// frames, each with its own number. So a broken connection costs the pieces that were
// under way, and messages to other resources pass between the pieces. The receiver
// reads all of them into one buffer. Messages to the same resource wait for the last
// piece, in a line: that keeps their order.
const (
	pieceLen  = 256 << 10 // bytes of every piece but the last
	feedBytes = 1 << 20   // unsent bytes above which no further piece is numbered
	maxParted = 16        // messages of one session that have begun and not ended
)

// Sender.

// A line is the messages of one flow that have no numbers yet: a large one, and what
// was sent behind it. It belongs to a session.
type line struct {
	msgs  []subsys.Frame
	first int    // msgs[first:] wait
	cut   int    // bytes of the first one that have been numbered
	put   uint64 // messages that were ever queued
	next  *line  // in the ring of lines that are not empty
}

func (ln *line) waits() bool  { return ln.first < len(ln.msgs) }
func (ln *line) waiting() int { return len(ln.msgs) - ln.first }

// lines are the part of a session that has no numbers yet.
type lines struct {
	piece   int   // bytes of every piece but the last: pieceLen, but in tests
	turn    *line // the line served last, in a ring; nil: all are empty
	queued  int   // messages in lines
	backlog int   // bytes of them
	parted  int   // lines whose first message has begun
	orphans []subsys.Header
	drained []subsys.Header // messages that had begun and drain has yielded: the peer may report them just then
}

// queue appends a message to a line. The session takes over the frame's reference.
func (s *session) queue(ln *line, f *subsys.Frame) {
	if !ln.waits() {
		if s.turn == nil {
			ln.next = ln
		} else {
			ln.next, s.turn.next = s.turn.next, ln
		}
		s.turn = ln // the others go first
	}
	if 2*ln.first > len(ln.msgs) && len(ln.msgs) == cap(ln.msgs) { // it has not been empty lately
		n := copy(ln.msgs, ln.msgs[ln.first:])
		clear(ln.msgs[n:])
		ln.msgs, ln.first = ln.msgs[:n], 0
	}
	ln.msgs = append(ln.msgs, *f)
	ln.put++
	s.queued++
	s.backlog += len(f.Data)
}

// feedable reports whether a waiting message may be numbered.
func (s *session) feedable() bool { return s.turn != nil && int(s.next-s.head) < maxUnacked }

// due is how many bytes are to be sent.
func (s *session) due() int { return s.unsent + s.backlog }

// upcoming returns the line that is served next. There is one if feedable.
func (s *session) upcoming(cuts bool) *line {
	for {
		ln := s.turn.next
		if s.parted < maxParted || ln.cut > 0 || !s.parts(ln, cuts) {
			return ln
		}
		s.turn = ln
	}
}

// parts reports whether the first message of the line travels in pieces.
func (s *session) parts(ln *line, cuts bool) bool {
	return ln.cut > 0 || cuts && len(ln.msgs[ln.first].Data) > s.piece
}

// begin fills h with the Begin frame of a line's first message, and p with its payload.
func (ln *line) begin(h *subsys.Header, p *[4]byte) {
	m := &ln.msgs[ln.first]
	h.Len, h.Type, h.Tag, h.Src, h.Dst = uint32(len(p)), wire.TypeBegin, m.Tag, m.Src, m.Dst
	binary.LittleEndian.PutUint32(p[:], m.Len)
}

// number gives the first message of a line its number, or its next piece.
func (s *session) number(ln *line, cuts bool) {
	m := &ln.msgs[ln.first]
	if !s.parts(ln, cuts) {
		s.backlog -= len(m.Data)
		s.push(m)
		s.advance(ln)
		return
	}
	if ln.cut == 0 {
		s.parted++
	}
	n := min(s.piece, len(m.Data)-ln.cut)
	f := subsys.Frame{Data: m.Data[ln.cut : ln.cut+n : ln.cut+n], Buf: m.Buf}
	f.Len, f.Type, f.Tag, f.Src, f.Dst = uint32(n), wire.TypePiece, uint64(ln.cut), m.Src, m.Dst
	ln.cut += n
	s.backlog -= n
	s.push(&f)
	if ln.cut < len(m.Data) {
		if m.Buf != nil {
			m.Buf.Retain()
		}
		s.turn = ln
		return
	}
	e := s.at(s.end - 1)
	e.total, e.tag, e.reported = m.Len, m.Tag, false
	s.parted--
	s.advance(ln)
}

// advance drops the first message of the line behind turn, and gives the next line its
// turn.
func (s *session) advance(ln *line) {
	ln.pop(s)
	if ln.waits() {
		s.turn = ln
	} else {
		s.remove(ln)
	}
}

// pop drops the first message of the line.
func (ln *line) pop(s *session) {
	ln.msgs[ln.first] = subsys.Frame{}
	ln.first++
	ln.cut = 0
	s.queued--
}

// remove takes the line behind turn, which is empty, out of the ring.
func (s *session) remove(ln *line) {
	if s.turn == ln {
		s.turn = nil
	} else {
		s.turn.next = ln.next
	}
	ln.msgs, ln.first, ln.next = ln.msgs[:0], 0, nil
}

// unlist takes a line out of the ring and yields its messages.
func (s *session) unlist(ln *line, yield func(*subsys.Frame)) {
	if !ln.waits() {
		return
	}
	for s.turn.next != ln {
		s.turn = s.turn.next
	}
	if ln.cut > 0 {
		s.parted--
		s.backlog += ln.cut
	}
	for ln.waits() {
		m := ln.msgs[ln.first]
		s.backlog -= len(m.Data)
		yield(&m)
		finish(m.Buf)
		ln.pop(s)
	}
	s.remove(ln)
}

// finish releases a buffer with which the library is through.
func finish(b *buffers.Buffer) {
	if b == nil {
		return
	}
	if b.Refs() > 1 { // somebody else holds it and may ask
		b.SetState(buffers.Delivered)
	}
	b.Release()
}

// abandon empties the line of a resource that has gone. It yields the messages that the
// peer will not report, because none of them has begun, and returns the frame that
// ends one that has.
func (s *session) abandon(ln *line, yield func(*subsys.Header)) (end subsys.Header, begun bool) {
	cut := ln.cut
	s.unlist(ln, func(m *subsys.Frame) {
		if cut == 0 {
			yield(&m.Header)
			return
		}
		end, begun = m.Header, true
		s.orphans = append(s.orphans, m.Header)
		end.Type, end.Len, end.Tag = wire.TypePiece, 0, uint64(cut)
		cut = 0
	})
	return end, begun
}

// reported notes that the peer has reported a message as undelivered: drain does not
// yield it. It returns false if drain has done so already. A message in one piece that the
// peer reports has been acknowledged, so drain has not.
func (s *session) reported(dst, src uint32, tag uint64, size uint32) (isNew bool) {
	if int(size) <= s.piece {
		return true
	}
	isIt := func(h subsys.Header) bool { return h.Dst == dst && h.Src == src && h.Tag == tag && h.Len == size }
	if i := slices.IndexFunc(s.drained, isIt); i >= 0 {
		s.drained = slices.Delete(s.drained, i, i+1)
		return false
	}
	if i := slices.IndexFunc(s.orphans, isIt); i >= 0 {
		s.orphans = slices.Delete(s.orphans, i, i+1)
		return true
	}
	for i := s.first; i != s.end; i++ {
		if e := s.at(i); e.total == size && !e.reported && e.Dst == dst && e.Src == src && e.tag == tag {
			e.reported = true
			break
		}
	}
	return true
}

// feed numbers messages that wait, as long as little is unsent. mu is held.
func (l *link) feed() {
	for l.s.feedable() && l.s.unsent < feedBytes {
		ln := l.s.upcoming(l.cuts)
		if ln.cut == 0 && l.s.parts(ln, l.cuts) {
			var h subsys.Header
			var p [4]byte
			ln.begin(&h, &p)
			if !l.copy(&h, p[:]) {
				l.s.push(&subsys.Frame{Header: h, Data: append([]byte(nil), p[:]...)})
			}
		}
		dst := ln.msgs[ln.first].Dst
		if l.s.number(ln, l.cuts); !ln.waits() {
			if f := l.flows[dst]; f != nil && f.waiters.first != nil {
				f.serve()
			}
		}
	}
}

// abandon gives up what waits for a resource that has gone, and returns the messages
// that are to be reported. mu is held.
func (l *link) abandon(f *Flow) (reports []Undelivered) {
	end, begun := l.s.abandon(&f.line, func(h *subsys.Header) {
		reports = append(reports, Undelivered{From: l.d.self.WithSerial(h.Src), To: l.peer.WithSerial(h.Dst), Tag: h.Tag, Bytes: int(h.Len), Err: ErrGone})
	})
	if begun {
		l.put(wire.TypePiece, end.Dst, end.Src, end.Tag)
	}
	return reports
}

// Receiver.

// A part is a message of which some pieces are to come. Owned by the holder of the token.
type part struct {
	dst, src    uint32
	tag         uint64
	total, have int
	buf         *buffers.Buffer // of total bytes; nil before the first piece
}

// part returns the message to dst that has begun, or nil. The token must be held.
func (l *link) part(dst uint32) *part {
	for i := range l.parts {
		if l.parts[i].dst == dst {
			return &l.parts[i]
		}
	}
	return nil
}

// unpart forgets p, whose buffer is the caller's. The token must be held.
func (l *link) unpart(p *part, in *inflow) {
	if in.mb != nil {
		in.mb.expect(in, 0)
	}
	last := len(l.parts) - 1
	*p = l.parts[last]
	l.parts[last] = part{}
	l.parts = l.parts[:last]
}

// onBegin judges the length of a message that comes in pieces. Memory is given to it with
// the first piece. The token must be held.
func (l *link) onBegin(f *subsys.Frame) error {
	if len(f.Data) != 4 || l.part(f.Dst) != nil || len(l.parts) == maxParted {
		return fmt.Errorf("%w: a message in pieces to %d begins within %d others", ErrProtocol, f.Dst, len(l.parts))
	}
	total := binary.LittleEndian.Uint32(f.Data)
	if total == 0 || total > MaxMessage {
		return fmt.Errorf("%w: a message of %d bytes in pieces", ErrProtocol, total)
	}
	in := l.inflow(f.Dst)
	if in.mb != nil && in.over(charge(int(total))) {
		return fmt.Errorf("%w: message of %d bytes to %d exceeds its credit", ErrProtocol, total, f.Dst)
	}
	if in.mb == nil || !in.mb.expect(in, charge(int(total))) {
		in.mb = nil
		l.answer(wire.TypeGone, f.Dst, f.Src, f.Tag, lost(f.Src, int(total))...)
		return nil
	}
	l.parts = append(l.parts, part{dst: f.Dst, src: f.Src, tag: f.Tag, total: int(total)})
	return nil
}

// judgePiece checks that a piece is the next one of its message. It returns nil without an
// error if the piece is of no use, since the resource does not exist. The token must be held.
func (l *link) judgePiece(h *subsys.Header) (*part, *inflow, error) {
	p, in := l.part(h.Dst), l.inflow(h.Dst)
	switch {
	case p == nil && in.mb == nil: // the sender has been told, or will be
		return nil, in, nil
	case p == nil:
		return nil, in, fmt.Errorf("%w: a piece to %d of a message that has not begun", ErrProtocol, h.Dst)
	case h.Tag != uint64(p.have) || int64(h.Len) > int64(p.total-p.have):
		return nil, in, fmt.Errorf("%w: a piece to %d of %d bytes at %d, expected at %d of %d", ErrProtocol, h.Dst, h.Len, h.Tag, p.have, p.total)
	}
	return p, in, nil
}

// memory sees to it that p has a buffer. The token must be held.
func (p *part) memory(l *link) error {
	if p.buf != nil {
		return nil
	}
	b, err := l.d.reserved(p.total)
	if err != nil {
		return err
	}
	p.buf = b
	return nil
}

// makeReady sees to it that the pieces among fs have memory to go to. It is called before
// fs are accepted: where it fails the conn stops, or breaks, and they come again. The token
// must be held.
func (l *link) makeReady(fs []subsys.Frame) error {
	for i := range fs {
		f := &fs[i]
		if f.Type != wire.TypePiece || f.Len == 0 {
			continue
		}
		p, in := l.part(f.Dst), l.inflow(f.Dst)
		if p == nil || in.mb == nil || in.mb.isClosed() {
			continue
		}
		if err := p.memory(l); err != nil {
			return err
		}
		if f.Tag+uint64(f.Len) == uint64(p.total) {
			if err := p.makeOwn(l, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeOwn gives p, of which f is the last piece, another buffer if a connection that was
// replaced may still read the same piece into the present one. The token must be held.
func (p *part) makeOwn(l *link, f *subsys.Frame) error {
	holders := 1
	if len(f.Data) > 0 && f.Tag < uint64(p.total) && &p.buf.Bytes()[f.Tag] == &f.Data[0] {
		holders++ // its frame
	}
	if p.buf.Refs() <= holders {
		return nil
	}
	b, err := l.d.reserved(p.total)
	if err != nil {
		return err
	}
	copy(b.Bytes(), p.buf.Bytes()[:p.have])
	l.d.CountCopy(p.have)
	p.buf.Release()
	p.buf = b
	return nil
}

// onPiece takes a piece, which lies in its place already if it was read there, and
// delivers the message with the last one. The token must be held.
func (l *link) onPiece(f *subsys.Frame) error {
	p, in, err := l.judgePiece(&f.Header)
	if p == nil || err != nil {
		return err
	}
	if in.mb == nil || in.mb.isClosed() || f.Len == 0 { // a piece without bytes ends what its sender has given up
		l.answer(wire.TypeGone, p.dst, p.src, p.tag, lost(p.src, p.total)...)
		if p.buf != nil {
			p.buf.Release()
		}
		l.unpart(p, in)
		if f.Len > 0 {
			in.mb = nil
		}
		return nil
	}
	if len(f.Data) != int(f.Len) {
		return fmt.Errorf("%w: a piece to %d without its payload", ErrProtocol, f.Dst)
	}
	if err := p.memory(l); err != nil {
		return l.fail(err)
	}
	if to := p.buf.Bytes()[p.have:]; &to[0] != &f.Data[0] {
		copy(to, f.Data)
		l.d.CountCopy(len(f.Data))
	}
	if p.have += len(f.Data); p.have < p.total {
		return nil
	}
	whole, b := *p, p.buf
	l.unpart(p, in)
	g := &l.whole[0]
	g.Len, g.Type, g.Tag, g.Src, g.Dst = uint32(whole.total), wire.TypeData, whole.tag, whole.src, whole.dst
	g.Data, g.Buf, g.Spare = b.Bytes(), b, true
	err = l.work(l.whole[:])
	if g.Buf != nil {
		g.Buf.Release()
	}
	*g = subsys.Frame{}
	return err
}

// fail ends the link: a piece has been accepted and there is no memory for it. That can
// only be one that came together with the beginning of its message.
func (l *link) fail(err error) error {
	l.die(fmt.Errorf("%w: %v: %w", ErrUnreachable, l.peer, err))
	return fmt.Errorf("%w: %v", subsys.ErrClosed, err)
}

// dropParts frees what has come of messages whose rest will not. The token must be held.
func (l *link) dropParts() {
	for i := range l.parts {
		if b := l.parts[i].buf; b != nil {
			b.Release()
		}
	}
	l.parts = nil
}
