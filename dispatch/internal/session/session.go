// SPDX-License-Identifier: Apache-2.0

// Package session is the part of a link that outlives its connections. It keeps the frames that
// were sent and not acknowledged, and knows how far the peer's frames have come. A [Session] is a
// machine without I/O, clock or lock. Sequence numbers are modulo 2³². Those of the frames that are
// not acknowledged are less than half of that apart. No more than [MaxUnacked] of these frames are
// messages; the rest are control frames.
//
// One goroutine at a time may receive (Acked, Accept, Accepted, Worked, Expected, AckSent) while
// another sends (all other methods). They share only atomic words.
//
//	acknowledged | unacknowledged      | not handed to a connection |
//	-------------+---------------------+----------------------------+
//	           head (done ≥ head)    sent                         next
//
// Push and Add number frames, and Take lends them to a connection. Untake takes back the frames
// that the connection did not take. Acked notes how far the peer has received. Release then drops
// these frames; no connection may hold any of them. Over a new connection, Resume goes back to the
// number that the peer says it has. That number may be old: the peer may later acknowledge frames
// that an earlier connection took, up to most.
//
// Frames are kept in entries. An entry is either one frame, with its payload where the sender put
// it, or a batch: small frames, encoded one behind the other as they travel on the stream.
// The last entry is open if it is a batch: more frames may be added while a connection writes the
// earlier ones.
//
// A large message goes over a stream in pieces: a Begin frame, then Piece frames, each with its own
// number. So a broken connection costs only the pieces that were under way, and messages to other
// resources pass between the pieces. Large messages wait in a [Line] for each target, and so do
// messages that were sent to the target behind them. They get their numbers later, which keeps
// their order. The lines are served in turn:
//
//	Queue ──► line of a ─┐
//	Queue ──► line of b ─┼─ Upcoming ─► Number ──► entries ──► Take
//	Queue ──► line of c ─┘                  Push, Add ─┘
package session

import (
	"bytes"
	"fmt"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/planted"
	"github.com/rocl-go/rocl/subsys"
)

const (
	// MaxUnacked bounds the frames of one session that wait to be acknowledged, and the messages in
	// its lines.
	MaxUnacked = 1 << 15

	Inline     = 2 << 10  // payloads up to this are copied behind their header at once
	smallBatch = 4 << 10  // bytes of the first batch after a pause
	largeBatch = 64 << 10 // bytes of a batch that follows a full one
	mostLent   = 64       // the most entries that Take returns
)

// Protocol: Sessions
//
// - Frames 16 to 26 have numbers, seq, from 0 in each session and direction. ack, in every frame
//   behind the handshake, is the number expected next. A repeated number is dropped, a gap cuts the
//   connection.
// - An end keeps what was not acknowledged, at most 32,768 frames. Over another connection it sends
//   them again, from the peer's have.
// - **Acknowledge** before you wait for the peer: in a frame that is due anyway, or by Ack. Nothing
//   is sent again while a connection works.
// - A context that ends sends Bye, and closes when it is acknowledged. An end that has no
//   connection for as long as it likes (a minute) gives the session up.
// - Any violation cuts the connection.

// A Session is one end of the exchange between two contexts. After Init it has sent and received
// nothing.
type Session struct {
	ring       []entry // entries first..end, at index & (len-1)
	first, end uint32
	cur        uint32 // the entry that is sent next
	off        int    // how many bytes of cur were sent, if it is a batch
	unsent     int    // bytes that are not sent, payloads included

	head, sent, next uint32
	needed           uint32        // the number behind the last frame without wire.FlagForget, or one that is not after head
	most             atomic.Uint32 // the highest value of sent so far
	done             atomic.Uint32 // frames before it are acknowledged; released when no connection holds them
	large            int           // entries with a buffer that are no batches

	lines

	rxNext  uint32        // the frame expected next
	rxDone  atomic.Uint32 // frames before it have been worked on, and are acknowledged
	rxAcked atomic.Uint32 // what was acknowledged to the peer, or will be by frames that wait to be sent

	lent  [mostLent]subsys.Frame // Take lends it out
	marks [mostLent]mark
}

