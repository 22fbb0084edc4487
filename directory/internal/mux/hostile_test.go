// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A recorder stands between a port and its peers: it keeps what they send to the port, and passes
// it on.
type recorder struct {
	udp *net.UDPConn
	tcp *net.TCPListener
	to  *node
	mu  sync.Mutex
	got [][]byte // datagrams
	str [][]byte // streams, the bytes from the dialling side
}

func record(t *testing.T, to *node) *recorder {
	t.Helper()
	r := &recorder{to: to, tcp: try.Get(net.Listen("tcp", "127.0.0.1:0"))(t).(*net.TCPListener)}
	at := r.tcp.Addr().(*net.TCPAddr)
	var err error
	if r.udp, err = net.ListenUDP("udp", &net.UDPAddr{IP: at.IP, Port: at.Port}); err != nil {
		t.Skip("the port is taken for UDP")
	}
	var busy sync.WaitGroup
	busy.Go(func() {
		for b := make([]byte, 4096); ; {
			n, _, err := r.udp.ReadFromUDP(b)
			if err != nil {
				return
			}
			r.mu.Lock()
			r.got = append(r.got, bytes.Clone(b[:n]))
			r.mu.Unlock()
			_, _ = r.udp.WriteToUDP(b[:n], to.Addr())
		}
	})
	busy.Go(func() {
		for {
			c, err := r.tcp.Accept()
			if err != nil {
				return
			}
			busy.Go(func() {
				defer c.Close()
				on, err := net.Dial("tcp", to.Addr().String())
				if err != nil {
					return
				}
				defer on.Close()
				_ = c.SetDeadline(time.Now().Add(testTimeout))
				_ = on.SetDeadline(time.Now().Add(testTimeout))
				var said bytes.Buffer
				both := make(chan struct{})
				go func() { _, _ = io.Copy(on, io.TeeReader(c, &said)); close(both) }()
				_, _ = io.Copy(c, on)
				c.Close()
				<-both
				r.mu.Lock()
				r.str = append(r.str, said.Bytes())
				r.mu.Unlock()
			})
		}
	})
	t.Cleanup(func() { r.udp.Close(); r.tcp.Close(); busy.Wait() })
	return r
}

func (r *recorder) addr() *net.UDPAddr { return r.udp.LocalAddr().(*net.UDPAddr) }

func (r *recorder) kept() (datagrams, streams [][]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([][]byte(nil), r.got...), append([][]byte(nil), r.str...)
}

// An enemy sends from a socket of its own and counts what comes back.
type enemy struct {
	*net.UDPConn
	t testing.TB
}

func hostile(t testing.TB) *enemy {
	c := try.Get(net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}))(t)
	t.Cleanup(func() { c.Close() })
	return &enemy{c, t}
}

// send sends datagrams no faster than the port reads them, and waits until the port has handled
// all.
func (e *enemy) send(to *node, bs ...[]byte) {
	e.t.Helper()
	handled := func() uint64 {
		c := &to.count
		return c.Foreign.Load() + c.Replayed.Load() + c.Received.Load() + c.GossipDropped.Load() + uint64(len(to.packets))
	}
	before := handled()
	for i, b := range bs {
		try.Get(e.WriteToUDP(b, to.Addr()))(e.t)
		if i%64 == 63 || i == len(bs)-1 {
			eventually.True(e.t, fmt.Sprintf("%d are handled", i+1), func() bool { return handled() >= before+uint64(i)+1 })
		}
	}
}

// heard returns a count above 0 if any bytes came back. All replies are there: the port has handled
// what was sent, and it replies to a datagram before it reads the next one.
func (e *enemy) heard() (bytes int) {
	b := make([]byte, 4096)
	_ = e.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	for {
		n, _, err := e.ReadFromUDP(b)
		if err != nil {
			return bytes
		}
		bytes += n + 1
	}
}

