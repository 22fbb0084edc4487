// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/planted"
	"github.com/rocl-go/rocl/subsys"
)

// After ackFrames frames or ackBytes bytes, an acknowledgement is sent in a frame of its own. It
// goes earlier with any frame that is sent, and at the latest at the next tick.
const (
	ackFrames = 4096
	ackBytes  = 1 << 20
)

// mostAnswers is how many frames a peer may have caused and not acknowledged, such as a frame that
// says that a resource does not exist. A peer that reads what it is sent never has so many: at most
// session.MaxUnacked of its own frames wait for an answer.
const mostAnswers = 2 * session.MaxUnacked

// mostPending is how many frames of any kind may wait for the acknowledgement of a peer that keeps
// sending. A program that releases requests without a reply causes frames that no other limit
// counts.
const mostPending = 1 << 20

// inbound is the part of a link that works on what arrives. The holder of the progress token owns
// it: no two connections of a link interleave, nor two lanes with one peer.
type inbound struct {
	inflows  map[uint32]*inflow
	lastFlow *inflow
	answered bool // the work on the frames of one call of receive has queued frames, which receive writes
	// answers counts the frames that work has queued since the frame numbered answersFrom, which
	// the peer has not acknowledged.
	answers        int
	answersFrom    uint32
	accountsClosed bool // the mailboxes know that the link ends
	parts          []part
	nextCall       nextCall
	nextTrace      nextTrace
	assembled      [1]subsys.Frame // a message that has its last piece
	unacked        int             // bytes that have come since the last acknowledgement
	firstUnacked   uint32          // the first frame that is not acknowledged yet

	got atomic.Uint64 // what was received over the present connection and is not in traffic yet; see gotBits
}

// The lower bits of inbound.got are bytes of payload, the others messages.
const gotBits = 40

// receive works on frames that came over c, which has the sink end. The token must be held.
func (l *link) receive(end *endpoint, c subsys.Conn, fs []subsys.Frame) error {
	answered, err := l.process(end, c, fs)
	if answered {
		l.mu.Lock()
		if l.conn == c && !l.isPacedLocked() {
			l.writeLocked()
		}
		l.mu.Unlock()
	}
	return err
}

// process is receive without writing the answers, and reports whether there are any. A frame that
// asks only for its delivery takes no lock of the link.
func (l *link) process(end *endpoint, c subsys.Conn, fs []subsys.Frame) (answered bool, err error) {
	if len(l.parts) > 0 {
		if err := l.makeReady(fs); err != nil {
			return false, err
		}
	}
	if !end.isCurrent.Load() {
		return false, subsys.ErrClosed
	}
	if err := l.s.Acked(fs[len(fs)-1].Ack); err != nil {
		return false, err
	}
	fresh, got, err := l.s.Accept(fs)
	if err != nil {
		return false, err
	}
	if got.Messages > 0 || got.Bytes > 0 {
		l.count(got.Messages, got.Bytes)
	}
	l.answered = false
	isDue := l.countUnacked(got.Wire)
	if l.answers > 0 || l.needsLock.Load() {
		err = l.workOnSending()
	}
	// Whatever the peer has done wrong, all that has been accepted is worked on: it is
	// acknowledged.
	for fs = fs[fresh:]; len(fs) > 0; {
		n, wrong := l.work(fs)
		if err == nil {
			err = wrong
		}
		fs = fs[n:]
	}
	l.s.Worked()
	if isDue {
		l.mu.Lock()
		if l.conn == c {
			l.sendAckLocked(c)
		}
		l.mu.Unlock()
	} else {
		l.d.progress.OweAck()
	}
	return l.answered, err
}

// count counts what was received.
func (l *link) count(messages, bytes int) {
	now := l.got.Add(uint64(messages)<<gotBits | uint64(bytes))
	if now&(1<<63|1<<(gotBits-1)) != 0 { // half of either is used
		l.mu.Lock()
		l.flushCountersLocked()
		l.mu.Unlock()
	}
}