// entry is one frame, or a batch if its type is TypeBatch. In a batch, Seq is that of the first
// frame, and Data the filled part of Buf.
type entry struct {
	subsys.Frame
	frames   uint32
	total    uint32 // in the last piece of a message: the length of the message
	tag      uint64 // in the last piece: the message's tag
	flags    uint8  // in the last piece: the message's flags
	reported bool   // in the last piece: the peer has said that the message was not delivered
	call     uint64 // in a request, or its last piece: the number of the call; 0: none, or the message is in a batch
}

// mark is a place in the session to return to.
type mark struct {
	cur  uint32
	off  int
	sent uint32
}

// Init sets up to which length messages travel whole, and how many bytes each piece of a longer one
// has, except the last: WholeLen and PieceLen, except in tests. It is called once, before all other
// methods.
func (s *Session) Init(whole, piece int) { s.whole, s.piece = whole, piece }

// Pending returns how many frames and messages have not been acknowledged.
func (s *Session) Pending() int { return int(s.next-s.head) + s.queued }

// Load returns how many frames were sent and are not acknowledged, and how many frames and messages
// wait to be sent.
func (s *Session) Load() (unacked, waiting int) {
	return max(0, int(int32(s.sent-s.done.Load()))), int(s.next-s.sent) + s.queued
}

// HasRoom reports whether one more message may be accepted.
func (s *Session) HasRoom() bool { return s.Pending() < MaxUnacked }

// IsIdle reports whether everything has been acknowledged.
func (s *Session) IsIdle() bool { return s.head == s.next && s.turn == nil }

// NeedsAcks reports whether anything but messages with wire.FlagForget has not been acknowledged.
func (s *Session) NeedsAcks() bool { return int32(s.needed-s.head) > 0 || s.lines.needed > 0 }

// IsQuiet reports whether no frame is to be sent now.
func (s *Session) IsQuiet() bool { return s.sent == s.next && !s.IsFeedable() }

// Next returns the number of the next frame.
func (s *Session) Next() uint32 { return s.next }

// Head returns the number of the first frame that has not been released.
func (s *Session) Head() uint32 { return s.head }

// Sent returns the number of the frame that is sent next.
func (s *Session) Sent() uint32 { return s.sent }

// Repeats returns how many frames are to be sent again, after Resume.
func (s *Session) Repeats() int { return max(0, int(int32(s.most.Load()-s.sent))) }

// Unsent returns the bytes of numbered frames that are not sent.
func (s *Session) Unsent() int { return s.unsent }

// Due returns the bytes that are not sent, of numbered frames and of messages in lines.
func (s *Session) Due() int { return s.unsent + s.backlog }

// HasLarge reports whether a frame with a buffer of its own has not been released.
func (s *Session) HasLarge() bool { return s.large > 0 }

// Expected returns the number of the frame that is to come next. While received frames are worked
// on, it is the number of the first of these.
func (s *Session) Expected() uint32 { return s.rxDone.Load() }

// Accepted returns the number behind the last frame that Accept has accepted.
func (s *Session) Accepted() uint32 { return s.rxNext }

// AckSent returns the number that the peer knows to be expected here, or will know when it has the
// frames that wait to be sent.
func (s *Session) AckSent() uint32 { return s.rxAcked.Load() }

// Worked notes that all frames that Accept has returned have been worked on: their messages are in
// mailboxes, and the reports of messages that are not have been pushed. Only then are the frames
// acknowledged, so that an acknowledgement never overtakes such a report.
func (s *Session) Worked() {
	if s.rxDone.Load() != s.rxNext {
		s.rxDone.Store(s.rxNext)
	}
}

// TakeAck returns the acknowledgement of all frames that were worked on, for a frame without a
// number.
func (s *Session) TakeAck() (ack uint32) {
	ack = s.rxDone.Load()
	s.rxAcked.Store(ack)
	return ack
}

// UntakeAck notes that the connection did not take the acknowledgement that TakeAck returned.
func (s *Session) UntakeAck(ack uint32) { s.rxAcked.Store(ack - 1) }

