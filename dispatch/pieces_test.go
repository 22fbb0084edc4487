// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
	"github.com/rocl-go/rocl/subsys/tls"
)

// someNoise has a number of bytes that divides the length of no piece. To make random bytes anew
// takes long under the race detector.
var someNoise = sync.OnceValue(func() []byte {
	b := make([]byte, 65_521)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
})

// fill fills p with bytes that depend on seed.
func fill(p []byte, seed uint64) {
	from := someNoise()
	for at := seed * 31 % uint64(len(from)); len(p) > 0; at = 0 {
		p = p[copy(p, from[at:]):]
	}
}

// noise returns a buffer of n random bytes, with their checksum in the first four.
func noise(t testing.TB, d *Dispatcher, n int, seed uint64) *buffers.Buffer {
	t.Helper()
	b := try.Get(d.Buffer(n))(t)
	fill(b.Bytes(), seed+uint64(n))
	binary.LittleEndian.PutUint32(b.Bytes(), crc32.ChecksumIEEE(b.Bytes()[4:]))
	return b
}

func intact(p []byte) bool {
	return len(p) < 4 || binary.LittleEndian.Uint32(p) == crc32.ChecksumIEEE(p[4:])
}

// A message a hundred times larger than the amount any connection carries arrives, once and intact,
// over TCP and TLS.
func TestLargerThanConnections(t *testing.T) {
	over(t, streamTransports(t), func(t *testing.T, w *world, tr subsys.Transport) {
		const after = session.PieceLen + 64<<10
		lost := atomic.Int32{}
		note := func(c *Config) {
			c.Undelivered = func(Undelivered) { lost.Add(1) }
			c.GiveUp = time.Minute // handshakes take long on a busy machine
		}
		a, b := w.node(t, 1, tr, note), w.node(t, 2, tr, note)
		rb := newRelay(t, b.Addrs()[0], after, 1<<30)
		w.setAddrs(a.self)
		w.setAddrs(b.self, tr.Name()+"://"+rb.ln.Addr().String())
		mb := box(t, b, 1, 64<<20)
		ctx, cancel := context.WithTimeout(context.Background(), eventually.Timeout)
		defer cancel()
		defer func() { // runs before the relay waits for its connections
			rb.cuts.Store(0)
			cctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			try.Check(t, errors.Join(a.Close(cctx), b.Close(cctx)))
		}()
		sizes := []int{100 * after, 5, session.PieceLen, session.PieceLen + 1, 3 * session.PieceLen}
		f := flow(t, a, mb)
		go func() {
			for i, n := range sizes {
				try.Check(t, f.Send(ctx, 1, uint64(i), noise(t, a, n, uint64(i))))
			}
		}()
		for i, n := range sizes {
			m := try.Get(mb.Recv(ctx))(t)
			if m.Tag() != uint64(i) || m.Len() != n || !intact(m.Bytes()) {
				t.Errorf("message %d of %d bytes in place of %d of %d; intact: %v", m.Tag(), m.Len(), i, n, intact(m.Bytes()))
			}
			m.Release()
		}
		if m, err := mb.TryRecv(); !errors.Is(err, ErrEmpty) {
			t.Errorf("a message too many: %v %v", m, err)
		}
		if s := a.Stats(); s.Resumed < 50 || lost.Load() > 0 {
			t.Errorf("%d connections broke, %d messages were reported", s.Resumed, lost.Load())
		}
	})
}

// A gate is a relay that lets through as many bytes to its address as the test allows.
type gate struct {
	*relay
	mu     sync.Mutex
	may    int64 // bytes that may have passed
	passed int64
	more   chan struct{} // closed and replaced when may changes
	closed chan struct{}
}

func newGate(t *testing.T, to string, may int64) *gate {
	t.Helper()
	g := &gate{may: may, more: make(chan struct{}), closed: make(chan struct{})}
	g.relay = startRelay(t, to, &relay{after: 1 << 62, pass: g.wait}, 0)
	return g
}

