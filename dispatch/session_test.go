package dispatch

import (
	"errors"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/subsys"
	"pgregory.net/rapid"
)

// peerModel is one end of a link as the model sees it: a session, what was
// pushed and what has come, by number.
type peerModel struct {
	s      session
	pool   *buffers.Pool
	pushed uint64
	got    uint64
	wire   []subsys.Frame // handed to the conn, which has not delivered them
}

func (p *peerModel) push(size int, small bool) {
	tag := p.pushed
	p.pushed++
	h := subsys.Header{Type: frameData, Tag: tag, Len: uint32(size)}
	body := make([]byte, size)
	for i := range body {
		body[i] = byte(tag) + byte(i)
	}
	if small {
		if !p.s.add(&h, body) {
			n := smallRun
			if p.s.running() {
				n = largeRun
			}
			b, _ := p.pool.Get(n)
			p.s.open(b)
			if !p.s.add(&h, body) {
				panic("a fresh run has no room")
			}
		}
		return
	}
	b, _ := p.pool.Get(size)
	copy(b.Bytes(), body)
	p.s.push(&subsys.Frame{Header: h, Data: b.Bytes(), Buf: b})
}

// write hands frames to the conn, which takes some.
func (p *peerModel) write(takes func(n int) int) {
	fs := p.s.take()
	n := takes(len(fs))
	for _, f := range fs[:n] {
		if f.Type == subsys.TypeRun {
			p.wire = f.Split(p.wire)
		} else {
			p.wire = append(p.wire, f)
		}
	}
	p.s.untake(fs, n)
	p.s.release()
}

// read delivers n frames of the wire to the other end.
func (p *peerModel) read(t *rapid.T, to *peerModel, n int) {
	fs := p.wire[:n]
	p.wire = p.wire[n:]
	if n == 0 {
		return
	}
	if err := to.s.acked(fs[n-1].Ack); err != nil {
		t.Fatalf("an honest acknowledgement: %v", err)
	}
	to.s.release()
	first, _, err := to.s.accept(fs)
	if err != nil {
		t.Fatalf("honest frames: %v", err)
	}
	for _, f := range fs[first:] {
		if f.Type == frameAck {
			continue
		}
		if f.Tag != to.got {
			t.Fatalf("message %d came in place of %d", f.Tag, to.got)
		}
		for i, b := range f.Data {
			if b != byte(f.Tag)+byte(i) {
				t.Fatalf("message %d: byte %d is changed", f.Tag, i)
			}
		}
		to.got++
	}
}

// ack acknowledges by itself, as a link does when nothing waits to be sent.
func (p *peerModel) ack() {
	if !p.s.quiet() {
		return
	}
	f := subsys.Frame{}
	f.Type, f.Ack = frameAck, p.s.rxNext
	p.s.rxTold = p.s.rxNext
	p.wire = append(p.wire, f)
}

