// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/subsystest"
	"pgregory.net/rapid"
)

// peerModel is one end of a link as the model sees it: a session, the messages that were pushed,
// and those that have come, by number.
type peerModel struct {
	s        Session
	pool     *buffers.Pool
	pushed   [modelFlows]uint64
	got      [modelFlows]uint64
	lines    [modelFlows]Line
	parts    map[uint32]*modelPart
	call     *subsys.Header // the call that the next frame is the request of; nil: none
	canSplit bool           // the connection wants pieces
	wire     []subsys.Frame // handed to the connection, which has not delivered them
}

const (
	modelFlows = 3
	modelPiece = 700
)

// modelPart is a message with pieces that have come.
type modelPart struct {
	h    subsys.Header
	data []byte
}

// modelCall returns the number of the call that a message is the request of, or 0.
func modelCall(tag uint64) uint64 {
	if tag > 5 && tag%3 == 1 {
		return tag + 1000
	}
	return 0
}

func newPeerModel() *peerModel {
	p := &peerModel{pool: buffers.New(), parts: map[uint32]*modelPart{}}
	p.s.Init(modelPiece/2, modelPiece)
	return p
}

func (p *peerModel) push(flow uint32, size int, small bool) {
	tag := p.pushed[flow]
	p.pushed[flow]++
	h := subsys.Header{Type: wire.TypeData, Tag: tag, Len: uint32(size), Src: 5, Dst: flow}
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(tag) + byte(i)
	}
	ln := &p.lines[flow]
	call := subsys.Header{Type: wire.TypeCall, Tag: modelCall(tag), Src: 5, Dst: flow}
	switch {
	case call.Tag != 0:
		h.Flags = wire.FlagCall
	case tag%4 == 3:
		h.Flags = wire.FlagForget
	}
	if small && size <= modelPiece && !ln.IsWaiting() {
		if !p.s.Fits(2*subsys.HeaderLen + size) {
			b, _ := p.pool.Get(p.s.BatchLen())
			p.s.Open(b)
		}
		if call.Tag != 0 && !p.s.Add(&call, nil) || !p.s.Add(&h, body) {
			panic("a frame that fits has no room")
		}
		return
	}
	b, _ := p.pool.Get(size)
	copy(b.Bytes(), body)
	f := subsys.Frame{Header: h, Data: b.Bytes(), Buf: b}
	if ln.IsWaiting() || size > modelPiece {
		p.s.Queue(ln, &f, call.Tag)
	} else {
		if call.Tag != 0 {
			p.s.Push(&subsys.Frame{Header: call})
		}
		p.s.Push(&f)
	}
}

// feed numbers waiting messages, as a link does.
func (p *peerModel) feed() {
	for p.s.IsFeedable() && p.s.unsent < 2*modelPiece {
		ln := p.s.Upcoming(p.canSplit)
		if number, src := ln.Call(); number != 0 {
			p.s.Push(&subsys.Frame{Header: subsys.Header{Type: wire.TypeCall, Tag: number, Src: src, Dst: ln.Dst()}})
		}
		if p.s.HasBegin(ln, p.canSplit) {
			var h subsys.Header
			var b [4]byte
			ln.Begin(&h, &b)
			p.s.Push(&subsys.Frame{Header: h, Data: b[:]})
		}
		p.s.Number(ln, p.canSplit)
	}
}

// write hands frames to the connection, which takes some.
func (p *peerModel) write(takes func(n int) int) {
	p.feed()
	fs := p.s.Take()
	n := takes(len(fs))
	for _, f := range fs[:n] {
		if f.Type == subsys.TypeBatch {
			p.wire = subsystest.Split(&f, p.wire)
		} else {
			p.wire = append(p.wire, f)
		}
	}
	p.s.Untake(fs, n)
	p.s.Release()
}