// wait returns when n more bytes may pass.
func (g *gate) wait(n int) {
	for {
		g.mu.Lock()
		if g.passed+int64(n) <= g.may {
			g.passed += int64(n)
			g.mu.Unlock()
			return
		}
		more := g.more
		g.mu.Unlock()
		select {
		case <-more:
		case <-g.closed:
			return
		}
	}
}

func (g *gate) let(n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.may += n
	close(g.more)
	g.more = make(chan struct{})
}

// gated returns two dispatchers, the first of which reaches the second through a gate.
func gated(t *testing.T, tr subsys.Transport, may int64, change ...func(*Config)) (a, b *Dispatcher, g *gate, w *world) {
	t.Helper()
	w = newWorld()
	a, b = w.node(t, 1, tr, change...), w.node(t, 2, tr, change...)
	addr := b.Addrs()[0]
	g = newGate(t, addr, may)
	w.setAddrs(a.self)
	w.setAddrs(b.self, transportOf(addr)+"://"+g.ln.Addr().String())
	t.Cleanup(func() { // runs before the relay waits for its connections
		close(g.closed)
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		a.Close(ctx)
		b.Close(ctx)
	})
	return a, b, g, w
}

func streamTransports(t *testing.T) map[string]subsys.Transport {
	t.Helper()
	secret, err := tls.FromSecrets("test", []byte(strings.Repeat("s", 32)))
	try.OK(t, err)
	return map[string]subsys.Transport{"tcp": tcp.New(), "tls": tls.New(secret)}
}

// A small message, and a large one, to other resources arrive while most of a large message waits
// for a slow connection. Messages to the same resource keep their order.
//
// Promise (Delivery): Over TCP and TLS a message waits for at most about 1 MiB of a large message
// to another resource.
func TestSmallPassesLarge(t *testing.T) {
	over(t, streamTransports(t), func(t *testing.T, _ *world, tr subsys.Transport) {
		const size, other = 64 << 20, 1 << 20
		a, b, g, _ := gated(t, tr, 1<<20)
		busy, idle := box(t, b, 1, 4*size), box(t, b, 2, 8*other)
		ctx := soon(t)
		credited(t, a, b, busy)
		credited(t, a, b, idle)
		f := flow(t, a, busy)
		for i, n := range []int{size, 10, session.PieceLen + 1} {
			try.OK(t, f.Send(ctx, 1, uint64(i), noise(t, a, n, uint64(i))))
		}
		h := flow(t, a, idle)
		for i, n := range []int{10, other, 10} {
			try.OK(t, h.Send(ctx, 1, uint64(i), noise(t, a, n, uint64(i))))
		}
		g.let(size/2 - 1<<20) // size/2 in all: no more passes until the messages to idle are here
		for i := range uint64(3) {
			m, err := idle.Recv(ctx)
			if err != nil || m.Tag() != i || !intact(m.Bytes()) {
				t.Fatal(m, err)
			}
			m.Release()
		}
		if n, _ := busy.Len(); n != 0 {
			t.Errorf("they came behind %d messages", n)
		}
		g.let(1 << 40)
		for i := range uint64(3) {
			m, err := busy.Recv(ctx)
			if err != nil || m.Tag() != i || !intact(m.Bytes()) {
				t.Fatal(m, err)
			}
			m.Release()
		}
	})
}

// partOf returns how much of the message in pieces to a mailbox has come.
func partOf(d *Dispatcher, from *Dispatcher, mb *Mailbox) int {
	l, _ := onlyLink(d, from)
	l.d.progress.Lock()
	defer l.d.progress.Unlock()
	if p := l.part(mb.serial); p != nil {
		return p.have
	}
	return 0
}

// credited ensures that from has credit for half of what fits into the mailbox.
func credited(t *testing.T, from, to *Dispatcher, mb *Mailbox) {
	t.Helper()
	talk(t, from, to, mb, 0)
	f := flow(t, from, mb)
	eventually.True(t, "there is credit", func() bool {
		_, _ = mb.TryRecv()
		f.l.mu.Lock()
		defer f.l.mu.Unlock()
		return f.credit.Limit() > mb.credit.Limit()/4
	})
}

