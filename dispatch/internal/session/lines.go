// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/binary"
	"slices"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/subsys"
)

// A message above WholeLen travels over a stream in pieces.
const (
	WholeLen     = 256 << 10
	PieceLen     = 1 << 20 // bytes of every piece but the last; smaller pieces would cost more system calls
	MaxSplitting = 16      // messages of one session that have begun and not ended
)

// A Line has the messages of one flow that have no numbers yet: a large message, and those that
// were sent behind it. It belongs to a session. The zero value is empty.
type Line struct {
	msgs     []queued
	first    int    // msgs[first:] wait
	numbered int    // bytes of the first waiting message that have been numbered
	put      uint64 // messages that were ever queued
	next     *Line  // the next line in the ring of lines that are not empty
}

// queued is a message in a line.
type queued struct {
	subsys.Frame
	call  uint64 // the number of the call that the message is the request of; 0: none
	trace []byte // the payload of the Trace frame that goes ahead; nil: none
}

// IsWaiting reports whether the line has messages.
func (ln *Line) IsWaiting() bool { return ln.first < len(ln.msgs) }

// Dst returns the target of the line's messages. The line must not be empty.
func (ln *Line) Dst() uint32 { return ln.msgs[ln.first].Dst }

// Put returns how many messages were ever queued.
func (ln *Line) Put() uint64 { return ln.put }

// Gone returns how many messages have been queued and are no longer in the line.
func (ln *Line) Gone() uint64 { return ln.put - uint64(ln.waiting()) }

// waiting returns how many messages are in the line.
func (ln *Line) waiting() int { return len(ln.msgs) - ln.first }

// lines are the part of a session that has no numbers yet.
type lines struct {
	whole     int   // WholeLen, except in tests
	piece     int   // PieceLen, except in tests
	turn      *Line // the line served last, in a ring; nil: all are empty
	queued    int   // messages in lines
	needed    int   // those of queued without wire.FlagForget
	backlog   int   // bytes of these messages
	splitting int   // lines with a first message that has begun
	orphans   []subsys.Header
	drained   []subsys.Header // messages that had begun and that Drain has yielded: the peer may report them at the same time
}

// Queue appends a message to a line. The session takes over the frame's reference. If the message
// is a request, call is the number of its call, and 0 otherwise.
func (s *Session) Queue(ln *Line, f *subsys.Frame, call uint64) {
	if !ln.IsWaiting() {
		if s.turn == nil {
			ln.next = ln
		} else {
			ln.next, s.turn.next = s.turn.next, ln
		}
		s.turn = ln // the other lines go first
	}
	if 2*ln.first > len(ln.msgs) && len(ln.msgs) == cap(ln.msgs) { // the line has not been empty lately
		n := copy(ln.msgs, ln.msgs[ln.first:])
		clear(ln.msgs[n:])
		ln.msgs, ln.first = ln.msgs[:n], 0
	}
	ln.msgs = append(ln.msgs, queued{Frame: *f, call: call})
	ln.put++
	s.queued++
	if f.Flags&wire.FlagForget == 0 {
		s.lines.needed++
	}
	s.backlog += len(f.Data)
}

// SetTrace sets the payload of the Trace frame that goes ahead of the message that was queued last.
func (ln *Line) SetTrace(p []byte) { ln.msgs[len(ln.msgs)-1].trace = p }

// Trace returns the payload of the Trace frame that goes ahead of what is numbered next, and the
// source of that message. It returns nil if there is none, or if the message has begun.
func (ln *Line) Trace() (p []byte, src uint32) {
	if ln.numbered > 0 {
		return nil, 0
	}
	m := &ln.msgs[ln.first]
	return m.trace, m.Src
}

// HasQueued reports whether a line has messages.
func (s *Session) HasQueued() bool { return s.turn != nil }

// Splits reports whether a message of so many bytes travels in pieces if the connection takes them.
// Such a message waits in a line in any case.
func (s *Session) Splits(size int) bool { return size > s.whole }

// IsFeedable reports whether a waiting message may be numbered.
func (s *Session) IsFeedable() bool { return s.turn != nil && int(s.next-s.head) < MaxUnacked }

// Upcoming returns the waiting line that is served next. IsFeedable must be true. canSplit says
// that the connection takes messages in pieces.
func (s *Session) Upcoming(canSplit bool) *Line {
	for {
		ln := s.turn.next
		if s.splitting < MaxSplitting || ln.numbered > 0 || !s.splits(ln, canSplit) {
			return ln
		}
		s.turn = ln
	}
}

// splits reports whether the first message of the line travels in pieces.
func (s *Session) splits(ln *Line, canSplit bool) bool {
	return ln.numbered > 0 || canSplit && len(ln.msgs[ln.first].Data) > s.whole
}

// HasBegin reports whether a Begin frame comes before the frame that Number numbers next.
func (s *Session) HasBegin(ln *Line, canSplit bool) bool {
	return ln.numbered == 0 && s.splits(ln, canSplit)
}

// Call returns the number of the call whose request is numbered next: a Call frame goes directly
// before it. It returns 0 if the next message is no request, or has begun.
func (ln *Line) Call() (number uint64, src uint32) {
	if ln.numbered > 0 {
		return 0, 0
	}
	m := &ln.msgs[ln.first]
	return m.call, m.Src
}

