// SPDX-License-Identifier: Apache-2.0

package subsystest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/short"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/internal/harness"
)

// Options describes the transport under test.
type Options struct {
	// New returns a transport with a namespace of its own.
	New func() subsys.Transport
	// Own returns an address to listen at that no other process gets when its port is closed. If it
	// is nil, each address that the transport chooses is one.
	Own func() (string, error)
	// Garbage connects to addr like a process without access, writes b and closes the connection.
	// It is nil for a transport that other processes cannot write to.
	Garbage func(addr string, b []byte) error
	// Lends means that the receiver reads payloads in registered memory where they lie. The sink is
	// not asked for room then.
	Lends bool
	// Allocs is how many allocations a small frame may cost. A transport that needs any explains
	// why where it sets this field.
	Allocs float64
	// Largest limits the payloads of the suite, in bytes, for a transport that is slow. 0 means 64
	// MiB.
	Largest int
	// Bubble runs each test in a bubble of testing/synctest. Nothing of the transport may wait for
	// the kernel then.
	Bubble bool
}

// own returns the address of a port that the test closes.
func (o *Options) own(t *testing.T) string {
	t.Helper()
	if o.Own == nil {
		return ""
	}
	addr, err := o.Own()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// Test runs the suite.
func Test(t *testing.T, o Options) {
	drives := []harness.Drive{harness.Polling, harness.Sleeping, harness.Parked}
	if !o.polls(t) {
		drives = drives[:1] // no poller, so there is one way only
	}
	for _, d := range drives {
		t.Run(string(d), func(t *testing.T) {
			for _, c := range []struct {
				name string
				f    func(*testing.T, Options, harness.Drive)
			}{
				{"Order", order}, {"BothWays", bothDirections}, {"Large", large}, {"ManyConns", manyConns},
				{"BackPressure", backPressure}, {"NotStarted", notStarted}, {"EndBehindData", endBehindData},
				{"CloseWhileSending", closeWhileSending}, {"CloseDuringEnd", closeDuringEnd}, {"PortClosed", portClosed}, {"SinkRefuses", sinkRefuses},
				{"RoomRefuses", roomRefuses}, {"RoomSkips", roomSkips}, {"Refused", refused}, {"Addresses", addresses}, {"Garbage", garbage},
				{"NoAllocs", noAllocs}, {"OneSided", oneSided}, {"OneSidedRefused", oneSidedRefused},
			} {
				t.Run(c.name, func(t *testing.T) {
					if o.Bubble {
						synctest.Test(t, func(t *testing.T) { c.f(t, o, d) })
					} else {
						c.f(t, o, d)
					}
				})
			}
		})
	}
}

// polls reports whether a poller drives the connections of the transport.
func (o Options) polls(t *testing.T) (yes bool) {
	t.Run("Probe", func(t *testing.T) {
		a, b := nodes(t, o, harness.Sleeping)
		a.dial(b)
		yes = a.HasPoller()
	})
	return yes
}

// nodes returns two nodes of one namespace.
func nodes(t *testing.T, o Options, d harness.Drive) (a, b *node) {
	t.Helper()
	tr := o.New()
	return newNode(t, tr, d), newNode(t, tr, d)
}

// two returns two nodes that are connected.
func two(t *testing.T, o Options, d harness.Drive) (a, b *node, near, far *sink) {
	t.Helper()
	a, b = nodes(t, o, d)
	near, far = a.dial(b)
	return a, b, near, far
}

// held are buffers that a connection uses. The test releases them when it knows that their frames
// have arrived.
type held []*buffers.Buffer

func (h *held) release() {
	for _, b := range *h {
		b.Release()
	}
	*h = nil
}

// stream sends total frames, alone and in batches, of all sizes at which an implementation could
// have a border.
func stream(n *node, s *sink, total int, seed uint64) (held, error) {
	sizes := []int{0, 1, 63, 64, 2047, 2048, 2049, 4064, 4096, 8191, 8192, 8193, 16384, 65535, 65536, 65537}
	rnd := rand.New(rand.NewPCG(seed, 1))
	var h held
	for seq := uint32(0); int(seq) < total; {
		var fs []subsys.Frame
		for range 1 + rnd.IntN(70) {
			if int(seq) >= total {
				break
			}
			if k := min(1+rnd.IntN(40), total-int(seq)); rnd.IntN(4) == 0 {
				small := make([]int, k)
				for i := range small {
					small[i] = sizes[rnd.IntN(6)]
				}
				r := batchOf(n, seq, small...)
				fs, h = append(fs, r), append(h, r.Buf)
				seq += uint32(k)
				continue
			}
			var b *buffers.Buffer
			if size := sizes[rnd.IntN(len(sizes))]; size > 0 || rnd.IntN(2) == 0 {
				b = n.buffer(size, uint64(seq))
				h = append(h, b)
			}
			fs = append(fs, frame(seq, b))
			seq++
		}
		if err := s.send(fs...); err != nil {
			return h, err
		}
	}
	return h, nil
}

// deliver sends what stream sends from near to far, and waits until all has come.
func deliver(n *node, near, far *sink, total int, seed uint64) []subsys.Header {
	n.t.Helper()
	h, err := stream(n, near, total, seed)
	if err != nil {
		n.t.Error(err)
	}
	got := far.want(total)
	h.release()
	return got
}

// order checks that frames of all sizes, alone and in batches, arrive whole and in order.
func order(t *testing.T, o Options, d harness.Drive) {
	a, _, near, far := two(t, o, d)
	for i, got := range deliver(a, near, far, 3000, 1) {
		if want := frame(uint32(i), nil).Header; got.Src != want.Src || got.Dst != want.Dst || got.Ack != want.Ack || got.Type != want.Type {
			t.Fatalf("header %d: %+v, want %+v", i, got, want)
		}
	}
}

func bothDirections(t *testing.T, o Options, d harness.Drive) {
	a, b, near, far := two(t, o, d)
	var wg sync.WaitGroup
	wg.Go(func() { deliver(a, near, far, 2000, 2) })
	wg.Go(func() { deliver(b, far, near, 2000, 3) })
	wg.Wait()
}

func large(t *testing.T, o Options, d harness.Drive) {
	a, _, near, far := two(t, o, d)
	sizes := []int{1 << 20, 1<<20 + 1, 3 << 20}
	if largest := 64 << 20; !short.Form(t) && (o.Largest == 0 || o.Largest >= largest) {
		sizes = append(sizes, largest)
	}
	for i, size := range sizes {
		b := a.buffer(size, uint64(2*i))
		small := a.buffer(100, uint64(2*i+1))
		if err := near.send(frame(uint32(2*i), b), frame(uint32(2*i+1), small)); err != nil {
			t.Fatal(err)
		}
		far.want(2*i + 2)
		b.Release()
		small.Release()
	}
}

// manyConns checks that each of many connections keeps its order while all of them send.
func manyConns(t *testing.T, o Options, d harness.Drive) {
	tr := o.New()
	b := newNode(t, tr, d)
	var wg sync.WaitGroup
	dialling := make(chan struct{}, 1) // one at a time, so that dial gets the far end of its own connection
	for i := range 4 {
		a := newNode(t, tr, d)
		for j := range 10 {
			wg.Go(func() {
				dialling <- struct{}{}
				near, far := a.dial(b)
				<-dialling
				deliver(a, near, far, 300, uint64(10*i+j))
			})
		}
	}
	wg.Wait()
}

// backPressure checks that a receiver without progress fills the connection: Send takes less, and
// Writable is called when there is room again.
func backPressure(t *testing.T, o Options, d harness.Drive) {
	a, b, near, far := two(t, o, d)
	b.Hold.Lock()
	var h held
	sent := uint32(0)
	for {
		if sent > 1<<16 {
			t.Fatal("4 GiB were taken, and no goroutine reads")
		}
		buf := a.buffer(64<<10, uint64(sent))
		n, err := near.conn.Send([]subsys.Frame{frame(sent, buf)})
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			buf.Release()
			break
		}
		h = append(h, buf)
		sent++
	}
	b.Hold.Unlock()
	if err := near.send(frame(sent, nil)); err != nil {
		t.Fatal(err)
	}
	far.want(int(sent) + 1)
	h.release()
}

