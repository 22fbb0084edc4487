// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"encoding/binary"
	"fmt"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/subsys"
)

// Protocol: Messages in pieces
//
// Over TCP and TLS a message of more than 262,144 bytes travels as Begin and then Pieces, over
// other transports as one Data. Frames to other resources may come between, and none of Data or
// Begin for the same dst. At most 16 messages of a session have begun and not ended. The whole is
// charged at Begin. Together the pieces have exactly its length. If dst does not exist, Begin or
// the next Piece is answered with Gone, once, and the others are dropped. A sender that receives
// Gone sends a Piece without payload in place of the rest, which is answered with Gone if nothing
// was.

// A message above session.WholeLen travels over a stream in pieces: a Begin frame, then
// Piece frames, each with its own number. The sender's session splits it. The receiver reads
// all pieces into one buffer.

// feedBytes is the number of unsent bytes above which no further piece is numbered.
const feedBytes = 1 << 20

// feedLinesLocked numbers messages that wait, as long as little is unsent. mu must be held.
func (l *link) feedLinesLocked() {
	for l.s.IsFeedable() && l.s.Unsent() < feedBytes {
		ln := l.s.Upcoming(l.canSplit)
		if p, src := ln.Trace(); p != nil {
			l.putTraceLocked(ln.Dst(), src, (*[traceLen]byte)(p))
		}
		if number, src := ln.Call(); number != 0 {
			l.putLocked(wire.TypeCall, ln.Dst(), src, number)
		}
		if l.s.HasBegin(ln, l.canSplit) {
			var h subsys.Header
			var p [4]byte
			ln.Begin(&h, &p)
			if !l.copyLocked(&h, p[:]) {
				l.s.Push(&subsys.Frame{Header: h, Data: append([]byte(nil), p[:]...)})
			}
		}
		dst := ln.Dst()
		l.s.Number(ln, l.canSplit)
		f := l.flows[dst]
		if f == nil {
			continue
		}
		f.putCancelsLocked()
		if !ln.IsWaiting() && f.waiters.First() != nil {
			f.serveLocked() // the writer goes on with what it has put
		}
	}
}

// abandonLocked gives up the messages that wait for a resource that has gone, and returns the
// messages to report. mu must be held.
func (l *link) abandonLocked(f *Flow) (reports []Undelivered) {
	end, begun := l.s.Abandon(&f.line, func(h *subsys.Header) {
		if !isReported(h) {
			return
		}
		reports = append(reports, Undelivered{From: l.d.self.WithSerial(h.Src), To: l.peer.WithSerial(h.Dst), Tag: h.Tag, Bytes: int(h.Len), Err: ErrGone})
	})
	if begun {
		l.putLocked(wire.TypePiece, end.Dst, end.Src, end.Tag)
	}
	return reports
}

// The receiver:

// A part is a message with pieces still to come. The holder of the progress token owns it.
type part struct {
	dst, src    uint32
	tag         uint64
	purpose     purpose
	total, have int
	buf         *buffers.Buffer // has total bytes; nil before the first piece, and if isDropped
	isDropped   bool            // there is never memory for the message: its pieces are skipped
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

// dropPart forgets p. Its buffer now belongs to the caller. The token must be held.
func (l *link) dropPart(p *part, in *inflow) {
	if in.mb != nil {
		in.mb.expect(in, 0)
	}
	last := len(l.parts) - 1
	*p = l.parts[last]
	l.parts[last] = part{}
	l.parts = l.parts[:last]
}

// onBegin checks the length of a message that comes in pieces. The message gets memory with its
// first piece. The token must be held.
func (l *link) onBegin(f *subsys.Frame) error {
	if len(f.Data) != 4 || l.part(f.Dst) != nil || len(l.parts) == session.MaxSplitting {
		return fmt.Errorf("%w: a message in pieces to %d begins within %d others", ErrProtocol, f.Dst, len(l.parts))
	}
	call, err := l.takeCallOf(f)
	if err != nil {
		return err
	}
	p := purposeOf(call, f.Flags)
	p.trace = l.takeTraceOf(f)
	total := binary.LittleEndian.Uint32(f.Data)
	if total == 0 || total > MaxMessage {
		return fmt.Errorf("%w: a message of %d bytes in pieces", ErrProtocol, total)
	}
	in := l.inflow(f.Dst)
	if in.mb != nil {
		if err := in.checkCredit(int(total)); err != nil {
			return err
		}
	}
	if in.mb == nil || !in.mb.expect(in, in.Charge(int(total))) {
		in.mb = nil
		l.notDelivered(f.Dst, f.Src, f.Tag, int(total), p)
		return nil
	}
	l.parts = append(l.parts, part{dst: f.Dst, src: f.Src, tag: f.Tag, purpose: p, total: int(total)})
	return nil
}

// checkPiece checks that a piece is the next one of its message. It returns nil without an error if
// the piece is of no use, because the resource does not exist. The token must be held.
func (l *link) checkPiece(h *subsys.Header) (*part, *inflow, error) {
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

// memory gives p a buffer, unless it has one. The token must be held.
func (p *part) memory(l *link) error {
	if p.buf != nil || p.isDropped {
		return nil
	}
	b, err := l.memory(p.dst, p.src, p.tag, p.total)
	if err != nil {
		return err
	}
	p.buf, p.isDropped = b, b == nil
	return nil
}

// makeReady gives memory to the messages that the pieces among fs belong to. It is called before fs
// are accepted. If it fails, the connection stops or breaks, and the frames come again. The token
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
		if !p.isDropped && f.Tag+uint64(f.Len) == uint64(p.total) {
			if err := p.makeOwn(l, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// makeOwn gives p, of which f is the last piece, another buffer if a connection that was replaced
// may still read the same piece into the present one. The token must be held.
func (p *part) makeOwn(l *link, f *subsys.Frame) error {
	holders := 1
	if len(f.Data) > 0 && f.Tag < uint64(p.total) && &p.buf.Bytes()[f.Tag] == &f.Data[0] {
		holders++ // the frame holds the buffer too
	}
	if p.buf.Refs() <= holders {
		return nil
	}
	b, err := l.d.arriving(p.total)
	if err != nil {
		return err
	}
	copy(b.Bytes(), p.buf.Bytes()[:p.have])
	l.d.CountCopy(p.have)
	p.buf.Release()
	p.buf = b
	return nil
}

// onPiece takes a piece, which may already have been read into its place. It delivers the message
// with the last piece. The token must be held.
func (l *link) onPiece(f *subsys.Frame) error {
	p, in, err := l.checkPiece(&f.Header)
	if p == nil || err != nil {
		return err
	}
	if in.mb == nil || in.mb.isClosed() || f.Len == 0 { // a piece without bytes ends a message that its sender has given up
		l.notDelivered(p.dst, p.src, p.tag, p.total, p.purpose)
		if p.buf != nil {
			p.buf.Release()
		}
		l.dropPart(p, in)
		if f.Len > 0 {
			in.mb = nil
		}
		return nil
	}
	if !p.isDropped && len(f.Data) == int(f.Len) {
		if err := p.memory(l); err != nil {
			return l.fail(err)
		}
	}
	if p.isDropped {
		if p.have += int(f.Len); p.have == p.total {
			d := *p
			l.dropPart(p, in)
			l.dropMessage(in, d.src, d.tag, d.total, d.purpose)
		}
		return nil
	}
	if len(f.Data) != int(f.Len) {
		return fmt.Errorf("%w: a piece to %d without its payload", ErrProtocol, f.Dst)
	}
	if to := p.buf.Bytes()[p.have:]; &to[0] != &f.Data[0] {
		copy(to, f.Data)
		l.d.CountCopy(len(f.Data))
	}
	if p.have += len(f.Data); p.have < p.total {
		return nil
	}
	whole, b := *p, p.buf
	l.dropPart(p, in)
	g := &l.assembled[0]
	g.Len, g.Type, g.Tag, g.Src, g.Dst = uint32(whole.total), wire.TypeData, whole.tag, whole.src, whole.dst
	g.Data, g.Buf, g.Spare = b.Bytes(), b, true
	g.Flags = whole.purpose.flags()
	l.nextTrace = nextTrace{whole.dst, whole.src, whole.purpose.trace}
	if call := whole.purpose.call; call != 0 {
		l.nextCall = nextCall{whole.dst, whole.src, call}
	}
	_, err = l.work(l.assembled[:])
	if g.Buf != nil {
		g.Buf.Release()
	}
	*g = subsys.Frame{}
	return err
}

// fail ends the link, because a piece has been accepted and there is no memory for it. That happens
// only to a piece that came together with the beginning of its message, or that came to a landing
// whose memory the program has taken back.
func (l *link) fail(err error) error {
	l.endLink(fmt.Errorf("%w: %v: %w", ErrUnreachable, l.peer, err))
	return fmt.Errorf("%w: %v", subsys.ErrClosed, err)
}

// dropParts frees the buffers of messages that will not become complete. The token must be held.
func (l *link) dropParts() {
	for i := range l.parts {
		if b := l.parts[i].buf; b != nil {
			b.Release()
		}
	}
	l.parts = nil
}