// writeOpen writes what is unsent in the open batch, if nothing else is unsent.
func (p *peerModel) writeOpen(takes bool) {
	b := p.s.TakeOpen(1 << 20)
	switch {
	case b == nil:
	case takes:
		f := subsys.Frame{Data: b}
		f.Type = subsys.TypeBatch
		p.wire = subsystest.Split(&f, p.wire)
	default:
		p.s.UntakeOpen()
	}
}

// read delivers n frames of the wire to the other end.
func (p *peerModel) read(t *rapid.T, to *peerModel, n int) {
	fs := p.wire[:n]
	p.wire = p.wire[n:]
	if n == 0 {
		return
	}
	if err := to.s.Acked(fs[n-1].Ack); err != nil {
		t.Fatalf("an honest acknowledgement: %v", err)
	}
	to.s.Release()
	first, _, err := to.s.Accept(fs)
	if err != nil {
		t.Fatalf("honest frames: %v", err)
	}
	for i := range fs[first:] {
		to.read1(t, &fs[first+i])
	}
	to.s.Worked()
	if len(to.parts) > MaxSplitting {
		t.Fatalf("%d messages have begun", len(to.parts))
	}
}

// read1 works on a frame that has not come before.
func (to *peerModel) read1(t *rapid.T, f *subsys.Frame) {
	if part := to.parts[f.Dst]; part != nil && (f.Type == wire.TypeData || f.Type == wire.TypeBegin) {
		t.Fatalf("message %d came between the pieces of %d", f.Tag, part.h.Tag)
	}
	isMessage := f.Type == wire.TypeData || f.Type == wire.TypeBegin
	switch call := to.call; {
	case call != nil && (!isMessage || call.Tag != modelCall(f.Tag) || call.Dst != f.Dst || call.Src != f.Src):
		t.Fatalf("%+v comes where the request of %+v is due", f.Header, call)
	case isMessage && (call != nil) != (f.Flags&wire.FlagCall != 0 && modelCall(f.Tag) != 0):
		t.Fatalf("%+v comes without the number of its call, or with one", f.Header)
	}
	to.call = nil
	switch f.Type {
	case wire.TypeAck:
	case wire.TypeCall:
		h := f.Header
		to.call = &h
	case wire.TypeBegin:
		h := f.Header
		h.Len = binary.LittleEndian.Uint32(f.Data)
		to.parts[f.Dst] = &modelPart{h: h}
	case wire.TypePiece:
		part := to.parts[f.Dst]
		if part == nil || f.Tag != uint64(len(part.data)) {
			t.Fatalf("a piece at %d of %+v", f.Tag, part)
		}
		if part.data = append(part.data, f.Data...); len(part.data) == int(part.h.Len) {
			delete(to.parts, f.Dst)
			to.take(t, &part.h, part.data)
		}
	default:
		to.take(t, &f.Header, f.Data)
	}
}

// take is called with a whole message.
func (p *peerModel) take(t *rapid.T, h *subsys.Header, data []byte) {
	if h.Tag != p.got[h.Dst] || len(data) != int(h.Len) {
		t.Fatalf("message %d of %d bytes came in place of %d of %d", h.Tag, len(data), p.got[h.Dst], h.Len)
	}
	for i, b := range data {
		if b != byte(h.Tag)+byte(i) {
			t.Fatalf("message %d: byte %d is changed", h.Tag, i)
		}
	}
	p.got[h.Dst]++
}

// ack acknowledges in a frame of its own, as a link does when no frame waits to be sent.
func (p *peerModel) ack() {
	if !p.s.IsQuiet() {
		return
	}
	f := subsys.Frame{}
	f.Type, f.Ack = wire.TypeAck, p.s.rxNext
	p.s.rxAcked.Store(f.Ack)
	p.wire = append(p.wire, f)
}