// begun sends a large message and two behind it through a gate. When it returns, a part of the
// first one has come. The test holds the buffers too.
func begun(t *testing.T, a, b *Dispatcher, mb *Mailbox) (bufs []*buffers.Buffer) {
	t.Helper()
	ctx := soon(t)
	credited(t, a, b, mb)
	f := flow(t, a, mb)
	for i, n := range []int{64 << 20, 10, session.PieceLen + 1} {
		p := noise(t, a, n, uint64(i))
		bufs = append(bufs, p.Retain())
		try.OK(t, f.Send(ctx, 7, uint64(i), p))
	}
	eventually.True(t, "a part has come", func() bool {
		_, _ = mb.TryRecv()
		return partOf(b, a, mb) > 0
	})
	return bufs
}

// wantReports checks that each message of begun is reported once, with its size.
func wantReports(t *testing.T, reported <-chan Undelivered, bufs []*buffers.Buffer, why error) {
	t.Helper()
	ctx := soon(t)
	seen := map[uint64]bool{}
	for range bufs {
		select {
		case u := <-reported:
			if seen[u.Tag] || u.Bytes != bufs[u.Tag].Len() || !errors.Is(u.Err, why) || u.From.Serial() != 7 {
				t.Errorf("reported %+v", u)
			}
			seen[u.Tag] = true
		case <-ctx.Done():
			t.Fatalf("only %v are reported", seen)
		}
	}
	for i, b := range bufs {
		eventually.True(t, "a buffer is free", func() bool { return b.Done() && b.Refs() == 1 })
		if !seen[uint64(i)] {
			t.Errorf("message %d is not reported", i)
		}
		b.Release()
	}
	select {
	case u := <-reported:
		t.Errorf("reported %+v too", u)
	default:
	}
}