// String returns the numbers, for logs.
func (s *Session) String() string {
	return fmt.Sprintf("head %d done %d sent %d next %d rx %d acked %d", s.head, s.done.Load(), s.sent, s.next, s.rxDone.Load(), s.rxAcked.Load())
}

// at returns the entry numbered i.
func (s *Session) at(i uint32) *entry { return &s.ring[int(i)&(len(s.ring)-1)] }

// entry returns a new entry at the end.
func (s *Session) entry() *entry {
	if n := int(s.end - s.first); n == len(s.ring) {
		ring := make([]entry, max(16, 2*n))
		for i := s.first; i != s.end; i++ {
			ring[int(i)&(len(ring)-1)] = *s.at(i)
		}
		s.ring = ring
	}
	s.end++
	return s.at(s.end - 1)
}

// stamp numbers h and puts the newest acknowledgement into it.
func (s *Session) stamp(h *subsys.Header) {
	ack := s.rxDone.Load()
	h.Seq, h.Ack = s.next, ack
	if s.rxAcked.Load() != ack {
		s.rxAcked.Store(ack)
	}
	s.next++
	if h.Flags&wire.FlagForget == 0 {
		s.needed = s.next
	}
}

// Push takes over a frame as an entry of its own.
func (s *Session) Push(f *subsys.Frame) {
	e := s.entry()
	e.Frame, e.frames, e.total, e.call = *f, 1, 0, 0
	if f.Buf != nil {
		s.large++
	}
	s.stamp(&e.Header)
	s.unsent += subsys.HeaderLen + len(f.Data)
}

// PushRequest is Push for the request of a call. The frame with the number of the call goes
// directly before it.
func (s *Session) PushRequest(f *subsys.Frame, call uint64) {
	s.Push(f)
	s.at(s.end - 1).call = call
}

// BatchLen returns the size of the buffer for Open. Callers ask only after Add failed: if the last
// entry is a batch, it is full, and more frames are likely to follow.
func (s *Session) BatchLen() int {
	if s.first != s.end && s.at(s.end-1).Type == subsys.TypeBatch {
		return largeBatch
	}
	return smallBatch
}

// Open begins a batch in b, which then belongs to the session.
func (s *Session) Open(b *buffers.Buffer) {
	e := s.entry()
	e.Frame, e.frames, e.total, e.call = subsys.Frame{Data: b.Bytes()[:0], Buf: b}, 0, 0, 0
	e.Type, e.Seq = subsys.TypeBatch, s.next
}

// Add copies a frame to the end of the open batch, and sets Seq and Ack of h. If there is no open
// batch, or it has no room, Add does nothing and reports false.
func (s *Session) Add(h *subsys.Header, payload []byte) bool {
	if s.first == s.end {
		return false
	}
	e := s.at(s.end - 1)
	at, n := len(e.Data), subsys.HeaderLen+len(payload)
	if e.Type != subsys.TypeBatch || cap(e.Data)-at < n {
		return false
	}
	s.stamp(h)
	e.Data = e.Data[:at+n]
	to := e.Data[at:]
	h.Put(to)
	copy(to[subsys.HeaderLen:], payload)
	e.frames++
	s.unsent += n
	return true
}

// Fits reports whether frames of n bytes together, including their headers, fit into the open
// batch.
func (s *Session) Fits(n int) bool {
	if s.first == s.end {
		return false
	}
	e := s.at(s.end - 1)
	return e.Type == subsys.TypeBatch && cap(e.Data)-len(e.Data) >= n
}

// Take returns the entries to hand to a connection next, in order, and counts them as sent: the
// peer may acknowledge them before the connection has returned. The slice is valid until the next
// Take.
func (s *Session) Take() []subsys.Frame {
	n := 0
	for s.cur != s.end && n < len(s.lent) {
		e := s.at(s.cur)
		if e.Type == subsys.TypeBatch && s.off == len(e.Data) {
			if s.cur+1 == s.end {
				break // all of the open batch is sent
			}
			s.cur, s.off = s.cur+1, 0
			continue
		}
		s.marks[n] = mark{s.cur, s.off, s.sent}
		b := &s.lent[n]
		b.Header, b.Data, b.Buf = e.Header, e.Data, e.Buf
		if e.Type == subsys.TypeBatch {
			s.lent[n].Data = e.Data[s.off:]
			s.unsent -= len(e.Data) - s.off
			s.off = len(e.Data)
		} else {
			s.unsent -= subsys.HeaderLen + len(e.Data)
			s.cur++
		}
		s.sent = e.Seq + e.frames
		n++
	}
	if most := s.most.Load(); s.sent != most && s.sent-most < 1<<31 {
		s.most.Store(s.sent)
	}
	return s.lent[:n]
}