// check checks what holds at all times.
func (p *peerModel) check(t *rapid.T) {
	s := &p.s
	done, most := s.done.Load(), s.most.Load()
	if s.sent-s.head > s.next-s.head || done-s.head > most-s.head || most-s.head > s.next-s.head {
		t.Fatalf("head %d, done %d, sent %d, next %d", s.head, done, s.sent, s.next)
	}
	unsent := 0
	for i := s.cur; i != s.end; i++ {
		e := s.at(i)
		switch {
		case e.Type != subsys.TypeBatch:
			unsent += subsys.HeaderLen + len(e.Data)
		case i == s.cur:
			unsent += len(e.Data) - s.off
		default:
			unsent += len(e.Data)
		}
	}
	if unsent != s.unsent {
		t.Fatalf("%d bytes are unsent, not %d", unsent, s.unsent)
	}
	isNeeded := false
	for i := s.first; i != s.end; i++ {
		e := s.at(i)
		frames := []subsys.Frame{e.Frame}
		if e.Type == subsys.TypeBatch {
			frames = subsystest.Split(&e.Frame, nil)
		}
		for _, f := range frames {
			isNeeded = isNeeded || int32(f.Seq-s.head) >= 0 && f.Flags&wire.FlagForget == 0
		}
	}
	backlog, queued, splitting := 0, 0, 0
	for i := range p.lines {
		ln := &p.lines[i]
		if ln.numbered > 0 {
			splitting++
		}
		backlog -= ln.numbered
		queued += ln.waiting()
		for _, m := range ln.msgs[ln.first:] {
			backlog += len(m.Data)
			isNeeded = isNeeded || m.Flags&wire.FlagForget == 0
		}
	}
	if backlog != s.backlog || queued != s.queued || splitting != s.splitting || (queued == 0) != (s.turn == nil) {
		t.Fatalf("%d bytes of %d messages wait, %d have begun: %+v", backlog, queued, splitting, s.lines)
	}
	if s.NeedsAcks() != isNeeded {
		t.Fatalf("an acknowledgement is needed: %v, not %v", isNeeded, s.NeedsAcks())
	}
	if s.IsQuiet() != (unsent == 0 && queued == 0) {
		t.Fatalf("quiet is %v with %d bytes unsent, %d messages waiting", s.IsQuiet(), unsent, queued)
	}
}