// The mailbox is closed in the midst of a message. That message and those behind it are reported
// once, with their sizes. The memory is free, and the link continues.
//
// Promise (Delivery): A message whose target is gone is refused with `ErrGone`. If it was accepted
// before that was known, it is reported once, and so are the messages behind it. See also
// TestSendToMissing.
func TestClosedInTheMidst(t *testing.T) {
	reported := make(chan Undelivered, 10)
	a, b, g, _ := gated(t, tcp.New(), 2<<20, func(c *Config) { c.Undelivered = func(u Undelivered) { reported <- u } })
	mb, other := box(t, b, 1, 256<<20), box(t, b, 2, 0)
	bufs := begun(t, a, b, mb)
	before := b.cfg.Pool.Stats().InUse
	mb.Close()
	g.let(8 << 20)
	eventually.True(t, "the sender knows", func() bool { return len(reported) == len(bufs) })
	g.let(1 << 40)
	wantReports(t, reported, bufs, ErrGone)
	talk(t, a, b, other, 5)
	if n := partOf(b, a, mb); n > 0 || b.cfg.Pool.Stats().InUse > before {
		t.Errorf("%d bytes are kept, %d buffers of %d", n, b.cfg.Pool.Stats().InUse, before)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.passed > 40<<20 { // 10 MiB had passed when the sender knew, and some MiB were in sockets
		t.Errorf("%d bytes were sent to a missing resource", g.passed)
	}
}

// vanish makes the directory know that d has ended.
func (w *world) vanish(d *Dispatcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone[d.self] = true
}

// The receiver ends, or the link, in the midst of a message. The sender reports it and the messages
// behind it once, and neither end keeps memory.
func TestEndInTheMidst(t *testing.T) {
	for _, how := range []string{"goodbye", "death", "sender"} {
		t.Run(how, func(t *testing.T) {
			reported := make(chan Undelivered, 10)
			a, b, g, w := gated(t, tcp.New(), 2<<20, func(c *Config) { c.Undelivered = func(u Undelivered) { reported <- u } })
			mb := box(t, b, 1, 256<<20)
			bufs := begun(t, a, b, mb)
			closed := ended()
			want := ErrGone
			switch how {
			case "goodbye":
				_ = b.Close(closed)
				w.vanish(b) // the goodbye may be lost with the unread bytes of the socket
			case "death":
				w.vanish(b)
				for _, p := range b.ports {
					p.Close()
				}
			case "sender":
				want = ErrClosed
				_ = a.Close(closed)
			}
			g.let(1 << 40)
			wantReports(t, reported, bufs, want)
			eventually.True(t, "nothing is kept", func() bool {
				b.progress.Poll(true)
				return b.cfg.Pool.Stats().InUse <= 4 // batches and blocks
			})
		})
	}
}

// A message that the peer reports as undelivered while the link ends, which reports it too, is
// reported once.
func TestReportedAsItEnds(t *testing.T) {
	reported := make(chan Undelivered, 10)
	a, b, g, _ := gated(t, tcp.New(), 2<<20, func(c *Config) { c.Undelivered = func(u Undelivered) { reported <- u } })
	mb := box(t, b, 1, 256<<20)
	bufs := begun(t, a, b, mb)
	l, err := a.link(b.self)
	try.OK(t, err)
	l.endLink(fmt.Errorf("%w: in the midst", ErrGone))
	gone := subsys.Frame{Header: subsys.Header{Type: wire.TypeGone, Dst: 1, Src: 7, Tag: 0, Len: 4}}
	gone.Data = gonePayload(7, bufs[0].Len())
	l.d.progress.Lock() // the token of the goroutine that works on a batch which came before
	err = l.control(&gone)
	l.d.progress.Unlock()
	try.Check(t, err)
	g.let(1 << 40)
	wantReports(t, reported, bufs, ErrGone)
	eventually.True(t, "the reports", func() bool { return a.lost.Load() == uint64(len(bufs)) })
}

// A hostile peer's pieces cut the connection, and take no memory beyond the credit.
func TestHostilePieces(t *testing.T) {
	h := func(seq uint32, typ uint8, dst uint32, tag uint64, data ...byte) subsys.Frame {
		return subsys.Frame{Header: subsys.Header{Type: typ, Seq: seq, Dst: dst, Src: 5, Tag: tag, Len: uint32(len(data))}, Data: data}
	}
	le := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	begin := func(seq, dst, total uint32) subsys.Frame { return h(seq, wire.TypeBegin, dst, 9, le(total)...) }
	piece := func(seq, dst uint32, at uint64, n int) subsys.Frame {
		return h(seq, wire.TypePiece, dst, at, make([]byte, n)...)
	}
	many := []subsys.Frame{}
	for i := range uint32(session.MaxSplitting + 1) {
		many = append(many, begin(i, 1+i, 60_000))
	}
	for name, fs := range map[string][]subsys.Frame{
		"without a beginning":  {piece(0, 1, 0, 100)},
		"begun twice":          {begin(0, 1, 1000), begin(1, 1, 1000)},
		"of no bytes":          {begin(0, 1, 0)},
		"longer than any":      {begin(0, 1, MaxMessage+1)},
		"beyond the credit":    {begin(0, 1, FirstCredit)},
		"a short beginning":    {h(0, wire.TypeBegin, 1, 9, 1, 2, 3)},
		"beyond the end":       {begin(0, 1, 1000), piece(1, 1, 0, 600), piece(2, 1, 600, 401)},
		"at another place":     {begin(0, 1, 1000), piece(1, 1, 1, 600)},
		"the same place again": {begin(0, 1, 1000), piece(1, 1, 0, 600), piece(2, 1, 0, 400)},
		"a message between":    {begin(0, 1, 1000), piece(1, 1, 0, 600), h(2, wire.TypeData, 1, 9, 1)},
		"many begun at once":   many,
		"credit returned":      {begin(0, 1, 60_000), h(1, wire.TypeNeed, 1, FirstCredit, heldPayload(FirstCredit)...)},
	} {
		t.Run(name, func(t *testing.T) {
			d := newWorld().node(t, 3, tcp.New())
			for i := range uint32(session.MaxSplitting + 1) {
				box(t, d, 1+i, 0)
			}
			c := &fakeConn{}
			_, ep := linked(t, d, c)
			before := d.cfg.Pool.Stats()
			var err error
			for i := range fs {
				try.OK(t, err, "frame %d is refused", i-1)
				err = ep.comes(c, fs[i:i+1])
			}
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("the last frame: %v", err)
			}
			if n := d.cfg.Pool.Stats().Mapped - before.Mapped; n > 2*FirstCredit {
				t.Errorf("%d bytes were mapped", n)
			}
		})
	}

	// Pieces are judged in the same way when their payload is about to be read.
	d := newWorld().node(t, 3, tcp.New())
	mb := box(t, d, 1, 0)
	c := &fakeConn{}
	l, ep := linked(t, d, c)
	if b, err := ep.asks(c, &subsys.Header{Type: wire.TypePiece, Dst: 1, Len: 50_000}); b != nil || !errors.Is(err, ErrProtocol) {
		t.Errorf("room without a beginning: %v", err)
	}
	if b, err := ep.asks(c, &subsys.Header{Type: wire.TypePiece, Dst: 99, Len: MaxMessage}); b != nil || err != nil {
		t.Errorf("room for a missing resource: %v", err)
	}
	try.OK(t, ep.comes(c, []subsys.Frame{begin(0, 1, 60_000)}))
	if b, err := ep.asks(c, &subsys.Header{Type: wire.TypePiece, Seq: 1, Dst: 1, Len: 60_001}); b != nil || !errors.Is(err, ErrProtocol) {
		t.Errorf("room beyond the end: %v", err)
	}

	// A connection that was replaced holds the message's memory: bytes that it still reads do not
	// change the message.
	var late []*buffers.Buffer
	for i := range 2 {
		p := piece(uint32(1+i), 1, uint64(30_000*i), 30_000)
		b, err := ep.asks(c, &p.Header)
		try.OK(t, err)
		late = append(late, b.Retain())
		p.Data, p.Buf = b.Bytes(), b
		clear(p.Data)
		try.OK(t, ep.comes(c, []subsys.Frame{p}))
		b.Release()
	}
	m, err := mb.TryRecv()
	if err != nil || m.Len() != 60_000 || m.Tag() != 9 || m.From() != l.peer.WithSerial(5) {
		t.Fatal(m, err)
	}
	for _, b := range late {
		for i := range b.Bytes() {
			b.Bytes()[i] = 1
		}
		b.Release()
	}
	for i, b := range m.Bytes() {
		if b != 0 {
			t.Fatalf("byte %d was changed after delivery", i)
		}
	}
	m.Release()
}

// A goroutine waits until a large message has gone. It continues
// when its resource is gone and nothing of the message was sent.
func TestBehindWhatIsGone(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport(), func(c *Config) { c.GiveUp = time.Minute })
	l, err := d.link(resource.MakeGID(1, 2, 0))
	try.OK(t, err)
	f := l.flow(1)
	l.mu.Lock()
	f.credit.Grant(1 << 30)
	l.mu.Unlock()
	try.OK(t, f.try(soon(t), 1, session.PieceLen+1))
	l.mu.Lock()
	marks := l.underWayLocked(nil, allMessages)
	l.mu.Unlock()
	if len(marks) != 1 {
		t.Fatalf("%d watermarks", len(marks))
	}
	passed := make(chan error, 1)
	go func() { passed <- marks[0].passed(soon(t), allMessages) }()
	eventually.True(t, "a goroutine waits", locked(&l.mu, func() bool { return l.behind.First() != nil }))
	l.d.progress.Lock()
	err = l.control(&subsys.Frame{Header: subsys.Header{Type: wire.TypeGone, Dst: 1}})
	l.d.progress.Unlock()
	try.OK(t, err)
	try.Check(t, <-passed)
}