// Begin fills h with the Begin frame of a line's first message, and p with its payload.
func (ln *Line) Begin(h *subsys.Header, p *[4]byte) {
	m := &ln.msgs[ln.first]
	h.Len, h.Type, h.Flags, h.Tag, h.Src, h.Dst = uint32(len(p)), wire.TypeBegin, m.Flags, m.Tag, m.Src, m.Dst
	binary.LittleEndian.PutUint32(p[:], m.Len)
}

// Number gives a number to the first message of a line, or to its next piece.
func (s *Session) Number(ln *Line, canSplit bool) {
	m := &ln.msgs[ln.first]
	if !s.splits(ln, canSplit) {
		s.backlog -= len(m.Data)
		s.PushRequest(&m.Frame, m.call)
		s.advance(ln)
		return
	}
	if ln.numbered == 0 {
		s.splitting++
	}
	n := min(s.piece, len(m.Data)-ln.numbered)
	f := subsys.Frame{Data: m.Data[ln.numbered : ln.numbered+n : ln.numbered+n], Buf: m.Buf}
	f.Len, f.Type, f.Tag, f.Src, f.Dst = uint32(n), wire.TypePiece, uint64(ln.numbered), m.Src, m.Dst
	f.Flags = m.Flags & wire.FlagForget
	ln.numbered += n
	s.backlog -= n
	s.Push(&f)
	if ln.numbered < len(m.Data) {
		if m.Buf != nil {
			m.Buf.Retain()
		}
		s.turn = ln
		return
	}
	e := s.at(s.end - 1)
	e.total, e.tag, e.flags, e.reported, e.call = m.Len, m.Tag, m.Flags, false, m.call
	s.splitting--
	s.advance(ln)
}

// advance drops the first message of the line behind turn, and makes it the line that was served
// last. A line that is empty then leaves the ring.
func (s *Session) advance(ln *Line) {
	ln.pop(s)
	if ln.IsWaiting() {
		s.turn = ln
	} else {
		s.remove(ln)
	}
}

// pop drops the first message of the line.
func (ln *Line) pop(s *Session) {
	if ln.msgs[ln.first].Flags&wire.FlagForget == 0 {
		s.lines.needed--
	}
	ln.msgs[ln.first] = queued{}
	ln.first++
	ln.numbered = 0
	s.queued--
}

// remove takes the line behind turn, which is empty, out of the ring.
func (s *Session) remove(ln *Line) {
	if s.turn == ln {
		s.turn = nil
	} else {
		s.turn.next = ln.next
	}
	ln.msgs, ln.first, ln.next = ln.msgs[:0], 0, nil
}

// unlist takes a line out of the ring and yields its messages.
func (s *Session) unlist(ln *Line, yield func(*subsys.Frame)) {
	if !ln.IsWaiting() {
		return
	}
	for s.turn.next != ln {
		s.turn = s.turn.next
	}
	if ln.numbered > 0 {
		s.splitting--
		s.backlog += ln.numbered
	}
	for ln.IsWaiting() {
		m := ln.msgs[ln.first].Frame
		s.backlog -= len(m.Data)
		yield(&m)
		finish(m.Buf)
		ln.pop(s)
	}
	s.remove(ln)
}

// takeLine takes a line out of the ring and yields its messages, whose buffers then belong to keep.
func (s *Session) takeLine(ln *Line, keep func(*subsys.Frame, uint64)) {
	for i := ln.first; i < len(ln.msgs); i++ {
		m := &ln.msgs[i]
		keep(&m.Frame, m.call)
		m.Buf = nil
	}
	s.unlist(ln, func(*subsys.Frame) {})
}

// Finish releases the buffer of a message that Divide has kept, and that is not sent any more.
func Finish(b *buffers.Buffer) { finish(b) }

// finish releases a buffer that the library no longer needs.
func finish(b *buffers.Buffer) {
	if b == nil {
		return
	}
	if b.Refs() > 1 { // another holder may wait for the end of the send
		b.EndSend()
	}
	b.Release()
}

// Abandon empties the line of a resource that has gone. It yields the messages that the peer will
// not report, because they have not begun. If one has begun, Abandon returns the frame that ends
// it.
func (s *Session) Abandon(ln *Line, yield func(*subsys.Header)) (end subsys.Header, begun bool) {
	numbered := ln.numbered
	s.unlist(ln, func(m *subsys.Frame) {
		if numbered == 0 {
			yield(&m.Header)
			return
		}
		end, begun = m.Header, true
		s.orphans = append(s.orphans, m.Header)
		end.Type, end.Len, end.Tag = wire.TypePiece, 0, uint64(numbered)
		numbered = 0
	})
	return end, begun
}

// Reported notes that the peer has reported a message as undelivered, so that Drain does not yield
// it. It returns false if Drain has yielded it already. A message in one piece that the peer
// reports has been acknowledged, so Drain does not yield it.
func (s *Session) Reported(dst, src uint32, tag uint64, size uint32) (isNew bool) {
	if int(size) <= s.whole {
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