// Promise (Keys): A process without the cluster's key gets no answer at any port and changes
// nothing. Refusals are logged. See also TestStrangersAtSealedCluster.
func TestSilence(t *testing.T) {
	a, b := start(t, 1, keyed("key")), start(t, 2, keyed("key"))
	r := record(t, b)
	know(a, b)
	a.Meet(2, b.Epoch(), r.addr())
	a.Send(Out{To: 2, Payload: []byte("to be changed")})
	b.next(t)
	ds, _ := r.kept()
	valid := ds[0]
	e := hostile(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	junk := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	var all [][]byte
	for n := range datagramSize + 1 { // random, some with valid heads
		b := junk(n)
		if n > 0 && n%3 == 0 {
			b[0] = magic
		}
		if n > 1 && n%6 == 0 {
			b[1] = byte(n % 8)
		}
		if n > 4 && n%9 == 0 {
			copy(b, valid[:min(n, headLen)])
			if n > 12 {
				b[12]++
			}
		}
		all = append(all, b)
	}
	for n := range valid { // truncated
		all = append(all, valid[:n])
	}
	// One bit is flipped. No flip makes the port itself the sender, whose casts are not counted.
	for bit := range len(valid) * 8 {
		b := bytes.Clone(valid)
		b[bit/8] ^= 1 << (bit % 8)
		all = append(all, b)
	}
	one := func(cluster, key string, kind byte, from, to resource.NodeID, n uint64, plain string) []byte {
		k := newKeys(cluster, [][]byte{[]byte(key)})
		return seal(nil, aead(derive(k.bytes[0], "one", uint64(from), a.Epoch(), uint64(to), b.Epoch())), kind, k.tags[0], from, n, []byte(plain))
	}
	right := newKeys("test", [][]byte{[]byte("key")})
	all = append(all,
		one("test", "other", kindOne, 1, 2, 100, "\x00other key"), one("other", "key", kindOne, 1, 2, 100, "\x00other cluster"), one("test", "", kindOne, 1, 2, 100, "\x00no key"),
		one("test", "key", kindOne, 3, 2, 100, "\x00unknown"), one("test", "key", kindOne, 2, 2, 100, "\x00itself"), one("test", "key", kindOne, 1, 3, 100, "\x00for another"),
		one("test", "key", kindOne, 1, 2, 0, "\x00counter 0"), one("test", "key", kindOne, 1, 2, 101, ""),
		one("test", "key", kindGossip, 1, 2, 105, "sealed as no gossip is"), one("test", "key", kindHello, 1, 2, 106, "nor a hello"),
		one("test", "key", kindLarge, 1, 2, 102, "\x05\x00\x00\x00"), one("test", "key", kindBody, 1, 2, 103, "hello"), one("test", "key", 77, 1, 2, 104, "\x00hello"),
		seal(nil, aead(derive(right.bytes[0], "cast", 1, a.Epoch()+1)), kindCast, right.tags[0], 1, 5, []byte("a cast of another incarnation")),
		seal(nil, aead(derive(newKeys("test", nil).bytes[0], "beacon")), kindBeacon, right.tags[0], 5, 5, []byte{1, 2}),
	)
	e.send(b, all...)
	version := bytes.Clone(valid) // of another version of the protocol
	version[0]++
	e.send(b, version)
	if n := e.heard(); n > 0 {
		t.Errorf("%d bytes came back", n)
	}
	if len(b.got)+len(b.beacons) > 0 {
		t.Errorf("heard %q", (<-b.got).p)
	}
	c := &b.count
	if c.Received.Load() != 1 || c.Sent.Load() != 0 || c.Foreign.Load()+c.Replayed.Load() != uint64(len(all)+1) {
		t.Errorf("received %d, sent %d, foreign %d, replayed %d of %d", c.Received.Load(), c.Sent.Load(), c.Foreign.Load(), c.Replayed.Load(), len(all)+1)
	}
	before := c.Foreign.Load()
	e.send(b, append([]byte{gossipByte}, junk(100)...)) // memberlist does not see datagrams of a stranger
	if n := len(b.packets); n > 0 || c.Foreign.Load() != before+1 {
		t.Errorf("%d packets of a stranger are memberlist's, %d foreign", n, c.Foreign.Load()-before)
	}
	a.Send(Out{To: 2, Payload: []byte("still")})
	if h := b.next(t); string(h.p) != "still" {
		t.Errorf("%q", h.p)
	}
}

// A host that passes a datagram on as its own does not make the port answer another machine: the
// answer goes to the sealed sender.
func TestAnswersStayAtHome(t *testing.T) {
	p := start(t, 1, nil)
	p.Meet(2, 5, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 9), Port: 99})
	a := p.keys.Load().cipher(derive(p.keys.Load().bytes[0], "one", 2, 5, 1, p.Epoch()))
	for i, v := range []struct {
		from string
		home bool
	}{{"127.0.0.9:99", true}, {"127.0.0.9:100", false}, {"127.0.0.8:100", true}, {"192.0.2.77:53", true}} {
		from := try.Get(net.ResolveUDPAddr("udp", v.from))(t)
		p.datagram(seal(nil, a, kindOne, p.keys.Load().tags[0], 2, uint64(i+1), []byte("\x00x")), from)
		if h := p.next(t); (h.at == nil) != v.home {
			t.Errorf("from %s: answered at %v", v.from, h.at)
		}
	}
}