// TakeOpen is Take for the open batch, if it has all that is unsent and that is at most so many
// bytes. It returns these bytes, or nil. If the connection does not take them, UntakeOpen follows.
func (s *Session) TakeOpen(most int) []byte {
	if s.unsent > most || s.cur+1 != s.end || s.IsFeedable() {
		return nil
	}
	e := s.at(s.cur)
	if e.Type != subsys.TypeBatch {
		return nil
	}
	s.marks[0] = mark{s.cur, s.off, s.sent}
	p := e.Data[s.off:]
	s.off, s.unsent, s.sent = len(e.Data), 0, s.next
	if m := s.most.Load(); s.sent != m && s.sent-m < 1<<31 {
		s.most.Store(s.sent)
	}
	return p
}

// UntakeOpen takes back what TakeOpen has returned last.
func (s *Session) UntakeOpen() {
	m := s.marks[0]
	s.unsent = s.off - m.off
	s.off, s.sent = m.off, m.sent
}

// Untake notes that the connection took only the first n of fs, which Take has returned last.
func (s *Session) Untake(fs []subsys.Frame, n int) {
	if n == len(fs) {
		return
	}
	for i := range fs[n:] {
		if fs[n+i].Type != subsys.TypeBatch {
			s.unsent += subsys.HeaderLen
		}
		s.unsent += len(fs[n+i].Data)
	}
	m := s.marks[n]
	s.cur, s.off, s.sent = m.cur, m.off, m.sent
}

// Acked notes that the peer has received the frames before a. It fails for an acknowledgement of
// frames that were never sent. A frame that is retransmitted has the acknowledgement of its first
// writing. That may be older by every frame that the peer has received since, control frames too,
// which MaxUnacked does not bound.
func (s *Session) Acked(a uint32) error {
	for {
		done, most := s.done.Load(), s.most.Load()
		switch {
		case int32(a-done) <= 0: // an old acknowledgement
			return nil
		case a-done > most-done:
			return fmt.Errorf("%w: acknowledgement of %d, sent up to %d", wire.ErrProtocol, a, most)
		case s.done.CompareAndSwap(done, a):
			return nil
		}
	}
}

// Release drops the entries that were acknowledged, and releases their buffers. No connection may
// hold any of them.
func (s *Session) Release() {
	s.head = s.done.Load()
	if int32(s.needed-s.head) < 0 {
		s.needed = s.head // so that it never lies 2³¹ numbers behind
	}
	if s.head-s.sent-1 < 1<<31 && !planted.Is(planted.DuplicateResumed) {
		s.skipTo(s.head) // the peer had them from an earlier connection
	}
	for s.first != s.end {
		e := s.at(s.first)
		if e.Seq+e.frames-s.head-1 < 1<<31 { // the entry ends after head
			return
		}
		if s.first+1 == s.end && e.Type == subsys.TypeBatch && cap(e.Data) <= smallBatch && e.Buf.Refs() == 1 {
			// All is acknowledged. The open batch begins again in the same buffer, unless a
			// connection has lent it.
			e.Data, e.frames, e.Seq = e.Data[:0], 0, s.next
			s.cur, s.off = s.first, 0
			return
		}
		if s.cur == s.first { // an open batch, sent to its end
			s.cur, s.off = s.first+1, 0
		}
		s.drop(e)
		s.first++
	}
}