// Two sessions talk over a connection that takes and delivers any number of frames and breaks at
// any time. Every message arrives, once, in order and unchanged.
func TestSessionModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.SampledFrom([]uint32{0, 1<<32 - 5, 1<<31 - 3}).Draw(t, "start")
		ends := [2]*peerModel{}
		for i := range ends {
			p := newPeerModel()
			p.s.head, p.s.sent, p.s.next, p.s.needed = start, start, start, start
			p.s.rxNext = start
			for _, word := range []*atomic.Uint32{&p.s.most, &p.s.done, &p.s.rxDone, &p.s.rxAcked} {
				word.Store(start)
			}
			ends[i] = p
		}
		draw := func(n int) int { return rapid.IntRange(0, n).Draw(t, "n") }
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { ends[0].check(t); ends[1].check(t) },
			"push": func(t *rapid.T) {
				p := ends[rapid.IntRange(0, 1).Draw(t, "end")]
				for range rapid.IntRange(1, 30).Draw(t, "frames") {
					small := rapid.Bool().Draw(t, "small")
					flow := rapid.Uint32Range(0, modelFlows-1).Draw(t, "flow")
					p.push(flow, rapid.SampledFrom([]int{0, 1, 64, modelPiece, modelPiece + 1, Inline, 9000}).Draw(t, "size"), small)
				}
			},
			"change route": func(t *rapid.T) {
				p := ends[rapid.IntRange(0, 1).Draw(t, "end")]
				p.canSplit = !p.canSplit
			},
			// The resource of a flow goes: its sender reports the messages that have not begun, and
			// ends the one that has.
			"give up": func(t *rapid.T) {
				p := ends[rapid.IntRange(0, 1).Draw(t, "end")]
				flow := rapid.IntRange(0, modelFlows-1).Draw(t, "flow")
				ln := &p.lines[flow]
				if ln.numbered > 0 {
					return // the model's receiver knows of no end
				}
				_, begun := p.s.Abandon(ln, func(h *subsys.Header) { p.pushed[flow]-- })
				if begun {
					t.Fatal("a message has begun that has not")
				}
			},
			"write": func(t *rapid.T) { ends[rapid.IntRange(0, 1).Draw(t, "end")].write(draw) },
			"write the open batch": func(t *rapid.T) {
				ends[rapid.IntRange(0, 1).Draw(t, "end")].writeOpen(rapid.Bool().Draw(t, "takes"))
			},
			"read": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "end")
				ends[i].read(t, ends[1-i], rapid.IntRange(0, len(ends[i].wire)).Draw(t, "frames"))
			},
			"ack": func(t *rapid.T) { ends[rapid.IntRange(0, 1).Draw(t, "end")].ack() },
			"break": func(t *rapid.T) {
				ends[0].wire, ends[1].wire = nil, nil
				// The number that each end says it has may be old when the other end reads it: then
				// frames are repeated.
				var have [2]uint32
				for i, p := range ends {
					least := ends[1-i].s.done.Load()
					have[i] = least + rapid.Uint32Range(0, p.s.rxNext-least).Draw(t, "have")
				}
				for i, p := range ends {
					if err := p.s.Resume(have[1-i]); err != nil {
						t.Fatalf("resuming: %v", err)
					}
				}
			},
			// One end says what it has, and both continue until the other end takes up the new
			// connection, which the first end learns later still.
			"hand over": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "end")
				a, b := ends[i], ends[1-i]
				have := a.s.rxNext
				speak := func(p, q *peerModel) {
					p.write(draw)
					if rapid.Bool().Draw(t, "ack") {
						p.ack()
					}
					p.read(t, q, rapid.IntRange(0, len(p.wire)).Draw(t, "frames"))
				}
				for range rapid.IntRange(0, 3).Draw(t, "rounds") {
					speak(a, b)
					speak(b, a)
				}
				if err := b.s.Switch(have); err != nil {
					t.Fatalf("handing over: %v", err)
				}
				have, a.wire = b.s.rxNext, nil
				for range rapid.IntRange(0, 2).Draw(t, "late") { // over the old connection
					b.read(t, a, rapid.IntRange(0, len(b.wire)).Draw(t, "frames"))
				}
				b.wire = nil
				if err := a.s.Resume(have); err != nil {
					t.Fatalf("taking over: %v", err)
				}
			},
		})
		quiet := 0
		for !ends[0].s.IsIdle() || !ends[1].s.IsIdle() {
			for i, p := range ends {
				p.write(func(n int) int { return n })
				if p.s.rxAcked.Load() != p.s.rxNext {
					p.ack()
				} else if len(p.wire) == 0 && len(ends[1-i].wire) == 0 && ends[0].s.IsQuiet() && ends[1].s.IsQuiet() && !(ends[0].s.IsIdle() && ends[1].s.IsIdle()) {
					if quiet++; quiet > 4 {
						t.Fatal("no end has anything to send, and not everything is acknowledged")
					}
				}
				p.read(t, ends[1-i], len(p.wire))
			}
		}
		for i, p := range ends {
			p.check(t)
			if p.pushed != ends[1-i].got || len(p.parts) > 0 {
				t.Fatalf("%d messages were sent, %d came, %d in parts", p.pushed, ends[1-i].got, len(p.parts))
			}
			p.s.Drain(func(h *subsys.Header) { t.Fatalf("frame %d is left", h.Tag) })
			if err := p.pool.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// When a session is given up, messages that were not acknowledged are yielded once, and their
// buffers are released.
func TestSessionDrain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPeerModel()
		p.canSplit = rapid.Bool().Draw(t, "cuts")
		n := rapid.IntRange(0, 300).Draw(t, "frames")
		for range n {
			size := rapid.IntRange(0, 200).Draw(t, "size")
			if rapid.IntRange(0, 9).Draw(t, "large") == 0 {
				size = rapid.IntRange(modelPiece+1, 4*modelPiece).Draw(t, "size of a large one")
			}
			p.push(0, size, rapid.Bool().Draw(t, "small"))
		}
		for range rapid.IntRange(0, 20).Draw(t, "writes") {
			p.write(func(n int) int { return n })
		}
		acked := rapid.IntRange(0, int(p.s.sent)).Draw(t, "acked")
		if err := p.s.Acked(uint32(acked)); err != nil {
			t.Fatal(err)
		}
		next := uint64(0) // the first message that is not wholly acknowledged
		to := newPeerModel()
		for i := range p.wire {
			if f := &p.wire[i]; int(f.Seq) < acked {
				to.read1(t, f)
			}
		}
		next = to.got[0]
		p.s.Drain(func(h *subsys.Header) {
			if h.Type != wire.TypeData {
				return
			}
			if h.Tag != next {
				t.Fatalf("message %d is left, want %d", h.Tag, next)
			}
			next++
		})
		if next != uint64(n) || !p.s.IsIdle() || !p.s.IsQuiet() {
			t.Fatalf("yielded up to %d of %d", next, n)
		}
		if err := p.pool.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A batch that a receiver in this process still reads is not overwritten.
func TestRunIsRead(t *testing.T) {
	p := newPeerModel()
	p.push(0, 64, true)
	p.write(func(n int) int { return n })
	kept := p.wire[0]
	kept.Buf.Retain() // as a mailbox does
	before := string(kept.Data)
	if err := p.s.Acked(p.s.sent); err != nil {
		t.Fatal(err)
	}
	p.s.Release()
	p.push(0, 64, true)
	if string(kept.Data) != before {
		t.Error("a message was overwritten")
	}
	kept.Buf.Release()
	p.s.done.Store(p.s.next)
	p.s.Drain(func(*subsys.Header) {})
	if err := p.pool.Close(); err != nil {
		t.Error(err)
	}
}

// Frames that break the rules are refused, and change nothing.
func TestSessionRefuses(t *testing.T) {
	data := func(seq uint32) subsys.Frame {
		f := subsys.Frame{}
		f.Type, f.Seq = wire.TypeData, seq
		return f
	}
	odd := data(10)
	odd.Type = wire.TypeAck - 1
	for name, fs := range map[string][]subsys.Frame{
		"gap":                  {data(11)},
		"gap behind fresh":     {data(10), data(12)},
		"repeat behind fresh":  {data(10), data(10)},
		"old behind fresh":     {data(10), data(9)},
		"type of no meaning":   {odd},
		"handshake":            {{Header: subsys.Header{Type: wire.TypeHello}}},
		"type behind fresh":    {data(10), odd},
		"half the numbers off": {data(10 + 1<<31)},
	} {
		var s Session
		s.rxNext = 10
		if _, _, err := s.Accept(fs); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		if next := s.rxNext; next != 10 {
			t.Errorf("%s: expects %d now", name, next)
		}
	}
	p := newPeerModel()
	for range 5 {
		p.push(0, 10, true)
	}
	p.write(func(n int) int { return n })
	p.push(0, 10, true)
	for _, a := range []uint32{6, 1 << 20} {
		if err := p.s.Acked(a); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("acknowledging %d of 5 sent: %v", a, err)
		}
		if err := p.s.Resume(a); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("resuming at %d of 5 sent: %v", a, err)
		}
	}
	if err := p.s.Acked(3); err != nil {
		t.Error(err)
	}
	p.s.Release()
	if err := p.s.Acked(2); err != nil {
		t.Errorf("an old acknowledgement: %v", err)
	}
	if err := p.s.Resume(2); !errors.Is(err, wire.ErrProtocol) {
		t.Errorf("a peer that has less than it acknowledged: %v", err)
	}
	p.s.Drain(func(*subsys.Header) {})
	if err := p.pool.Close(); err != nil {
		t.Error(err)
	}
}