// Replayed datagrams, casts, notes about casts and streams have no effect: at once, after the two
// members have parted and met again, and after both were restarted.
//
// Promise (Keys): Recorded traffic has no effect, also after restarts, and no counter is used twice
// under one key. See also TestPartAndMeet.
func TestReplays(t *testing.T) {
	groupPort := try.Get(freeaddr.Port())(t)
	change := func(c *Config) { keyed("key")(c); c.Group = fmt.Sprint("127.255.255.255:", groupPort) }
	a, b := start(t, 1, change), start(t, 2, change)
	ra, rb := record(t, a), record(t, b)
	air := try.Get(newSocket(&net.UDPAddr{IP: net.IPv4zero, Port: groupPort}, true))(t)
	defer air.close()
	a.Meet(2, b.Epoch(), rb.addr())
	b.Meet(1, a.Epoch(), ra.addr())
	// early holds casts, and whether they were heard. A member that does not know the floor yet
	// drops them, so they may be heard later, when they are replayed.
	early := map[string]bool{}
	eventually.True(t, "the floor is told", func() bool {
		name := fmt.Sprint("early ", len(early))
		early[name] = false
		a.Cast([]byte(name))
		p := b.peer(1)
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.castFrom > 0
	})
	for range 20 {
		a.Cast([]byte("cast"))
		a.Send(Out{To: 2, Payload: []byte("x")}, Out{To: 2, Payload: make([]byte, 3000)})
		b.Send(Out{To: 1, Payload: []byte("y")})
	}
	a.Beacon()
	eventually.True(t, "all is recorded", func() bool {
		da, _ := ra.kept()
		db, sb := rb.kept()
		return len(da) >= 21 && len(db) >= 21 && len(sb) == 20
	})
	hear := func(n *node, last string) { // receives until last comes
		for name := ""; name != last; {
			name = string(n.next(t).p)
			if _, is := early[name]; is {
				early[name] = true
			}
		}
	}
	for large := 0; large < 20; {
		h := b.next(t)
		if _, is := early[string(h.p)]; is {
			early[string(h.p)] = true
		}
		if len(h.p) == 3000 {
			large++
		}
	}
	b.Send(Out{To: 1, Payload: []byte("last")})
	hear(a, "last")
	a.Send(Out{To: 2, Payload: []byte("last")})
	hear(b, "last")
	a.Cast([]byte("last cast")) // casts come to another socket
	hear(b, "last cast")
	toA, _ := ra.kept()
	toB, streams := rb.kept()
	casts := map[byte]int{}
	for {
		_, n, e := air.readOne()
		if e == syscall.EAGAIN {
			break
		}
		d := bytes.Clone(air.ms[0].Buffers[0][:n])
		casts[d[1]]++
		if d[1] == kindCast { // beacons may be replayed, as Beacon says
			toB = append(toB, d)
		}
	}
	if casts[kindCast] < 21 {
		t.Fatalf("recorded %v from the air", casts)
	}
	e := hostile(t)
	again := func(what string, x, y *node) {
		t.Helper()
		drain(x.got)
		drain(y.got)
		eventually.True(t, "what was large is counted", func() bool { return x.peer(2).large.Load()+y.peer(1).large.Load() == 0 })
		sx, sy := x.count.Sent.Load(), y.count.Sent.Load()
		for _, d := range toB { // casts before a floor is known are not counted
			if d[1] == kindCast {
				_, _ = e.WriteToUDP(d, y.Addr())
			} else {
				e.send(y, d)
			}
		}
		e.send(x, toA...)
		refused := y.count.StreamsRefused.Load()
		for _, s := range streams {
			c := try.Get(net.Dial("tcp", y.Addr().String()))(t)
			_, _ = c.Write(s)
			_ = c.SetDeadline(time.Now().Add(testTimeout))
			if got, _ := io.ReadAll(c); len(got) > 0 {
				t.Errorf("%s: a stream is answered by %d bytes", what, len(got))
			}
			c.Close()
		}
		eventually.True(t, "all streams are refused", func() bool { return y.count.StreamsRefused.Load() == refused+uint64(len(streams)) })
		for len(x.got)+len(y.got) > 0 {
			var h heard
			select {
			case h = <-x.got:
			case h = <-y.got:
			}
			if was, is := early[string(h.p)]; is && !was {
				early[string(h.p)] = true
				continue
			}
			t.Errorf("%s: %.20q is heard again", what, h.p)
		}
		if e.heard() > 0 {
			t.Errorf("%s: something is answered", what)
		}
		// A member that does not know the floor asks the casting member, and seldom.
		if n := x.count.Sent.Load() - sx + y.count.Sent.Load() - sy; n > 4 {
			t.Errorf("%s: %d datagrams sent", what, n)
		}
	}
	again("at once", a, b)
	b.Part(1)
	a.Part(2)
	a.Meet(2, b.Epoch(), b.Addr())
	b.Meet(1, a.Epoch(), a.Addr())
	again("parted and met", a, b)
	a.Send(Out{To: 2, Payload: []byte("new")}, Out{To: 2, Payload: make([]byte, 2000)})
	b.next(t)
	b.next(t)
	b2 := start(t, 2, change)
	a.Meet(2, b2.Epoch(), b2.Addr())
	b2.Meet(1, a.Epoch(), a.Addr())
	again("one started anew", a, b2)
	a2 := start(t, 1, change)
	a2.Meet(2, b2.Epoch(), b2.Addr())
	b2.Meet(1, a2.Epoch(), a2.Addr())
	again("both started anew", a2, b2)
}