// check is what holds at all times.
func (p *peerModel) check(t *rapid.T) {
	s := &p.s
	if s.sent-s.head > s.next-s.head || s.done-s.head > s.most-s.head || s.most-s.head > s.next-s.head {
		t.Fatalf("head %d, done %d, sent %d, next %d", s.head, s.done, s.sent, s.next)
	}
	unsent := 0
	for i := s.cur; i != s.end; i++ {
		e := s.at(i)
		switch {
		case e.Type != subsys.TypeRun:
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
	if s.quiet() != (unsent == 0) {
		t.Fatalf("quiet is %v with %d bytes unsent", s.quiet(), unsent)
	}
}

// Two sessions, a conn that takes and delivers as much as it likes and breaks
// when it likes: every message arrives, once, in order and unchanged.
func TestSessionModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.SampledFrom([]uint32{0, 1<<32 - 5, 1<<31 - 3}).Draw(t, "start")
		ends := [2]*peerModel{}
		for i := range ends {
			p := &peerModel{pool: buffers.New()}
			p.s.head, p.s.sent, p.s.most, p.s.next, p.s.done, p.s.rxNext, p.s.rxTold = start, start, start, start, start, start, start
			ends[i] = p
		}
		draw := func(n int) int { return rapid.IntRange(0, n).Draw(t, "n") }
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { ends[0].check(t); ends[1].check(t) },
			"push": func(t *rapid.T) {
				p := ends[rapid.IntRange(0, 1).Draw(t, "who")]
				for range rapid.IntRange(1, 30).Draw(t, "frames") {
					small := rapid.Bool().Draw(t, "small")
					p.push(rapid.SampledFrom([]int{0, 1, 64, 700, inline}).Draw(t, "size"), small)
				}
			},
			"write": func(t *rapid.T) { ends[rapid.IntRange(0, 1).Draw(t, "who")].write(draw) },
			"read": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "who")
				ends[i].read(t, ends[1-i], rapid.IntRange(0, len(ends[i].wire)).Draw(t, "frames"))
			},
			"ack": func(t *rapid.T) { ends[rapid.IntRange(0, 1).Draw(t, "who")].ack() },
			"break": func(t *rapid.T) {
				ends[0].wire, ends[1].wire = nil, nil
				// What each says it has may be old by the time it is heard: then
				// frames are repeated.
				var have [2]uint32
				for i, p := range ends {
					least := ends[1-i].s.done
					have[i] = least + rapid.Uint32Range(0, p.s.rxNext-least).Draw(t, "have")
				}
				for i, p := range ends {
					if err := p.s.resume(have[1-i]); err != nil {
						t.Fatalf("resuming: %v", err)
					}
				}
			},
			// One end says what it has and both go on, until the other takes up the
			// new conn, of which the first hears later still.
			"hand over": func(t *rapid.T) {
				i := rapid.IntRange(0, 1).Draw(t, "who")
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
				if err := b.s.handOver(have); err != nil {
					t.Fatalf("handing over: %v", err)
				}
				have, a.wire = b.s.rxNext, nil
				for range rapid.IntRange(0, 2).Draw(t, "late") { // over the old conn
					b.read(t, a, rapid.IntRange(0, len(b.wire)).Draw(t, "frames"))
				}
				b.wire = nil
				if err := a.s.resume(have); err != nil {
					t.Fatalf("taking over: %v", err)
				}
			},
		})
		quiet := 0
		for !ends[0].s.idle() || !ends[1].s.idle() {
			for i, p := range ends {
				p.write(func(n int) int { return n })
				if p.s.rxTold != p.s.rxNext {
					p.ack()
				} else if len(p.wire) == 0 && len(ends[1-i].wire) == 0 && ends[0].s.quiet() && ends[1].s.quiet() && !(ends[0].s.idle() && ends[1].s.idle()) {
					if quiet++; quiet > 4 {
						t.Fatal("nobody has anything to say, and not everything is acknowledged")
					}
				}
				p.read(t, ends[1-i], len(p.wire))
			}
		}
		for i, p := range ends {
			p.check(t)
			if p.pushed != ends[1-i].got {
				t.Fatalf("%d messages were sent, %d came", p.pushed, ends[1-i].got)
			}
			p.s.drain(func(h *subsys.Header) { t.Fatalf("frame %d is left", h.Tag) })
			if err := p.pool.Close(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// What was not acknowledged is yielded, once, when a session is given up, and
// its buffers go back.
func TestSessionDrain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &peerModel{pool: buffers.New()}
		n := rapid.IntRange(0, 300).Draw(t, "frames")
		for range n {
			p.push(rapid.IntRange(0, 200).Draw(t, "size"), rapid.Bool().Draw(t, "small"))
		}
		for range rapid.IntRange(0, 10).Draw(t, "writes") {
			p.write(func(n int) int { return n })
		}
		acked := rapid.IntRange(0, int(p.s.sent)).Draw(t, "acked")
		if err := p.s.acked(uint32(acked)); err != nil {
			t.Fatal(err)
		}
		next := uint64(acked)
		p.s.drain(func(h *subsys.Header) {
			if h.Tag != next {
				t.Fatalf("message %d is left, want %d", h.Tag, next)
			}
			next++
		})
		if next != uint64(n) || !p.s.idle() || !p.s.quiet() {
			t.Fatalf("yielded up to %d of %d", next, n)
		}
		if err := p.pool.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// Frames that break the rules are refused, and change nothing.
func TestSessionRefuses(t *testing.T) {
	data := func(seq uint32) subsys.Frame {
		f := subsys.Frame{}
		f.Type, f.Seq = frameData, seq
		return f
	}
	odd := data(10)
	odd.Type = frameBye + 1
	for name, fs := range map[string][]subsys.Frame{
		"gap":                  {data(11)},
		"gap behind fresh":     {data(10), data(12)},
		"repeat behind fresh":  {data(10), data(10)},
		"old behind fresh":     {data(10), data(9)},
		"type of no meaning":   {odd},
		"handshake":            {{Header: subsys.Header{Type: frameHello}}},
		"type behind fresh":    {data(10), odd},
		"half the numbers off": {data(10 + 1<<31)},
	} {
		s := session{rxNext: 10}
		if _, _, err := s.accept(fs); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		if s.rxNext != 10 {
			t.Errorf("%s: expects %d now", name, s.rxNext)
		}
	}
	p := &peerModel{pool: buffers.New()}
	for range 5 {
		p.push(10, true)
	}
	p.write(func(n int) int { return n })
	p.push(10, true)
	for _, a := range []uint32{6, 1 << 20} {
		if err := p.s.acked(a); !errors.Is(err, ErrProtocol) {
			t.Errorf("acknowledging %d of 5 sent: %v", a, err)
		}
		if err := p.s.resume(a); !errors.Is(err, ErrProtocol) {
			t.Errorf("resuming at %d of 5 sent: %v", a, err)
		}
	}
	if err := p.s.acked(3); err != nil {
		t.Error(err)
	}
	p.s.release()
	if err := p.s.acked(2); err != nil {
		t.Errorf("an old acknowledgement: %v", err)
	}
	if err := p.s.resume(2); !errors.Is(err, ErrProtocol) {
		t.Errorf("a peer that has less than it acknowledged: %v", err)
	}
	p.s.drain(func(*subsys.Header) {})
	if err := p.pool.Close(); err != nil {
		t.Error(err)
	}
}