// countUnacked counts bytes that came, and reports whether they are to be acknowledged at once.
func (l *link) countUnacked(bytes int) bool {
	next, acked := l.s.Accepted(), l.s.AckSent()
	if acked != l.firstUnacked {
		l.firstUnacked, l.unacked = acked, 0
	}
	if l.unacked += bytes; next == acked {
		l.unacked = 0
		return false
	}
	unsaid := next - acked
	return unsaid >= ackFrames || l.unacked >= ackBytes && unsaid > 1 // a single message is often answered
}

// workOnSending does the work on the sending part of the link that arrived frames ask for. The
// token must be held, and not mu.
func (l *link) workOnSending() error {
	l.mu.Lock()
	if !l.callWriter() { // otherwise the writer releases
		l.releaseLocked()
	}
	if l.s.Head()-l.answersFrom < 1<<31 {
		l.answers, l.answersFrom = 0, l.s.Next()
	} else if l.answers > mostAnswers {
		l.mu.Unlock()
		return fmt.Errorf("%w: %d answers are not acknowledged", ErrProtocol, l.answers)
	}
	if n := l.s.Pending(); n > l.mostPending {
		l.mu.Unlock()
		return fmt.Errorf("%w: %d frames are not acknowledged", ErrProtocol, n)
	}
	ended := l.closedIn
	l.closedIn = nil
	l.actLocked(l.life.Traffic(l.s.Expected(), l.s.Next()))
	l.answered = l.s.HasQueued() // an acknowledgement may let more frames be numbered
	l.mu.Unlock()
	l.forget(ended)
	return nil
}

// answer is lockAndPut for frames that the received frames ask for. The token must be held.
func (l *link) answer(typ uint8, dst, src uint32, tag uint64, payload ...byte) {
	l.lockAndPut(typ, dst, src, tag, payload...)
	l.countAnswer()
}

// countAnswer counts a frame that was queued because of what the peer sent. The token must be held.
func (l *link) countAnswer() {
	l.answered = true
	if l.answers++; l.answers == 1 {
		l.mu.Lock()
		l.answersFrom = l.s.Next()
		l.mu.Unlock()
	}
}

// work does what fresh frames ask for, in order, up to the first ones that the peer may not send.
// It returns how many frames it has come through, those included. The token must be held.
func (l *link) work(fs []subsys.Frame) (n int, err error) {
	for i := 0; i < len(fs); {
		f := &fs[i]
		if f.Type == wire.TypeCancel {
			j := i + 1
			for j < len(fs) && fs[j].Type == wire.TypeCancel && fs[j].Dst == f.Dst {
				j++
			}
			if err := l.onCancel(fs[i:j]); err != nil {
				return j, err
			}
			i = j
			continue
		}
		if f.Type != wire.TypeData {
			i++
			if err := l.control(f); err != nil {
				return i, err
			}
			continue
		}
		call, err := l.takeCallOf(f)
		if err != nil {
			return i + 1, err
		}
		t := l.takeTraceOf(f)
		j := i + 1
		bytes := len(f.Data)
		whole := bytes == int(f.Len) // otherwise the payload was skipped
		for call == 0 && t == nil && j < len(fs) && fs[j].Type == wire.TypeData && fs[j].Dst == f.Dst && fs[j].Flags&wire.FlagCall == 0 {
			bytes += len(fs[j].Data)
			j++
		}
		if l.part(f.Dst) != nil {
			return j, fmt.Errorf("%w: a message to %d between the pieces of another", ErrProtocol, f.Dst)
		}
		in := l.inflow(f.Dst)
		err = ErrGone
		switch {
		case in.mb != nil && whole:
			err = in.mb.deliver(in, fs[i:j], bytes, call, t)
		case in.mb != nil && l.d.budget.NeverHolds(int(f.Len)): // j is i+1: a payload that is skipped comes alone
			l.dropMessage(in, f.Src, f.Tag, int(f.Len), purposeOf(call, f.Flags))
			err = nil
		}
		switch {
		case err == nil:
		case errors.Is(err, ErrGone):
			if whole {
				in.mb = nil
			}
			for ; i < j; i++ {
				l.notDelivered(f.Dst, fs[i].Src, fs[i].Tag, int(fs[i].Len), purposeOf(call, fs[i].Flags))
			}
		default:
			return j, fmt.Errorf("%w: message of %d bytes to %d exceeds its credit", err, len(f.Data), f.Dst)
		}
		i = j
	}
	return len(fs), nil
}