// Strangers that hold connections, silent or dripping bytes, do not keep a member out, and do not
// take more than the room for strangers.
//
// Promise (Keys): Half-open and slow connections keep no member out. A peer that never reads delays
// no other. See also TestStrangersGiveWay.
func TestHalfOpen(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		sec := TLS{}
		if sealed {
			sec = mutual(t)
		}
		change := func(c *Config) { keyed("key")(c); c.TLS = sec }
		a, b := start(t, 1, change), start(t, 2, change)
		know(a, b)
		var held []net.Conn
		for i := range 3 * maxPending {
			c := try.Get(net.Dial("tcp", b.Addr().String()))(t)
			held = append(held, c)
			switch i % 4 {
			case 1:
				_, _ = c.Write([]byte{gossipByte}) // there is no memberlist that takes it
			case 2:
				_, _ = c.Write([]byte{largeByte, magic, kindLarge})
			case 3:
				_, _ = c.Write([]byte{0x16, 3, 1, 0xff, 0xff}) // a long TLS hello
			}
			if sealed || i%4 != 3 {
				continue
			}
			c.Close() // without TLS, it is a stream like any
		}
		if n := b.waiting.Len(); n > maxPending {
			t.Errorf("%d strangers", n)
		}
		a.Send(Out{To: 2, Payload: make([]byte, 2000)})
		try.Equal(t, len(b.next(t).p), 2000, "a member is kept out")
		c := try.Get(a.Dial(t.Context(), 2))(t)
		_ = c.SetDeadline(time.Now().Add(testTimeout))
		_, _ = c.Write([]byte("member"))
		try.Get(io.ReadFull(c, make([]byte, 6)))(t)
		c.Close()
		// Each stranger is closed in time, however slowly it drips, and gets no reply.
		var drip sync.WaitGroup
		for i, c := range held {
			if i%4 == 1 {
				continue // memberlist's, which has no deadline before memberlist takes it
			}
			drip.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(testTimeout))
				for b := make([]byte, 1); ; time.Sleep(200 * time.Millisecond) { // a byte at a time
					// The rest is silent: without TLS, any other byte makes a stream of a user.
					if sealed || i%4 == 2 {
						if _, err := c.Write([]byte{0}); err != nil {
							return
						}
					}
					_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
					n, err := c.Read(b)
					if n > 0 && !sealed {
						t.Errorf("stranger %d is answered", i)
					}
					if ne, ok := err.(net.Error); err != nil && (!ok || !ne.Timeout()) {
						return
					}
				}
			})
		}
		drip.Wait()
		for _, c := range held {
			c.Close()
		}
		a.Close()
		b.Close()
	}
}

