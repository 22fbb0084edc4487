// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/subsys"
)

// An acknowledgement goes out by itself after so many frames or bytes; sooner
// with whatever is sent, and at the latest at the next tick.
const (
	ackFrames = 4096
	ackBytes  = 1 << 20
)

// mostAnswers is how many frames a peer may have caused and not acknowledged, such as
// that a resource does not exist. A peer that reads what it is sent never has so many: of
// its own frames at most maxUnacked wait for an answer.
const mostAnswers = 2 * maxUnacked

// receive works on frames that came over c.
func (l *link) receive(c subsys.Conn, fs []subsys.Frame) error {
	answered, err := l.digest(c, fs)
	if !answered {
		return err
	}
	// What the frames made us say goes out when no lock is held: the peer may
	// be in this process and answer at once.
	l.mu.Lock()
	if l.conn == c && !l.writing && !l.stalled && !l.s.quiet() && !l.paced() {
		l.pump()
	}
	l.mu.Unlock()
	return err
}

// digest is receive up to the answers, and says whether there are any.
func (l *link) digest(c subsys.Conn, fs []subsys.Frame) (answered bool, err error) {
	l.rx.Lock()
	defer l.rx.Unlock()
	if len(l.parts) > 0 {
		if err := l.makeReady(fs); err != nil {
			return false, err
		}
	}
	l.mu.Lock()
	if l.conn != c {
		l.mu.Unlock()
		return false, subsys.ErrClosed
	}
	if l.runs { // else Send's return is the acknowledgement
		// Frames in a writer's hands are let go of by the writer.
		if err := l.s.acked(fs[len(fs)-1].Ack); err != nil {
			l.mu.Unlock()
			return false, err
		}
		if !l.writing {
			l.release()
		}
	}
	if l.s.head-l.answersFrom < 1<<31 {
		l.answers, l.answersFrom = 0, l.s.next
	} else if l.answers > mostAnswers {
		l.mu.Unlock()
		return false, fmt.Errorf("%w: %d answers are not acknowledged", ErrProtocol, l.answers)
	}
	fresh, got, err := l.s.accept(fs)
	if err != nil {
		l.mu.Unlock()
		return false, err
	}
	ended := l.closedIn
	l.closedIn = nil
	l.stream.heard = true
	if l.trial.resting {
		l.stir()
	}
	l.gotNow += uint64(got.messages)
	l.traffic.receivedB += uint64(got.bytes)
	l.unacked += got.wire
	switch unsaid := l.s.rxNext - l.s.rxTold; {
	case !l.runs || unsaid == 0:
		l.unacked = 0
	case unsaid >= ackFrames || l.unacked >= ackBytes && unsaid > 1: // a single message is often answered
		l.sayAck(c)
	default:
		l.d.acksDue.Store(true)
	}
	l.answered = l.s.turn != nil // what was acknowledged may let more be numbered
	l.mu.Unlock()
	l.forget(ended)
	err = l.work(fs[fresh:])
	return l.answered, err
}

// answer is push for what the frames at hand ask for. rx is held.
func (l *link) answer(typ uint8, dst, src uint32, tag uint64, payload ...byte) {
	l.push(typ, dst, src, tag, payload...)
	l.answered = true
	l.answers++
}

// work does what fresh frames ask, in order. rx is held.
func (l *link) work(fs []subsys.Frame) error {
	for i := 0; i < len(fs); {
		f := &fs[i]
		if f.Type != frameData {
			if err := l.control(f); err != nil {
				return err
			}
			i++
			continue
		}
		j := i + 1
		bytes := len(f.Data)
		whole := bytes == int(f.Len) // else its payload was skipped
		for j < len(fs) && fs[j].Type == frameData && fs[j].Dst == f.Dst {
			bytes += len(fs[j].Data)
			j++
		}
		if l.part(f.Dst) != nil {
			return fmt.Errorf("%w: a message to %d between the pieces of another", ErrProtocol, f.Dst)
		}
		in := l.inflow(f.Dst)
		err := ErrGone
		if in.mb != nil && whole {
			err = in.mb.deliver(in, fs[i:j], bytes)
		}
		switch {
		case err == nil:
		case errors.Is(err, ErrGone):
			if whole {
				in.mb = nil
			}
			for ; i < j; i++ {
				l.answer(frameGone, f.Dst, fs[i].Src, fs[i].Tag, lost(fs[i].Src, int(fs[i].Len))...)
			}
		default:
			return fmt.Errorf("%w: message of %d bytes to %d exceeds its credit", err, len(f.Data), f.Dst)
		}
		i = j
	}
	return nil
}