// skipTo makes seq, which is unsent, the next frame to be sent.
func (s *Session) skipTo(seq uint32) {
	s.sent = seq
	for s.cur != s.end {
		e := s.at(s.cur)
		size := len(e.Data)
		if e.Type != subsys.TypeBatch {
			size += subsys.HeaderLen
		}
		if before := seq - e.Seq; before < e.frames {
			if before > 0 { // inside a batch
				off := skip(e.Data, before)
				s.unsent -= off - s.off
				s.off = off
			}
			return
		}
		s.unsent -= size - s.off
		if e.Type == subsys.TypeBatch && s.cur+1 == s.end {
			s.off = size // more frames may be added
			return
		}
		s.cur, s.off = s.cur+1, 0
	}
}

// drop releases the buffer of an entry.
func (s *Session) drop(e *entry) {
	if e.Buf != nil && e.Type != subsys.TypeBatch {
		s.large--
	}
	switch {
	case e.Buf == nil:
	case e.Type == wire.TypeData || e.total > 0:
		finish(e.Buf)
	default:
		e.Buf.Release()
	}
	e.Data, e.Buf = nil, nil
}

// Accept checks the numbers of received frames. The frames before first have come before, over an
// earlier connection, and are to be dropped. A gap is an error: it means that the connection has
// lost frames. got counts the messages among the new frames, and the bytes of all frames.
func (s *Session) Accept(fs []subsys.Frame) (first int, got Arrived, err error) {
	was := s.rxNext
	next := was
	for i := range fs {
		f := &fs[i]
		if f.Type == wire.TypeAck {
			continue
		}
		if f.Type < wire.TypeData || f.Type > wire.TypeFollow {
			return 0, got, fmt.Errorf("%w: frame type %d", wire.ErrProtocol, f.Type)
		}
		got.Wire += subsys.HeaderLen
		if len(f.Data) <= Inline || f.Buf == nil || !f.Buf.ReadOnly() { // otherwise its sender gets it back when this context releases it
			got.Wire += int(f.Len)
		}
		switch d := f.Seq - next; {
		case d == 0:
			next++
			switch f.Type {
			case wire.TypeBegin:
				got.Messages++
			case wire.TypeData:
				got.Messages++
				got.Bytes += int(f.Len)
			case wire.TypePiece:
				got.Bytes += int(f.Len)
			}
		case d > 1<<31 && next == was:
			if !planted.Is(planted.DuplicateResumed) || f.Seq+1 != was || f.Type != wire.TypeData {
				first = i + 1
			}
			if f.Seq-s.rxAcked.Load() > 1<<31 {
				s.rxAcked.Store(f.Seq) // the peer does not know that it has come
			}
		default:
			return 0, got, fmt.Errorf("%w: frame %d, expected %d", wire.ErrProtocol, f.Seq, next)
		}
	}
	s.rxNext = next
	return first, got, nil
}

// Arrived counts what came in one batch.
type Arrived struct {
	Messages, Bytes int
	Wire            int // bytes with headers, of repeated frames too, that the sender keeps until they are acknowledged
}

// Resume continues over a new connection. The peer has received all frames before peerHas. The
// frames that it lacks are sent again.
func (s *Session) Resume(peerHas uint32) error {
	if most := s.most.Load(); peerHas-s.head > most-s.head {
		return fmt.Errorf("%w: peer has %d, sent up to %d", wire.ErrProtocol, peerHas, most)
	}
	if err := s.Acked(peerHas); err != nil {
		return err
	}
	if done := s.done.Load(); done != peerHas {
		return fmt.Errorf("%w: peer has %d, acknowledged %d", wire.ErrProtocol, peerHas, done)
	}
	s.Release()
	s.sent, s.cur, s.off, s.unsent = peerHas, s.first, 0, 0
	for i := s.first; i != s.end; i++ {
		switch e := s.at(i); {
		case e.Type != subsys.TypeBatch:
			s.unsent += subsys.HeaderLen + len(e.Data)
		case i == s.first: // the batch may be acknowledged in part
			if peerHas != e.Seq && planted.Sometimes(planted.DuplicateResumed) {
				peerHas--
				s.sent--
			}
			s.off = skip(e.Data, peerHas-e.Seq)
			s.unsent += len(e.Data) - s.off
		default:
			s.unsent += len(e.Data)
		}
	}
	s.rxAcked.Store(s.rxDone.Load())
	return nil
}