// notStarted checks that the accepted end may send before the dialled one is started, and nothing
// is lost.
func notStarted(t *testing.T, o Options, d harness.Drive) {
	a, b := nodes(t, o, d)
	near := newSink(t)
	c, err := a.Port.Dial(t.Context(), b.Port.Addr(), near)
	if err != nil {
		t.Fatal(err)
	}
	near.conn = c
	far := eventually.Value(t, "an accepted connection", b.taken)
	sent := make(chan error, 1)
	go func() { sent <- far.send(frame(0, nil), frame(1, nil)) }()
	near.mu.Lock()
	if len(near.got) > 0 {
		t.Error("a sink is called before Start")
	}
	near.mu.Unlock()
	c.Start()
	near.want(2)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// endBehindData checks that frames sent before an end arrive before the end does, also when both
// arrive at once.
func endBehindData(t *testing.T, o Options, d harness.Drive) {
	a, b := nodes(t, o, d)
	for i := range 100 {
		near, far := a.dial(b)
		n := 1 + i%3
		for j := range n {
			if err := near.send(frame(uint32(j), nil)); err != nil {
				t.Fatal(err)
			}
		}
		near.conn.Close()
		far.want(n)
		if err := far.wantDown(); !errors.Is(err, subsys.ErrPeerClosed) {
			t.Fatalf("the end is reported as %v", err)
		}
		if _, err := far.conn.Send([]subsys.Frame{frame(0, nil)}); err == nil {
			t.Fatal("a connection that is down takes frames")
		}
	}
}

// closeWhileSending closes one end while another goroutine sends, at either end. Send must fail in
// the end, the other end must get Down once, and the closing end must not be called.
func closeWhileSending(t *testing.T, o Options, d harness.Drive) {
	a, b := nodes(t, o, d)
	for i := range 30 {
		near, far := a.dial(b)
		far.handle(func([]subsys.Frame) error { return nil })
		sending := make(chan struct{})
		ended := make(chan held)
		go func() {
			var h held
			for seq := uint32(0); ; seq++ {
				if seq == 20 {
					close(sending)
				}
				buf := a.buffer(int(seq*997%70_000), uint64(seq))
				h = append(h, buf)
				f := frame(seq, buf)
				if near.sendBriefly(&f) {
					continue
				}
				n, err := near.conn.Send([]subsys.Frame{f})
				if err != nil {
					if seq < 20 {
						close(sending)
					}
					break
				}
				if n == 0 {
					select {
					case <-near.writable:
					case err := <-near.down:
						near.down <- err
					}
				}
			}
			ended <- h
		}()
		<-sending
		if i%2 == 0 {
			near.conn.Close()
			near.conn.Close() // twice is fine
			a.forbid(near, false)
			select {
			case near.down <- subsys.ErrClosed:
			default:
			}
			far.wantDown()
		} else {
			far.conn.Close()
			near.wantDown()
			near.down <- subsys.ErrClosed // for the sender
		}
		h := <-ended
		h.release()
	}
}

// closeDuringEnd closes both ends at the same time, so that Close races the failure of the
// connection. Down may come once, and no call of the sink comes after the progress goroutine has
// left the connection.
func closeDuringEnd(t *testing.T, o Options, d harness.Drive) {
	a, b := nodes(t, o, d)
	for range 50 {
		near, far := a.dial(b)
		var wg sync.WaitGroup
		wg.Go(func() { far.conn.Close() })
		wg.Go(func() { near.conn.Close() })
		wg.Wait()
		a.forbid(near, true)
		if _, err := near.conn.Send([]subsys.Frame{frame(0, nil)}); err == nil {
			t.Fatal("a closed connection takes frames")
		}
	}
}

// portClosed checks that a port closes its connections and frees its address.
func portClosed(t *testing.T, o Options, d harness.Drive) {
	tr := o.New()
	a, b := newNode(t, tr, d), newNodeAt(t, tr, o.own(t), d)
	near, _ := a.dial(b)
	addr := b.Port.Addr()
	b.close()
	near.wantDown()
	if _, err := near.conn.Send([]subsys.Frame{frame(0, nil)}); err == nil {
		t.Error("a connection that is down takes frames")
	}
	if _, err := a.Port.Dial(t.Context(), addr, newSink(t)); err == nil {
		t.Error("a closed port can be dialled")
	}
	again, err := tr.Listen(addr, subsys.Config{Pool: a.Pool, Poller: a.Poller, Count: &a.Count, Accept: func(subsys.Conn) subsys.Sink { return nil }})
	if err != nil {
		t.Fatalf("the address of a closed port: %v", err)
	}
	if again.Addr() != addr {
		t.Errorf("listening on %s gave %s", addr, again.Addr())
	}
	if _, err := tr.Listen(addr, subsys.Config{}); err == nil {
		t.Error("two ports have one address")
	}
	again.Close()
	again.Close()
}

// sinkRefuses checks that an error of the sink cuts the connection at both ends.
func sinkRefuses(t *testing.T, o Options, d harness.Drive) {
	a, b := nodes(t, o, d)
	no := errors.New("no")
	b.preparing(func(s *sink) { s.onFrames = func([]subsys.Frame) error { return no } })
	near, far := a.dial(b)
	_ = near.send(frame(0, nil))
	if err := far.wantDown(); !errors.Is(err, no) {
		t.Errorf("the end is reported as %v, not as what the sink said", err)
	}
	near.wantDown()
}

// roomRefuses checks that an announced length which the sink refuses cuts the connection before
// memory is allocated for it.
func roomRefuses(t *testing.T, o Options, d harness.Drive) {
	a, b := nodes(t, o, d)
	no := errors.New("no")
	b.preparing(func(s *sink) {
		s.onRoom = func(h *subsys.Header) error {
			if h.Seq != 0 || h.Len != 8<<20 {
				t.Errorf("asked for room for %+v", h)
			}
			return no
		}
	})
	near, far := a.dial(b)
	buf := a.buffer(8<<20, 0)
	f := frame(0, buf)
	if o.Lends {
		f.Buf = nil // plain memory, as far as the conn can tell
	}
	_ = near.send(f)
	if err := far.wantDown(); !errors.Is(err, no) {
		t.Errorf("the end is reported as %v, not as what the sink said", err)
	}
	near.wantDown()
	buf.Release()
}

// roomSkips checks that a payload for which the sink returns no buffer is skipped: its frame
// arrives without payload, the frames around it arrive whole, and no memory of its size is mapped.
func roomSkips(t *testing.T, o Options, d harness.Drive) {
	a, b := nodes(t, o, d)
	const frames, size = 30, 3 << 20
	b.preparing(func(s *sink) {
		s.skips = func(h *subsys.Header) bool { return h.Seq%3 == 1 }
	})
	near, far := a.dial(b)
	before := b.Pool.Stats().Mapped
	for seq := range uint32(frames) {
		n := 100
		switch seq % 3 {
		case 1:
			n = size + int(seq)
		case 2:
			n = 20_000
		}
		buf := a.buffer(n, uint64(seq))
		f := frame(seq, buf)
		if o.Lends && n > 20_000 {
			f.Buf = nil // plain memory, as far as the conn can tell
		}
		if err := near.send(f); err != nil {
			t.Fatal(err)
		}
		far.want(int(seq) + 1) // the payload is not read after this
		buf.Release()
	}
	if n := b.Pool.Stats().Mapped - before; n >= size {
		t.Errorf("%d bytes were mapped to skip payloads of %d", n, size)
	}
}

// refused checks that a connection which is not accepted fails to dial or goes down at once.
func refused(t *testing.T, o Options, d harness.Drive) {
	a, b := nodes(t, o, d)
	b.accepting(func(subsys.Conn) *sink { return nil })
	near := newSink(t)
	c, err := a.Port.Dial(t.Context(), b.Port.Addr(), near)
	if err != nil {
		return
	}
	near.conn = c
	c.Start()
	near.wantDown()
}

func addresses(t *testing.T, o Options, d harness.Drive) {
	tr := o.New()
	a, b := newNode(t, tr, d), newNodeAt(t, tr, o.own(t), d)
	if !a.Port.Reaches(b.Port.Addr()) {
		t.Errorf("%s does not reach %s", a.Port.Addr(), b.Port.Addr())
	}
	for _, bad := range []string{"", "x", "other://host:1", tr.Name() + "://", tr.Name() + ":", "://", tr.Name() + "://%zz"} {
		if a.Port.Reaches(bad) {
			t.Errorf("%q is said to be reached", bad)
		}
		if _, err := a.Port.Dial(t.Context(), bad, newSink(t)); !errors.Is(err, subsys.ErrAddress) {
			t.Errorf("dialling %q: %v", bad, err)
		}
		if bad != "" {
			if _, err := tr.Listen(bad, subsys.Config{}); !errors.Is(err, subsys.ErrAddress) {
				t.Errorf("listening on %q: %v", bad, err)
			}
		}
	}
	gone := b.Port.Addr()
	b.close()
	if _, err := a.Port.Dial(t.Context(), gone, newSink(t)); !errors.Is(err, subsys.ErrNoPeer) {
		t.Errorf("dialling an address without a port: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c := newNode(t, tr, d)
	if conn, err := a.Port.Dial(ended, c.Port.Addr(), newSink(t)); err == nil {
		conn.Close() // a transport that does not wait may succeed
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("dialling with an ended context: %v", err)
	}
}

// garbage checks that a peer which writes garbage affects only its own connection.
func garbage(t *testing.T, o Options, d harness.Drive) {
	if o.Garbage == nil {
		t.Skip("no other process can write to this transport")
	}
	_, b, near, far := two(t, o, d)
	sent := 0
	good := func() {
		t.Helper()
		if err := near.send(frame(uint32(sent), nil)); err != nil {
			t.Fatal(err)
		}
		sent++
		far.want(sent)
	}
	good()
	b.preparing(func(s *sink) {
		s.onRoom = func(h *subsys.Header) error { return errors.New("not from you") }
	})
	head := func(f func(*subsys.Header), extra ...byte) []byte {
		h := frame(0, nil).Header
		f(&h)
		w := make([]byte, subsys.HeaderLen, subsys.HeaderLen+len(extra))
		h.Put(w)
		return append(w, extra...)
	}
	reserved := head(func(*subsys.Header) {})
	reserved[6] = 1
	rnd := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 100_000)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	for i, bad := range [][]byte{
		nil, {0}, make([]byte, 31), noise, noise[:33],
		[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		reserved,
		head(func(h *subsys.Header) { h.Len = 1<<32 - 1 }),
		head(func(h *subsys.Header) { h.Len = subsys.MaxPayload }, 1, 2, 3),
		head(func(h *subsys.Header) { h.Len = 100 }, 1, 2, 3), // cut inside
		head(func(h *subsys.Header) { h.Len = 1 << 20 }, noise...),
	} {
		if err := o.Garbage(b.Port.Addr(), bad); err != nil {
			t.Fatal(err)
		}
		s := eventually.Value(t, "an accepted connection", b.taken)
		s.wantDown()
		s.mu.Lock()
		if len(s.got) > 0 {
			t.Errorf("garbage %d was delivered as %d frames", i, len(s.got))
		}
		s.mu.Unlock()
		good()
	}
}

// noAllocs checks that steady traffic makes no more allocations than Options.Allocs.
func noAllocs(t *testing.T, o Options, d harness.Drive) {
	if isWatched {
		t.Skip("the race detector allocates, as does a rocldebug build")
	}
	a, _, near, far := two(t, o, d)
	come := make(chan struct{}, 16)
	far.handle(func(fs []subsys.Frame) error {
		for range fs {
			come <- struct{}{}
		}
		return nil
	})
	b := a.buffer(64, 0)
	defer b.Release()
	fs := []subsys.Frame{frame(0, b)}
	one := func() {
		if n, err := near.conn.Send(fs); n != 1 || err != nil {
			t.Fatalf("took %d: %v", n, err)
		}
		<-come
	}
	for range 100 {
		one()
	}
	if n := testing.AllocsPerRun(500, one); n >= 1+o.Allocs {
		t.Errorf("%v allocations a frame, of %v allowed", n, o.Allocs)
	}
}