// However many connections a stranger opens, and however fast, a connection from another address
// keeps its place.
func TestStrangersGiveWay(t *testing.T) {
	p := start(t, 2, nil).Mux
	from := func(ip string) (*stranger, *closing) {
		here, there := net.Pipe()
		t.Cleanup(func() { here.Close(); there.Close() })
		c := &closing{Conn: here, at: &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}}
		return p.admitStranger(c), c
	}
	member, slow := from("10.0.0.1")
	_, first := from("10.0.0.2")
	for range 2 * maxPending {
		from("10.0.0.2")
	}
	if slow.closed || !first.closed || p.waiting.Len() != maxPending {
		t.Errorf("a member's connection is closed: %v; the stranger's first: %v; %d have places", slow.closed, first.closed, p.waiting.Len())
	}
	if member.markKnown(); p.waiting.Len() != maxPending-1 {
		t.Error("it had no slot any more")
	}
}

// A closing is a connection from a given address.
type closing struct {
	net.Conn
	at     net.Addr
	closed bool
}

func (c *closing) RemoteAddr() net.Addr { return c.at }
func (c *closing) Close() error         { c.closed = true; return c.Conn.Close() }

// Wrong lengths cost what was sent, and are not believed. A stream with an error is not received.
func TestLyingStreams(t *testing.T) {
	b := start(t, 2, nil)
	b.Meet(1, 11, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9})
	b.Meet(3, 33, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9})
	k := b.keys.Load()
	n := uint64(0)
	part := func(kind byte, from resource.NodeID, n uint64, plain []byte) []byte {
		a := k.cipher(derive(k.bytes[0], "one", uint64(from), uint64(from)*11, 2, b.Epoch()))
		return seal(nil, a, kind, k.tags[0], from, n, plain)
	}
	size := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	join := func(parts ...[]byte) []byte { return bytes.Join(append([][]byte{{largeByte}}, parts...), nil) }
	hello := []byte("hello")
	for what, said := range map[string]func() []byte{
		"nothing":                  func() []byte { return nil },
		"a kind alone":             func() []byte { return join() },
		"too large":                func() []byte { return join(part(kindLarge, 1, n, size(MaxLarge+1)), make([]byte, 5<<20)) },
		"as large as can be":       func() []byte { return join(part(kindLarge, 1, n, size(1<<32-1)), hello) },
		"large, and nothing":       func() []byte { return join(part(kindLarge, 1, n, size(MaxLarge))) },
		"shorter than it says":     func() []byte { return join(part(kindLarge, 1, n, size(6)), part(kindBody, 1, n+1, hello)) },
		"longer than it says":      func() []byte { return join(part(kindLarge, 1, n, size(4)), part(kindBody, 1, n+1, hello)) },
		"a head of no length":      func() []byte { return join(part(kindLarge, 1, n, nil), part(kindBody, 1, n+1, hello)) },
		"no head":                  func() []byte { return join(part(kindBody, 1, n, size(5)), part(kindBody, 1, n+1, hello)) },
		"two heads":                func() []byte { return join(part(kindLarge, 1, n, size(4)), part(kindLarge, 1, n+1, size(4))) },
		"a body of another's":      func() []byte { return join(part(kindLarge, 1, n, size(5)), part(kindBody, 3, n+1, hello)) },
		"a body of another number": func() []byte { return join(part(kindLarge, 1, n, size(5)), part(kindBody, 1, n+2, hello)) },
		"an unknown sender":        func() []byte { return join(part(kindLarge, 4, n, size(5)), part(kindBody, 4, n+1, hello)) },
		"our own number":           func() []byte { return join(part(kindLarge, 2, n, size(5)), part(kindBody, 2, n+1, hello)) },
		"a changed body": func() []byte {
			b := join(part(kindLarge, 1, n, size(5)), part(kindBody, 1, n+1, hello))
			b[len(b)-1] ^= 1
			return b
		},
	} {
		n += 10
		refused := b.count.StreamsRefused.Load()
		var before, after runtime.MemStats
		p := said()
		runtime.ReadMemStats(&before)
		c := try.Get(net.Dial("tcp", b.Addr().String()))(t)
		_ = c.SetDeadline(time.Now().Add(testTimeout))
		_, _ = c.Write(p)
		_ = c.(*net.TCPConn).CloseWrite()
		if got, _ := io.ReadAll(c); len(got) > 0 {
			t.Errorf("%s: answered by %d bytes", what, len(got))
		}
		c.Close()
		eventually.True(t, what+" is refused", func() bool { return b.count.StreamsRefused.Load() == refused+1 })
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
			t.Errorf("%s: %d bytes were made for it", what, used)
		}
	}
	if len(b.got) > 0 {
		t.Errorf("heard %q", (<-b.got).p)
	}
	c := try.Get(net.Dial("tcp", b.Addr().String()))(t)
	defer c.Close()
	_, _ = c.Write(join(part(kindLarge, 1, n+10, size(5)), part(kindBody, 1, n+11, hello)))
	if h := b.next(t); string(h.p) != "hello" || h.from != 1 {
		t.Errorf("%q of %d", h.p, h.from)
	}
}

// A member that accepts connections and never reads delays neither other members nor Close, and
// only a limited number of payloads waits for it.
func TestNeverReads(t *testing.T) {
	deaf := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer deaf.Close()
	at := deaf.Addr().(*net.TCPAddr)
	a, b := start(t, 1, nil), start(t, 2, nil)
	know(a, b)
	a.Meet(3, 7, &net.UDPAddr{IP: at.IP, Port: at.Port})
	large := make([]byte, MaxLarge)
	var out []Out
	for range 3 * mostLarge {
		out = append(out, Out{To: 3, Payload: large[:1<<20]})
	}
	a.Send(out...)
	try.Equal(t, a.peer(3).large.Load(), mostLarge, "wait")
	for range 5 {
		a.Send(Out{To: 2, Payload: large})
		try.Equal(t, len(b.next(t).p), MaxLarge, "bytes")
	}
	a.Close() // does not wait for what is never read
}