// inflow finds or makes the account of the peer with resource dst. rx is held.
func (l *link) inflow(dst uint32) *inflow {
	if in := l.lastFlow; in != nil && in.dst == dst && in.mb != nil {
		return in
	}
	in := l.inflows[dst]
	if in == nil {
		in = &inflow{l: l, dst: dst}
		if mb := l.d.mailbox(dst); mb != nil && mb.admit(in) {
			in.mb = mb
			l.inflows[dst] = in // unknown ones are not remembered: a peer could make up many
		}
	}
	l.lastFlow = in
	return in
}

func (l *link) control(f *subsys.Frame) error {
	switch f.Type {
	case frameCredit:
		l.mu.Lock()
		if fl := l.flows[f.Dst]; fl != nil && f.Tag > fl.limit {
			fl.limit = f.Tag
			l.answered = fl.serve() || fl.giveBack() || l.answered
		}
		l.mu.Unlock()
	case frameNeed:
		in := l.inflow(f.Dst)
		g, err := uint64(0), ErrGone
		switch {
		case in.mb == nil:
		case len(f.Data) == 0:
			g, err = in.mb.needs(in, f.Tag)
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
			l.answer(frameGone, f.Dst, 0, 0)
		case g != 0:
			l.tell(in.mb, in)
			l.answered = true
			l.answers++
		}
	case frameGone:
		to := l.peer.WithSerial(f.Dst)
		u := Undelivered{From: l.d.self.WithSerial(f.Src), To: to, Tag: f.Tag, Err: ErrGone}
		if len(f.Data) == 4 {
			u.Bytes = int(binary.LittleEndian.Uint32(f.Data))
		}
		var others []Undelivered
		l.mu.Lock()
		if fl := l.flows[f.Dst]; fl != nil && fl.gone == nil {
			fl.gone = fmt.Errorf("%w: %v", ErrGone, to)
			fl.waiters.fireAll()
			others = l.abandon(fl)
			l.full.fireAll() // they look again, as do those who follow what was abandoned
			l.behind.fireAll()
			l.lay(fl)
			l.answered = true
		}
		isNew := f.Src != 0 && l.s.reported(f.Dst, f.Src, f.Tag, uint32(u.Bytes))
		l.mu.Unlock()
		if isNew {
			l.d.undelivered(u)
		}
		for _, u := range others {
			l.d.undelivered(u)
		}
	case frameBegin:
		return l.onBegin(f)
	case framePiece:
		return l.onPiece(f)
	case frameBye:
		l.die(fmt.Errorf("%w: its context %v has ended", ErrGone, l.peer))
	}
	return nil
}

// makeRoom judges the length of a large frame that comes over c before memory is given
// to it: a message may not be longer than the credit its sender was given. It returns
// nil for a frame whose payload is not needed: one that has come before, or one for a
// resource that does not exist.
func (l *link) makeRoom(c subsys.Conn, h *subsys.Header) (*buffers.Buffer, error) {
	if h.Type != frameData && h.Type != framePiece || h.Len > MaxMessage {
		return nil, fmt.Errorf("%w: frame type %d of %d bytes", ErrProtocol, h.Type, h.Len)
	}
	l.rx.Lock()
	defer l.rx.Unlock()
	if l.left {
		return nil, fmt.Errorf("%w: the link has ended", subsys.ErrClosed)
	}
	l.mu.Lock()
	current, next := l.conn == c, l.s.rxNext
	l.mu.Unlock()
	switch d := h.Seq - next; {
	case !current:
		return nil, fmt.Errorf("%w: the link has another connection", subsys.ErrClosed)
	case d > 1<<31: // judged when it came first; the session drops it
		return nil, nil
	case d > 0:
		return nil, fmt.Errorf("%w: frame %d, expected %d", ErrProtocol, h.Seq, next)
	}
	if h.Type == framePiece {
		p, in, err := l.judgePiece(h)
		if p == nil || err != nil || in.mb == nil || in.mb.isClosed() {
			return nil, err
		}
		if err := p.memory(l); err != nil {
			return nil, err
		}
		return p.buf.Slice(p.have, int(h.Len)), nil
	}
	// Frames before this one have been delivered, so received is exact.
	in := l.inflow(h.Dst)
	if in.mb == nil {
		return nil, nil
	}
	if in.over(charge(int(h.Len))) {
		return nil, fmt.Errorf("%w: message of %d bytes to %d exceeds its credit", ErrProtocol, h.Len, h.Dst)
	}
	return l.d.reserved(int(h.Len))
}