// inflow finds or makes the account of the peer with resource dst. The token must be held.
func (l *link) inflow(dst uint32) *inflow {
	if in := l.lastFlow; in != nil && in.dst == dst && in.mb != nil {
		return in
	}
	in := l.inflows[dst]
	if in == nil {
		in = newInflow(l, dst, nil)
		if mb := l.d.mailbox(dst); mb != nil && mb.admit(in) {
			in.mb = mb
			l.inflows[dst] = in // unknown resources are not remembered: a peer could make up many
		}
	}
	l.lastFlow = in
	return in
}

// control works on a frame that is not a message. The token must be held.
func (l *link) control(f *subsys.Frame) error {
	if l.nextCall.number != 0 && f.Type != wire.TypeBegin && f.Type != wire.TypeAck {
		return fmt.Errorf("%w: frame type %d where the request of a call is due", ErrProtocol, f.Type)
	}
	switch f.Type {
	case wire.TypeCredit:
		return l.onCredit(f)
	case wire.TypeNeed:
		return l.onNeed(f)
	case wire.TypeGone:
		l.onGone(f)
	case wire.TypeBegin:
		return l.onBegin(f)
	case wire.TypePiece:
		return l.onPiece(f)
	case wire.TypeCall:
		return l.onCall(f)
	case wire.TypeNoReply:
		return l.onNoReply(f)
	case wire.TypeTooLarge:
		return l.onTooLarge(f)
	case wire.TypeTrace:
		l.nextTrace = nextTrace{f.Dst, f.Src, parseTrace(f.Data)}
	case wire.TypeFollow:
		return l.onFollow(f)
	case wire.TypeBye:
		l.endLink(fmt.Errorf("%w: its context %v has ended", ErrGone, l.peer))
	}
	return nil
}

// onCredit notes what this context may send to a resource of the peer. The token must be held.
func (l *link) onCredit(f *subsys.Frame) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(f.Data) > 0 && !l.setUnitLocked(f) {
		return fmt.Errorf("%w: credit for %d with a payload of %d bytes that makes no sense", ErrProtocol, f.Dst, len(f.Data))
	}
	if fl := l.flows[f.Dst]; fl != nil && fl.credit.Grant(f.Tag) {
		l.answered = fl.serveLocked() || fl.giveBackLocked(false) || l.answered
	}
	return nil
}

// onNeed works on what the peer says of its credit with a mailbox: how much it waits for, or what
// it gives back. The token must be held.
func (l *link) onNeed(f *subsys.Frame) error {
	in := l.inflow(f.Dst)
	g, err := uint64(0), ErrGone
	switch {
	case in.mb == nil:
	case len(f.Data) == 0:
		g, err = in.mb.onNeed(in, f.Tag, credit.Outgoing{})
	case len(f.Data) == needLen:
		o := parseNeed(f)
		if g, err = in.mb.onNeed(in, f.Tag, o); errors.Is(err, credit.ErrTooLarge) {
			l.refuseNeed(f.Dst, f.Tag, o)
			return nil
		}
	case len(f.Data) == 8:
		err = in.mb.takeBack(in, f.Tag, binary.LittleEndian.Uint64(f.Data))
	default:
		err = ErrProtocol
	}
	switch {
	case errors.Is(err, ErrProtocol):
		return fmt.Errorf("%w: asks for %d bytes of credit, or returns some", err, f.Tag)
	case err != nil:
		in.mb = nil
		l.queueGone(f.Dst)
		l.countAnswer()
	case g != 0:
		l.queueCredit(in.mb, in)
		l.countAnswer()
	}
	return nil
}

