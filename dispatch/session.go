package dispatch

import (
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/subsys"
)

// ErrProtocol says that a peer broke the rules of docs/PROTOCOL.md; the conn
// it came over is cut.
var ErrProtocol = errors.New("dispatch: protocol violation")

// maxUnacked bounds the frames of one link that were accepted and not yet
// acknowledged.
const maxUnacked = 1 << 15

// A session is the part of a link that outlives its conns: what was sent and
// not acknowledged, and how far the peer's frames have come. It is a machine
// without I/O, clock or lock. Sequence numbers are modulo 2³² and never more
// than maxUnacked apart.
//
//	acknowledged | unacknowledged      | not handed to a conn |
//	-------------+---------------------+----------------------+
//	           head (done ≥ head)    sent                   next
type session struct {
	ring             []subsys.Frame // frames head..next, at seq & (len-1)
	head, sent, next uint32
	done             uint32 // frames before it are acknowledged; released when no conn holds them

	rxNext uint32 // the frame expected next
	rxTold uint32 // what the peer has been told, as an acknowledgement
}

func (s *session) pending() int { return int(s.next - s.head) }
func (s *session) room() bool   { return s.pending() < maxUnacked }
func (s *session) idle() bool   { return s.head == s.next }

// push takes a frame over and gives it the next sequence number. Control
// frames are pushed without asking room: there are few of them.
func (s *session) push(f *subsys.Frame) { *s.slot(f.Type) = *f; s.at(s.next - 1).Seq = s.next - 1 }

// slot is push of a frame that the caller fills in where it lies. Its type and
// sequence number are set.
func (s *session) slot(typ uint8) *subsys.Frame {
	if n := s.pending(); n == len(s.ring) {
		ring := make([]subsys.Frame, max(64, 2*n))
		for q := s.head; q != s.next; q++ {
			ring[int(q)&(len(ring)-1)] = *s.at(q)
		}
		s.ring = ring
	}
	f := s.at(s.next)
	f.Type, f.Seq = typ, s.next
	s.next++
	return f
}

func (s *session) at(seq uint32) *subsys.Frame { return &s.ring[int(seq)&(len(s.ring)-1)] }

// take returns up to limit frames to be handed to a conn, in order, each
// carrying the newest acknowledgement, and counts them as sent: the peer may
// acknowledge them before the conn has returned. The slice is valid until they
// are acknowledged or the session is rewound.
func (s *session) take(limit int) []subsys.Frame {
	n := min(int(s.next-s.sent), limit)
	if n == 0 {
		return nil
	}
	i := int(s.sent) & (len(s.ring) - 1)
	fs := s.ring[i:min(i+n, len(s.ring))]
	for i := range fs {
		fs[i].Ack = s.rxNext
	}
	s.sent += uint32(len(fs))
	s.rxTold = s.rxNext
	return fs
}

// untake says that the conn did not take the last n frames.
func (s *session) untake(n int) { s.sent -= uint32(n) }

// acked notes that the peer has received the frames before a. An
// acknowledgement of frames never sent is refused.
func (s *session) acked(a uint32) error {
	if a-s.head > s.sent-s.head {
		if s.head-a <= maxUnacked*2 {
			return nil // an old one
		}
		return fmt.Errorf("%w: acknowledgement of %d, sent up to %d", ErrProtocol, a, s.sent)
	}
	if a-s.head > s.done-s.head {
		s.done = a
	}
	return nil
}

// release drops the frames that were acknowledged and lets go of their
// buffers. No conn may have any of them in its hands.
func (s *session) release() {
	var bufs [64]*buffers.Buffer
	n := 0
	for ; s.head != s.done; s.head++ {
		f := s.at(s.head)
		if f.Buf != nil {
			if f.Buf.Refs() > 1 { // somebody else holds it and may ask
				f.Buf.SetState(buffers.Delivered)
			}
			if bufs[n] = f.Buf; n == len(bufs)-1 {
				buffers.ReleaseAll(bufs[:])
				n = -1
			}
			n++
			f.Data, f.Buf = nil, nil
		}
	}
	buffers.ReleaseAll(bufs[:n])
}

// accept judges the sequence number of a received frame: fresh ones are to be
// used, repeated ones dropped, and a gap means that the conn lost something,
// which it must not.
func (s *session) accept(seq uint32) (fresh bool, err error) {
	switch d := seq - s.rxNext; {
	case d == 0:
		s.rxNext++
		return true, nil
	case d > 1<<31:
		return false, nil
	}
	return false, fmt.Errorf("%w: frame %d, expected %d", ErrProtocol, seq, s.rxNext)
}

// resume continues over a new conn whose peer has received everything before
// peerHas: what it lacks is sent again.
func (s *session) resume(peerHas uint32) error {
	if peerHas-s.head > s.sent-s.head {
		return fmt.Errorf("%w: peer has %d, sent up to %d", ErrProtocol, peerHas, s.sent)
	}
	if err := s.acked(peerHas); err != nil {
		return err
	}
	s.release()
	s.sent = peerHas
	s.rxTold = s.rxNext
	return nil
}

// drain empties the session, yielding what was not acknowledged; the buffers
// are let go after each yield.
func (s *session) drain(yield func(*subsys.Frame)) {
	for ; s.head != s.next; s.head++ {
		f := s.at(s.head)
		yield(f)
		if f.Buf != nil {
			f.Buf.Release()
		}
		*f = subsys.Frame{}
	}
	s.sent, s.done = s.next, s.next
}