// Switch continues over a new connection, as Resume does, while the former connection still
// works. The peer may have received and acknowledged more frames since it sent peerHas.
func (s *Session) Switch(peerHas uint32) error {
	if done := s.done.Load(); int32(peerHas-done) < 0 {
		peerHas = done
	}
	return s.Resume(peerHas)
}

// skip returns where in a batch the frame after the first n begins.
func skip(batch []byte, n uint32) (off int) {
	var h subsys.Header
	for range n {
		_ = h.Parse(batch[off:]) // encoded here, so it is valid
		off += subsys.HeaderLen + int(h.Len)
	}
	return off
}

// EachNumbered yields the messages that have numbers and are not acknowledged, in order. It yields
// the header, which is valid during the call, and the number of the message's last frame. A message
// in pieces is yielded once its last piece has a number, with the header that it would have in one
// piece. Before that, EachQueued yields it.
func (s *Session) EachNumbered(yield func(h *subsys.Header, seq uint32)) {
	done := s.done.Load()
	var h subsys.Header
	for i := s.first; i != s.end; i++ {
		e := s.at(i)
		if int32(e.Seq+e.frames-done) <= 0 {
			continue
		}
		switch {
		case e.total > 0:
			if !e.reported {
				h = subsys.Header{Type: wire.TypeData, Flags: e.flags, Len: e.total, Tag: e.tag, Src: e.Src, Dst: e.Dst}
				yield(&h, e.Seq)
			}
		case e.Type == wire.TypeData:
			yield(&e.Header, e.Seq)
		case e.Type == subsys.TypeBatch:
			before := uint32(max(0, int32(done-e.Seq)))
			for seq, off := e.Seq+before, skip(e.Data, before); off < len(e.Data); seq++ {
				_ = h.Parse(e.Data[off:]) // encoded here, so it is valid
				off += subsys.HeaderLen + int(h.Len)
				if h.Type == wire.TypeData {
					yield(&h, seq)
				}
			}
		}
	}
}

// EachQueued yields the messages in lines. For each message it yields the line, the header, and how
// many messages had been put into the line up to this one. The header is valid during the call.
func (s *Session) EachQueued(yield func(ln *Line, h *subsys.Header, put uint64)) {
	if s.turn == nil {
		return
	}
	for ln := s.turn.next; ; ln = ln.next {
		for i := ln.first; i < len(ln.msgs); i++ {
			yield(ln, &ln.msgs[i].Header, ln.put-uint64(len(ln.msgs)-1-i))
		}
		if ln == s.turn {
			return
		}
	}
}

// HasReached reports whether the peer may have received no more than the frames before number have,
// given what was sent and acknowledged.
func (s *Session) HasReached(have uint32) bool {
	done := s.done.Load()
	return have-done <= s.most.Load()-done
}

// Most returns the number behind the last frame that was ever handed to a connection.
func (s *Session) Most() uint32 { return s.most.Load() }

// Divide empties the session, as Drain does, when the peer has certainly not received the frames
// from number from on. It yields the messages among these to keep, in the order for each target,
// with the numbers of their calls. The buffer, or the copy in Data, then belongs to keep. It also
// yields the header of each Cancel among these, with the number of its call, behind the request.
// All other frames that were not acknowledged go to lost.
func (s *Session) Divide(from uint32, lost func(*subsys.Header), keep func(m *subsys.Frame, call uint64)) {
	s.Release()
	isKept := func(seq uint32) bool { return int32(seq-from) >= 0 }
	for i := s.first; i != s.end; i++ {
		e := s.at(i)
		switch {
		case e.Type == subsys.TypeBatch:
			s.divideBatch(e, isKept, lost, keep)
			continue
		case e.Type == wire.TypeCancel && isKept(e.Seq):
			keep(&subsys.Frame{Header: e.Header}, e.Tag)
			continue
		case !isKept(e.Seq) || e.Type != wire.TypeData && e.total == 0 || e.Type == wire.TypePiece && (e.reported || e.Buf == nil):
			continue
		}
		m := e.Frame
		if e.total > 0 { // the last of the pieces, which have one buffer
			m.Header = subsys.Header{Type: wire.TypeData, Flags: e.flags, Len: e.total, Tag: e.tag, Src: e.Src, Dst: e.Dst}
			m.Data = e.Buf.Bytes()
		}
		keep(&m, e.call)
		if e.Buf != nil {
			s.large--
		}
		e.Type, e.total, e.Data, e.Buf = wire.TypeNeed, 0, nil, nil // Drain yields a control frame
	}
	for s.turn != nil {
		s.takeLine(s.turn.next, keep)
	}
	s.Drain(lost)
}