// onGone notes that a resource of the peer does not exist, that it has ended, or that a message to
// it was not delivered. The token must be held.
func (l *link) onGone(f *subsys.Frame) {
	to := l.peer.WithSerial(f.Dst)
	u := Undelivered{From: l.d.self.WithSerial(f.Src), To: to, Tag: f.Tag, Err: ErrGone}
	if len(f.Data) == 4 {
		u.Bytes = int(binary.LittleEndian.Uint32(f.Data))
	}
	var others []Undelivered
	l.mu.Lock()
	if fl := l.flows[f.Dst]; fl != nil && fl.gone == nil {
		fl.gone = ErrGone
		others = l.abandonLocked(fl)
		fl.loseHeldLocked(func(h *subsys.Header) {
			if isReported(h) {
				others = append(others, Undelivered{From: l.d.self.WithSerial(h.Src), To: to, Tag: h.Tag, Bytes: int(h.Len), Err: ErrGone})
			}
		})
		fl.waiters.fireAll()
		l.full.fireAll() // these senders check again, and so do those behind the abandoned messages
		l.behind.fireAll()
		l.dropGoneLocked(fl)
		l.answered = true
	}
	isNew := f.Src != 0 && len(f.Data) > 0 && l.s.Reported(f.Dst, f.Src, f.Tag, uint32(u.Bytes))
	var ended []*ending
	if f.Src == 0 { // otherwise it refuses a message, and may come before other messages that were sent earlier
		ended = l.takeEndingsLocked(f.Dst)
	}
	l.mu.Unlock()
	callAll(ended, ErrGone)
	if isNew {
		l.d.undelivered(u)
	}
	for _, u := range others {
		l.d.undelivered(u)
	}
}

// payloadBuffer returns memory for the payload of a large frame that comes over a connection with
// the sink end, after it has checked the length. A message may not be longer than the credit its
// sender was given. payloadBuffer returns nil for a frame with a payload that is not needed: the
// frame has come before, or its resource does not exist. The token must be held.
func (l *link) payloadBuffer(end *endpoint, h *subsys.Header) (*buffers.Buffer, error) {
	if h.Type != wire.TypeData && h.Type != wire.TypePiece || h.Len > MaxMessage {
		return nil, fmt.Errorf("%w: frame type %d of %d bytes", ErrProtocol, h.Type, h.Len)
	}
	if l.accountsClosed {
		return nil, fmt.Errorf("%w: the link has ended", subsys.ErrClosed)
	}
	next := l.s.Expected()
	switch d := h.Seq - next; {
	case !end.isCurrent.Load():
		return nil, fmt.Errorf("%w: the link has another connection", subsys.ErrClosed)
	case d > 1<<31: // checked when it came first; the session drops it
		return nil, nil
	case d > 0:
		return nil, fmt.Errorf("%w: frame %d, expected %d", ErrProtocol, h.Seq, next)
	}
	if h.Type == wire.TypePiece {
		p, in, err := l.checkPiece(h)
		if p == nil || err != nil || in.mb == nil || in.mb.isClosed() {
			return nil, err
		}
		if err := p.memory(l); err != nil || p.isDropped {
			return nil, err
		}
		return p.buf.Slice(p.have, int(h.Len)), nil
	}
	// Frames before this one have been delivered, so received is exact.
	in := l.inflow(h.Dst)
	if in.mb == nil {
		return nil, nil
	}
	if err := in.checkCredit(int(h.Len)); err != nil {
		return nil, err
	}
	if planted.Is(planted.EarlyAck) {
		l.ackEarly(h.Seq + 1)
	}
	return l.memory(h.Dst, h.Src, h.Tag, int(h.Len))
}

// ackEarly is for the planted defect EarlyAck.
func (l *link) ackEarly(ack uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.conn; c != nil && l.takePenLocked() {
		f := subsys.Frame{}
		f.Type, f.Ack = wire.TypeAck, ack
		l.mu.Unlock()
		_, _ = c.Send([]subsys.Frame{f})
		l.mu.Lock()
		l.putDownLocked(penIdle)
	}
}
