// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/subsys"
)

// maxUnacked bounds the frames of one link that were accepted and not yet
// acknowledged.
const maxUnacked = 1 << 15

// A session is the part of a link that outlives its conns: what was sent and
// not acknowledged, and how far the peer's frames have come. It is a machine
// without I/O, clock or lock. Sequence numbers are modulo 2³² and never more
// than maxUnacked apart, but for a few control frames.
//
// One goroutine at a time may receive (acked, accept) while another sends (all the rest):
// what they share are atomic words.
//
//	acknowledged | unacknowledged      | not handed to a conn |
//	-------------+---------------------+----------------------+
//	           head (done ≥ head)    sent                   next
//
// Large messages, and what was sent to their targets behind them, wait in lines and get
// their numbers later (pieces.go).
//
// After a broken conn sent goes back to what the peer said it had, which may be
// old news: it may acknowledge what an earlier conn was handed, up to most.
//
// Frames are kept in entries: a frame by itself, whose payload lies where the
// sender put it, or a run of small ones, encoded one behind the other as they
// will go on the stream. The last entry, if it is a run, is open: more frames
// may be added while a conn writes those before.
type session struct {
	ring       []entry // entries first..end, at index & (len-1)
	first, end uint32
	cur        uint32 // the entry that is sent next,
	off        int    // and how many bytes of it were, if it is a run
	unsent     int    // bytes, payloads included

	head, sent, next uint32
	most             atomic.Uint32 // the highest sent has been
	done             atomic.Uint32 // frames before it are acknowledged; released when no conn holds them
	large            int           // entries with a buffer that is no run

	lines

	rxNext atomic.Uint32 // the frame expected next
	rxTold atomic.Uint32 // what the peer has been told, or will be by what waits to be sent

	batch [batchFrames]subsys.Frame // lent out by take
	marks [batchFrames]mark
}

// entry is a frame, or a run if its type is TypeRun: Seq is that of the first
// frame, Data what has been filled of Buf.
type entry struct {
	subsys.Frame
	frames   uint32
	total    uint32 // of the last piece of a message: the length of all,
	tag      uint64 // the message's tag,
	reported bool   // and whether the peer has said that it was not delivered
}

// mark is a place in the session to return to.
type mark struct {
	cur  uint32
	off  int
	sent uint32
}

const batchFrames = 64 // entries handed to a conn at once

func (s *session) pending() int { return int(s.next-s.head) + s.queued }
func (s *session) room() bool   { return s.pending() < maxUnacked }
func (s *session) idle() bool   { return s.head == s.next && s.turn == nil }
func (s *session) quiet() bool  { return s.sent == s.next && !s.feedable() }

func (s *session) at(i uint32) *entry { return &s.ring[int(i)&(len(s.ring)-1)] }