// divideBatch is Divide for the frames of a batch. It makes the batch a control frame.
func (s *Session) divideBatch(e *entry, isKept func(uint32) bool, lost func(*subsys.Header), keep func(*subsys.Frame, uint64)) {
	call := uint64(0)
	seq := e.Seq
	for off := 0; off < len(e.Data); seq++ {
		var h subsys.Header
		_ = h.Parse(e.Data[off:]) // encoded here, so it is valid
		data := e.Data[off+subsys.HeaderLen:][:h.Len]
		off += subsys.HeaderLen + int(h.Len)
		switch {
		case h.Type == wire.TypeCall:
			call = h.Tag
			continue
		case int32(seq-s.head) < 0: // acknowledged
		case h.Type == wire.TypeData && isKept(seq):
			keep(&subsys.Frame{Header: h, Data: bytes.Clone(data)}, call)
		case h.Type == wire.TypeCancel && isKept(seq):
			keep(&subsys.Frame{Header: h}, h.Tag)
		default:
			lost(&h)
		}
		call = 0
	}
	e.Buf.Release()
	e.Type, e.Data, e.Buf = wire.TypeNeed, nil, nil
}

// HideTraces makes the Trace frames, which the peer does not know, frames that say nothing to it.
// No frame may have been sent.
func (s *Session) HideTraces() {
	hide := func(h *subsys.Header) { h.Type, h.Flags, h.Dst, h.Src = wire.TypeGone, 0, noResource, 0 }
	for i := s.first; i != s.end; i++ {
		e := s.at(i)
		if e.Type == wire.TypeTrace {
			hide(&e.Header)
		}
		for off := 0; e.Type == subsys.TypeBatch && off < len(e.Data); {
			var h subsys.Header
			_ = h.Parse(e.Data[off:]) // encoded here, so it is valid
			if h.Type == wire.TypeTrace {
				hide(&h)
				h.Put(e.Data[off:])
			}
			off += subsys.HeaderLen + int(h.Len)
		}
	}
}

// noResource is a serial that no resource ever has: the last with both bits of serials.
const noResource = 1<<32 - 1

// Drain empties the session, and yields what was not acknowledged. For a message in pieces, it
// yields the header that the message would have in one piece. No connection may hold any frame.
func (s *Session) Drain(yield func(*subsys.Header)) {
	s.Release()
	for ; s.first != s.end; s.first++ {
		e := s.at(s.first)
		switch {
		case e.total > 0:
			if !e.reported {
				s.drained = append(s.drained, subsys.Header{Type: wire.TypeData, Flags: e.flags, Len: e.total, Tag: e.tag, Src: e.Src, Dst: e.Dst})
				yield(&s.drained[len(s.drained)-1])
			}
		case e.Type != subsys.TypeBatch:
			yield(&e.Header)
		default:
			for off := skip(e.Data, s.head-e.Seq); off < len(e.Data); {
				var h subsys.Header
				_ = h.Parse(e.Data[off:])
				off += subsys.HeaderLen + int(h.Len)
				yield(&h)
			}
		}
		s.head = e.Seq + e.frames
		s.drop(e)
	}
	s.head, s.sent = s.next, s.next
	s.most.Store(s.next)
	s.done.Store(s.next)
	s.cur, s.off, s.unsent = s.end, 0, 0
	for i := range s.orphans {
		yield(&s.orphans[i])
	}
	s.drained = append(s.drained, s.orphans...)
	s.orphans = nil
	for s.turn != nil {
		if ln := s.turn.next; ln.numbered > 0 {
			s.drained = append(s.drained, ln.msgs[ln.first].Header)
		}
		s.unlist(s.turn.next, func(m *subsys.Frame) { yield(&m.Header) })
	}
}