// A frame that was lost with its connection is retransmitted with the acknowledgement of its first
// writing. Its sender may have received any number of control frames since.
func TestRetransmittedAcknowledgement(t *testing.T) {
	var a, b Session
	a.Init(WholeLen, PieceLen)
	b.Init(WholeLen, PieceLen)
	b.Push(&subsys.Frame{Header: subsys.Header{Type: wire.TypeData}})
	b.Take() // lost
	for range 3 * MaxUnacked {
		a.Push(&subsys.Frame{Header: subsys.Header{Type: wire.TypeNoReply}})
	}
	for fs := a.Take(); len(fs) > 0; fs = a.Take() {
		if _, _, err := b.Accept(fs); err != nil {
			t.Fatal(err)
		}
		b.Worked()
	}
	if err := errors.Join(a.Resume(b.Expected()), b.Resume(a.Expected())); err != nil {
		t.Fatal(err)
	}
	fs := b.Take()
	if err := a.Acked(fs[len(fs)-1].Ack); err != nil {
		t.Fatal(err)
	}
	if _, got, err := a.Accept(fs); err != nil || got.Messages != 1 {
		t.Fatal(got, err)
	}
	if !a.IsIdle() {
		t.Errorf("%d frames wait for an acknowledgement after an old one", a.Pending())
	}
}