// entry returns a new one at the end.
func (s *session) entry() *entry {
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

// stamp numbers h and lets it carry the newest acknowledgement.
func (s *session) stamp(h *subsys.Header) {
	ack := s.rxNext.Load()
	h.Seq, h.Ack = s.next, ack
	if s.rxTold.Load() != ack {
		s.rxTold.Store(ack)
	}
	s.next++
}

// push takes a frame over as an entry of its own.
func (s *session) push(f *subsys.Frame) {
	e := s.entry()
	e.Frame, e.frames, e.total = *f, 1, 0
	if f.Buf != nil {
		s.large++
	}
	s.stamp(&e.Header)
	s.unsent += subsys.HeaderLen + len(f.Data)
}

// running says whether the last entry is a run: one that is full, who asks
// because it does not fit.
func (s *session) running() bool {
	return s.first != s.end && s.at(s.end-1).Type == subsys.TypeRun
}

// open begins a run in b, which is the session's from here on.
func (s *session) open(b *buffers.Buffer) {
	e := s.entry()
	e.Frame, e.frames, e.total = subsys.Frame{Data: b.Bytes()[:0], Buf: b}, 0, 0
	e.Type, e.Seq = subsys.TypeRun, s.next
}

// add copies a frame to the end of the open run, if there is one and it has
// room. Of h, Seq and Ack are set.
func (s *session) add(h *subsys.Header, payload []byte) bool {
	if s.first == s.end {
		return false
	}
	e := s.at(s.end - 1)
	at, n := len(e.Data), subsys.HeaderLen+len(payload)
	if e.Type != subsys.TypeRun || cap(e.Data)-at < n {
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

// take returns what is to be handed to a conn next, in order, and counts it as
// sent: the peer may acknowledge it before the conn has returned. The slice is
// valid until the next take.
func (s *session) take() []subsys.Frame {
	n := 0
	for s.cur != s.end && n < len(s.batch) {
		e := s.at(s.cur)
		if e.Type == subsys.TypeRun && s.off == len(e.Data) {
			if s.cur+1 == s.end {
				break // all of the open run is sent
			}
			s.cur, s.off = s.cur+1, 0
			continue
		}
		s.marks[n] = mark{s.cur, s.off, s.sent}
		b := &s.batch[n]
		b.Header, b.Data, b.Buf = e.Header, e.Data, e.Buf
		if e.Type == subsys.TypeRun {
			s.batch[n].Data = e.Data[s.off:]
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
	return s.batch[:n]
}

// untake says that of what was taken last, fs, the conn took the first n only.
func (s *session) untake(fs []subsys.Frame, n int) {
	if n == len(fs) {
		return
	}
	for i := range fs[n:] {
		if fs[n+i].Type != subsys.TypeRun {
			s.unsent += subsys.HeaderLen
		}
		s.unsent += len(fs[n+i].Data)
	}
	m := s.marks[n]
	s.cur, s.off, s.sent = m.cur, m.off, m.sent
}

// acked notes that the peer has received the frames before a. An
// acknowledgement of frames never sent is refused.
func (s *session) acked(a uint32) error {
	for {
		done, most := s.done.Load(), s.most.Load()
		switch {
		case done-a <= maxUnacked*2: // an old one
			return nil
		case a-done > most-done:
			return fmt.Errorf("%w: acknowledgement of %d, sent up to %d", ErrProtocol, a, most)
		case s.done.CompareAndSwap(done, a):
			return nil
		}
	}
}

// release drops the entries that were acknowledged and lets go of their
// buffers. No conn may have any of them in its hands.
func (s *session) release() {
	s.head = s.done.Load()
	if s.head-s.sent-1 < 1<<31 {
		s.skipTo(s.head) // the peer had them from an earlier conn
	}
	for s.first != s.end {
		e := s.at(s.first)
		if e.Seq+e.frames-s.head-1 < 1<<31 { // ends after head
			return
		}
		if s.first+1 == s.end && e.Type == subsys.TypeRun && cap(e.Data) <= smallRun && e.Buf.Refs() == 1 {
			// All is acknowledged; the open run begins again where it is, unless a conn
			// has lent it.
			e.Data, e.frames, e.Seq = e.Data[:0], 0, s.next
			s.cur, s.off = s.first, 0
			return
		}
		if s.cur == s.first { // an open run, sent to its end
			s.cur, s.off = s.first+1, 0
		}
		s.drop(e)
		s.first++
	}
}

// skipTo makes seq, which is unsent, the next frame to be sent.
func (s *session) skipTo(seq uint32) {
	s.sent = seq
	for s.cur != s.end {
		e := s.at(s.cur)
		size := len(e.Data)
		if e.Type != subsys.TypeRun {
			size += subsys.HeaderLen
		}
		if before := seq - e.Seq; before < e.frames {
			if before > 0 { // inside a run
				off := skip(e.Data, before)
				s.unsent -= off - s.off
				s.off = off
			}
			return
		}
		s.unsent -= size - s.off
		if e.Type == subsys.TypeRun && s.cur+1 == s.end {
			s.off = size // more may be added
			return
		}
		s.cur, s.off = s.cur+1, 0
	}
}

func (s *session) drop(e *entry) {
	if e.Buf != nil && e.Type != subsys.TypeRun {
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

// accept judges the numbers of received frames. Those of before first came
// once already, over an earlier conn, and are to be dropped; a gap means that
// the conn lost something, which it must not. The messages among the new ones
// are counted, and the bytes of all frames.
func (s *session) accept(fs []subsys.Frame) (first int, got arrived, err error) {
	was := s.rxNext.Load()
	next := was
	for i := range fs {
		f := &fs[i]
		if f.Type == wire.TypeAck {
			continue
		}
		if f.Type < wire.TypeData || f.Type > wire.TypePiece {
			return 0, got, fmt.Errorf("%w: frame type %d", ErrProtocol, f.Type)
		}
		got.wire += subsys.HeaderLen
		if len(f.Data) <= inline || f.Buf == nil || !f.Buf.ReadOnly() { // else its sender gets it back when we release it
			got.wire += int(f.Len)
		}
		switch d := f.Seq - next; {
		case d == 0:
			next++
			switch f.Type {
			case wire.TypeBegin:
				got.messages++
			case wire.TypeData:
				got.messages++
				got.bytes += int(f.Len)
			case wire.TypePiece:
				got.bytes += int(f.Len)
			}
		case d > 1<<31 && next == was:
			first = i + 1
			if f.Seq-s.rxTold.Load() > 1<<31 {
				s.rxTold.Store(f.Seq) // the peer does not know that it has come
			}
		default:
			return 0, got, fmt.Errorf("%w: frame %d, expected %d", ErrProtocol, f.Seq, next)
		}
	}
	if next != was {
		s.rxNext.Store(next)
	}
	return first, got, nil
}

// arrived counts what came in one batch.
type arrived struct {
	messages, bytes int
	wire            int // bytes with headers, of repeated frames too, that the sender keeps until it hears of them
}

// resume continues over a new conn whose peer has received everything before
// peerHas: what it lacks is sent again.
func (s *session) resume(peerHas uint32) error {
	if most := s.most.Load(); peerHas-s.head > most-s.head {
		return fmt.Errorf("%w: peer has %d, sent up to %d", ErrProtocol, peerHas, most)
	}
	if err := s.acked(peerHas); err != nil {
		return err
	}
	if done := s.done.Load(); done != peerHas {
		return fmt.Errorf("%w: peer has %d, acknowledged %d", ErrProtocol, peerHas, done)
	}
	s.release()
	s.sent, s.cur, s.off, s.unsent = peerHas, s.first, 0, 0
	for i := s.first; i != s.end; i++ {
		switch e := s.at(i); {
		case e.Type != subsys.TypeRun:
			s.unsent += subsys.HeaderLen + len(e.Data)
		case i == s.first: // it may be acknowledged in part
			s.off = skip(e.Data, peerHas-e.Seq)
			s.unsent += len(e.Data) - s.off
		default:
			s.unsent += len(e.Data)
		}
	}
	s.rxTold.Store(s.rxNext.Load())
	return nil
}

// handOver is resume while the former conn works: the peer has gone on receiving,
// and acknowledging, since it said what it had.
func (s *session) handOver(peerHas uint32) error {
	if done := s.done.Load(); done-peerHas <= 2*maxUnacked {
		peerHas = done
	}
	return s.resume(peerHas)
}

// skip returns where in a run the frame after the first n begins.
func skip(run []byte, n uint32) (off int) {
	var h subsys.Header
	for range n {
		_ = h.Parse(run[off:]) // our own
		off += subsys.HeaderLen + int(h.Len)
	}
	return off
}

// drain empties the session, yielding what was not acknowledged: of a message in
// pieces, the header that it would have had in one. No conn may have any of it in its
// hands.
func (s *session) drain(yield func(*subsys.Header)) {
	s.release()
	for ; s.first != s.end; s.first++ {
		e := s.at(s.first)
		switch {
		case e.total > 0:
			if !e.reported {
				s.drained = append(s.drained, subsys.Header{Type: wire.TypeData, Len: e.total, Tag: e.tag, Src: e.Src, Dst: e.Dst})
				yield(&s.drained[len(s.drained)-1])
			}
		case e.Type != subsys.TypeRun:
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
		if ln := s.turn.next; ln.cut > 0 {
			s.drained = append(s.drained, ln.msgs[ln.first].Header)
		}
		s.unlist(s.turn.next, func(m *subsys.Frame) { yield(&m.Header) })
	}
}