// Divide keeps, in the order for each target, exactly the messages whose last frame the peer has
// not received, with their payloads and the numbers of their calls, and the Cancel frames that the
// peer has not received. All other messages that were not acknowledged are lost.
func TestDivide(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := buffers.New()
		defer func() {
			if err := pool.Close(); err != nil {
				t.Fatal(err)
			}
		}()
		var s Session
		s.Init(100, 60)
		var lines [3]Line
		type sent struct {
			dst  uint32
			call uint64
			size int
		}
		all := map[uint64]sent{}       // by tag
		last := map[uint64]uint32{}    // by tag: the number of the last frame
		cancels := map[uint64]uint32{} // by the number of the call: that of its Cancel frame
		number := func() {
			ln := s.Upcoming(true)
			m := ln.msgs[ln.first]
			if n, src := ln.Call(); n != 0 {
				s.Push(&subsys.Frame{Header: subsys.Header{Type: wire.TypeCall, Dst: ln.Dst(), Src: src, Tag: n}})
			}
			if s.HasBegin(ln, true) {
				var h subsys.Header
				var p [4]byte
				ln.Begin(&h, &p)
				s.Push(&subsys.Frame{Header: h, Data: p[:]})
			}
			gone := ln.Gone()
			s.Number(ln, true)
			if ln.Gone() != gone || !ln.IsWaiting() {
				last[m.Tag] = s.Next() - 1
			}
		}
		for i := range rapid.IntRange(1, 20).Draw(t, "messages") {
			tag, dst := uint64(i+1), uint32(rapid.IntRange(0, 2).Draw(t, "dst"))
			m := sent{dst, 0, rapid.SampledFrom([]int{0, 10, 90, 150, 300}).Draw(t, "size")}
			h := subsys.Header{Type: wire.TypeData, Len: uint32(m.size), Tag: tag, Src: 1, Dst: dst}
			if rapid.Bool().Draw(t, "is a call") {
				m.call, h.Flags = tag+1000, wire.FlagCall
			}
			all[tag] = m
			payload := bytes.Repeat([]byte{byte(tag)}, m.size)
			ln := &lines[dst]
			c := subsys.Header{Type: wire.TypeCall, Dst: dst, Src: 1, Tag: m.call}
			switch {
			case s.Splits(m.size) || ln.IsWaiting() || rapid.IntRange(0, 3).Draw(t, "queues") == 0:
				b, err := pool.Get(m.size)
				if err != nil {
					t.Fatal(err)
				}
				copy(b.Bytes(), payload)
				s.Queue(ln, &subsys.Frame{Header: h, Data: b.Bytes(), Buf: b}, m.call)
			case rapid.Bool().Draw(t, "in a batch"):
				if !s.Fits(2*subsys.HeaderLen + m.size) {
					b, err := pool.Get(s.BatchLen())
					if err != nil {
						t.Fatal(err)
					}
					s.Open(b)
				}
				if m.call != 0 {
					s.Add(&c, nil)
				}
				s.Add(&h, payload)
				last[tag] = s.Next() - 1
			default:
				b, err := pool.Get(m.size)
				if err != nil {
					t.Fatal(err)
				}
				copy(b.Bytes(), payload)
				if m.call != 0 {
					s.Push(&subsys.Frame{Header: c})
				}
				s.PushRequest(&subsys.Frame{Header: h, Data: b.Bytes(), Buf: b}, m.call)
				last[tag] = s.Next() - 1
			}
			for range rapid.IntRange(0, 4).Draw(t, "numbered") {
				if s.IsFeedable() {
					number()
				}
			}
			if _, isNumbered := last[tag]; isNumbered && m.call != 0 && rapid.Bool().Draw(t, "is cancelled") {
				c := subsys.Header{Type: wire.TypeCancel, Len: 1, Dst: dst, Src: 1, Tag: m.call}
				if why := []byte{wire.WhyDeadline}; !s.Add(&c, why) {
					s.Push(&subsys.Frame{Header: c, Data: why})
				}
				cancels[m.call] = s.Next() - 1
			}
			if rapid.Bool().Draw(t, "writes") {
				fs := s.Take()
				s.Untake(fs, rapid.IntRange(0, len(fs)).Draw(t, "taken"))
			}
		}
		done := uint32(rapid.IntRange(0, int(s.Most())).Draw(t, "acknowledged"))
		from := uint32(rapid.IntRange(int(done), int(s.Most())).Draw(t, "received"))
		if err := s.Acked(done); err != nil {
			t.Fatal(err)
		}
		if !s.HasReached(from) || s.HasReached(s.Most()+1) {
			t.Fatalf("from %d, most %d", from, s.Most())
		}
		got := map[uint64]bool{}
		before := map[uint32]uint64{} // by target: the tag of the message kept last
		s.Divide(from, func(h *subsys.Header) {
			if h.Type != wire.TypeData {
				return
			}
			if seq, isNumbered := last[h.Tag]; !isNumbered || seq < done || seq >= from || got[h.Tag] {
				t.Fatalf("message %d, frame %d, is lost: acknowledged %d, received %d", h.Tag, seq, done, from)
			}
			got[h.Tag] = true
		}, func(m *subsys.Frame, call uint64) {
			if m.Type == wire.TypeCancel {
				if seq, is := cancels[call]; !is || seq < from || last[call-1000] >= from && !got[call-1000] {
					t.Fatalf("the cancellation of call %d, frame %d, is kept: received %d", call, seq, from)
				}
				delete(cancels, call)
				return
			}
			w := all[m.Tag]
			if seq, isNumbered := last[m.Tag]; isNumbered && seq < from || got[m.Tag] || before[m.Dst] > m.Tag {
				t.Fatalf("message %d, frame %d, is kept: received %d", m.Tag, seq, from)
			}
			if m.Dst != w.dst || call != w.call || int(m.Len) != w.size || !bytes.Equal(m.Data, bytes.Repeat([]byte{byte(m.Tag)}, w.size)) {
				t.Fatalf("message %d: %+v, call %d, %d bytes; want %+v", m.Tag, m.Header, call, len(m.Data), w)
			}
			got[m.Tag], before[m.Dst] = true, m.Tag
			Finish(m.Buf)
		})
		for tag := range all {
			if seq, isNumbered := last[tag]; !got[tag] && (!isNumbered || seq >= done) {
				t.Fatalf("message %d, frame %d, is neither kept nor lost", tag, seq)
			}
		}
		for call, seq := range cancels {
			if seq >= from {
				t.Fatalf("the cancellation of call %d, frame %d, is not kept: received %d", call, seq, from)
			}
		}
		if !s.IsIdle() || s.Pending() != 0 || s.HasLarge() || s.Due() != 0 {
			t.Fatalf("not empty: %v", &s)
		}
	})
}
