// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"go.uber.org/goleak"
)

type heard struct {
	from resource.NodeID
	at   *net.UDPAddr
	p    []byte
}

// A node is a port that keeps what it receives.
type node struct {
	*Mux
	got     chan heard
	beacons chan heard
}

const testTimeout = eventually.Timeout

func start(t testing.TB, self resource.NodeID, change func(*Config)) *node {
	t.Helper()
	n := try.Get(attempt(self, change))(t)
	t.Cleanup(func() { n.Close() })
	return n
}

func attempt(self resource.NodeID, change func(*Config)) (*node, error) {
	n := &node{got: make(chan heard, 1<<14), beacons: make(chan heard, 64)}
	cfg := Config{
		Self: self, Bind: "127.0.0.1:0", Cluster: "test", largeTime: eventually.Timeout,
		Receive: func(from resource.NodeID, at *net.UDPAddr, p []byte) {
			select {
			case n.got <- heard{from, at, bytes.Clone(p)}:
			default:
			}
		},
		Beacon: func(from resource.NodeID, at *net.UDPAddr) {
			select {
			case n.beacons <- heard{from: from, at: at}:
			default:
			}
		},
		Stream: func(c net.Conn) { // echoes what it reads
			_, _ = io.Copy(c, c)
			c.Close()
		},
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if n.Mux, err = Open(cfg); err == nil {
		n.Start()
	}
	return n, err
}

// know makes all nodes known to each other.
func know(ns ...*node) {
	for _, a := range ns {
		for _, b := range ns {
			a.Meet(b.cfg.Self, b.Epoch(), b.Addr())
		}
	}
}

func (n *node) next(t testing.TB) heard {
	t.Helper()
	select {
	case h := <-n.got:
		return h
	case <-time.After(testTimeout):
		t.Fatal("nothing came")
		return heard{}
	}
}

// none fails the test if n has received a payload. A payload that was under way has come when the
// fence comes: datagrams over the loopback interface keep their order.
func (n *node) none(t testing.TB, fence *node) {
	t.Helper()
	mark := []byte("fence " + fmt.Sprint(rand.Text()))
	for end := time.Now().Add(testTimeout); ; {
		fence.Send(Out{To: n.cfg.Self, Payload: mark})
		select {
		case h := <-n.got:
			if bytes.Equal(h.p, mark) {
				return
			}
			if !bytes.HasPrefix(h.p, []byte("fence ")) {
				t.Fatalf("heard %.60q from %d", h.p, h.from)
			}
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatal("the fence did not come")
		}
	}
}

func keyed(k ...string) func(*Config) {
	return func(c *Config) {
		c.Keys = nil
		for _, k := range k {
			c.Keys = append(c.Keys, []byte(k))
		}
	}
}

// mutual returns TLS in which both sides prove that they have the same key.
func mutual(t testing.TB) TLS {
	t.Helper()
	key := try.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "cluster"}, DNSNames: []string{"cluster"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der := try.Get(x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key))(t)
	cert := try.Get(x509.ParseCertificate(der))(t)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	own := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	client := &tls.Config{Certificates: own, RootCAs: pool, ServerName: "cluster", MinVersion: tls.VersionTLS13}
	server := &tls.Config{Certificates: own, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13}
	return TLS{
		Client: func(ctx context.Context, nc net.Conn) (net.Conn, error) {
			c := tls.Client(nc, client)
			return c, c.HandshakeContext(ctx)
		},
		Server: func(ctx context.Context, nc net.Conn) (net.Conn, error) {
			c := tls.Server(nc, server)
			return c, c.HandshakeContext(ctx)
		},
	}
}

// All that a port does works with and without keys and TLS, over both address families, with a
// keeper that parks and with one that spins.
func TestTogether(t *testing.T) {
	for _, bind := range []string{"127.0.0.1:0", "[::1]:0"} {
		if c, err := net.ListenPacket("udp", bind); err != nil {
			t.Logf("not over %s: %v", bind, err)
			continue
		} else {
			c.Close()
		}
		for _, v := range []struct {
			what string
			keys []string
			tls  bool
			spin time.Duration
		}{{what: "bare"}, {"keys", []string{"one"}, false, 0}, {"TLS", []string{"one"}, true, 50 * time.Microsecond}} {
			t.Run(bind+" "+v.what, func(t *testing.T) {
				sec := TLS{}
				if v.tls {
					sec = mutual(t)
				}
				change := func(c *Config) { keyed(v.keys...)(c); c.Bind, c.TLS, c.Spin = bind, sec, v.spin }
				ns := []*node{start(t, 1, change), start(t, 2, change), start(t, 3, change)}
				know(ns...)
				exchange(t, ns)
			})
		}
	}
}

func exchange(t *testing.T, ns []*node) {
	a, b, c := ns[0], ns[1], ns[2]
	// Payloads at each limit of size arrive. Those that are too large do not.
	bytesSent := uint64(0)
	sizes := []int{0, 1, MaxPayload - 1, MaxPayload, MaxPayload + 1, 70_000, MaxLarge}
	for _, size := range sizes {
		p := bytes.Repeat([]byte{byte(size)}, size)
		a.Send(Out{To: 2, Payload: p}, Out{To: 3, Payload: p}, Out{To: 99, Payload: p}, Out{To: 1, Payload: p})
		for _, n := range []*node{b, c} {
			if h := n.next(t); h.from != 1 || h.at != nil || !bytes.Equal(h.p, p) {
				t.Fatalf("of %d bytes %d came from %d, at %v", size, len(h.p), h.from, h.at)
			}
		}
		if size <= MaxPayload {
			bytesSent += 2 * uint64(overhead+1+size)
		} else {
			bytesSent += 2 * uint64(1+largeHead+overhead+size)
		}
	}
	a.Send(Out{To: 2, Payload: make([]byte, MaxLarge+1)})
	eventually.True(t, "all is counted", func() bool { return a.count.SentBytes.Load() == bytesSent })
	try.Equal(t, a.count.Sent.Load(), uint64(2*len(sizes)), "sent")
	if n, size := b.count.Received.Load(), b.count.ReceivedBytes.Load(); n != uint64(len(sizes)) || size != bytesSent/2 {
		t.Errorf("received %d, %d bytes of %d", n, size, bytesSent/2)
	}
	b.none(t, a)

	// More datagrams than one system call sends.
	var out []Out
	for i := range 3 * writeBatch {
		out = append(out, Out{To: 2, Payload: []byte{byte(i)}})
	}
	a.Send(out...)
	for i := range out {
		if h := b.next(t); !bytes.Equal(h.p, []byte{byte(i)}) {
			t.Fatalf("%d came as %v", i, h.p)
		}
	}

	// A question from a socket of its own, answered there.
	done := make(chan struct{})
	go func() {
		defer close(done)
		h := b.next(t)
		if h.at == nil {
			t.Error("asked from the port itself")
		}
		b.Send(Out{To: 1, At: h.at, Payload: []byte("answer")})
	}()
	a.Ask(testTimeout, func() bool { return len(a.got) > 0 }, nothing, Out{To: 2, Payload: []byte("question")})
	if h := a.next(t); string(h.p) != "answer" || h.at != nil {
		t.Errorf("%q at %v", h.p, h.at)
	}
	<-done

	// Streams.
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	nc := try.Get(a.Dial(ctx, 2))(t)
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(testTimeout))
	try.Get(nc.Write([]byte("stream")))(t)
	echo := make([]byte, 6)
	if _, err := io.ReadFull(nc, echo); err != nil || string(echo) != "stream" {
		t.Fatalf("%q, %v", echo, err)
	}
	try.Fails(a.Dial(ctx, 99))(t, ErrUnknown)
	b.Part(3)
	f := b.count.Foreign.Load()
	c.Send(Out{To: 2, Payload: []byte("gone")})
	eventually.True(t, "one parted from is foreign", func() bool { return b.count.Foreign.Load() > f })
	b.Meet(3, c.Epoch(), c.Addr()) // in the same incarnation
	c.Send(Out{To: 2, Payload: []byte("back")})
	if h := b.next(t); string(h.p) != "back" {
		t.Errorf("%q", h.p)
	}
	b.Send(Out{To: 3, Payload: []byte("and back")})
	if h := c.next(t); string(h.p) != "and back" {
		t.Errorf("%q", h.p)
	}
}

// Many goroutines ask at once, while other ones send, and some answers are late. Every answer is
// received, though only one of the goroutines reads at a time.
func TestAskAtOnce(t *testing.T) {
	for _, spin := range []time.Duration{0, 100 * time.Microsecond} {
		var waiting sync.Map            // number → chan
		var heardA, heardB atomic.Int32 // datagrams of noise
		a := start(t, 1, func(c *Config) {
			c.Spin = spin
			c.Receive = func(_ resource.NodeID, _ *net.UDPAddr, p []byte) {
				if len(p) == 1 {
					heardA.Add(1)
					return
				}
				if ch, ok := waiting.Load(string(p)); ok {
					select {
					case ch.(chan struct{}) <- struct{}{}:
					default:
					}
				}
			}
		})
		var b *node
		var late sync.WaitGroup
		b = start(t, 2, func(c *Config) {
			c.Spin = spin
			c.Receive = func(from resource.NodeID, at *net.UDPAddr, p []byte) {
				if len(p) == 1 {
					heardB.Add(1)
					return
				}
				o := Out{To: from, At: at, Payload: bytes.Clone(p)}
				if p[len(p)-1]%8 == 0 {
					late.Add(1)
					time.AfterFunc(time.Millisecond, func() { defer late.Done(); b.Send(o) })
					return
				}
				b.Send(o)
			}
		})
		know(a, b)
		stop := make(chan struct{})
		var noise, asking sync.WaitGroup
		const mostNoise = 100 // datagrams under way: the kernel drops what a late reader's socket cannot hold
		noise.Go(func() {
			for sent := int32(0); ; {
				select {
				case <-stop:
					return
				default:
				}
				if sent < min(heardA.Load(), heardB.Load())+mostNoise {
					a.Send(Out{To: 2, Payload: []byte{1}})
					b.Send(Out{To: 1, Payload: []byte{1}})
					sent++
				}
				time.Sleep(20 * time.Microsecond) // or the noise leaves no room for the answers
			}
		})
		var lost atomic.Int32
		for g := range 16 {
			asking.Go(func() {
				for i := range 100 {
					name := fmt.Sprintf("%d %d", g, i)
					ch := make(chan struct{}, 1)
					waiting.Store(name, ch)
					a.Ask(50*time.Microsecond, func() bool { return len(ch) > 0 }, nothing, Out{To: 2, Payload: []byte(name)})
					select {
					case <-ch:
					case <-time.After(testTimeout / 2):
						lost.Add(1)
						return
					}
				}
			})
		}
		asking.Wait()
		close(stop)
		noise.Wait()
		late.Wait()
		if n := lost.Load(); n > 0 {
			t.Errorf("spin %v: %d answers were not heard", spin, n)
		}
	}
}

// A late answer is received, though another question was asked and answered since, and no goroutine
// asks any more.
func TestLateAnswer(t *testing.T) {
	for _, spin := range []time.Duration{0, time.Hour} { // the keeper parks, or reads on
		a, b := start(t, 1, func(c *Config) { c.Spin = spin }), start(t, 2, nil)
		know(a, b)
		b.Send(Out{To: 1, Payload: []byte("begin")})
		a.next(t)
		a.Ask(0, func() bool { return false }, nothing, Out{To: 2, Payload: []byte("late")})
		a.asking.Lock()
		a.askers[0].late = time.Now().Add(time.Hour) // lateTime may be over before b answers
		a.asking.Unlock()
		first := b.next(t)
		go func() {
			h := b.next(t)
			b.Send(Out{To: 1, At: h.at, Payload: []byte("soon")})
		}()
		a.Ask(testTimeout, func() bool { return len(a.got) > 0 }, nothing, Out{To: 2, Payload: []byte("soon")})
		if h := a.next(t); string(h.p) != "soon" {
			t.Fatalf("%q", h.p)
		}
		b.Send(Out{To: 1, At: first.at, Payload: []byte("late")})
		if h := a.next(t); string(h.p) != "late" {
			t.Fatalf("%q", h.p)
		}
	}
}

// A flood of foreign datagrams delays neither Ask nor Close.
func TestFlood(t *testing.T) {
	a, b := start(t, 1, func(c *Config) { c.Spin = time.Hour }), start(t, 2, nil)
	know(a, b)
	a.Ask(0, func() bool { return false }, nothing, Out{To: 2, Payload: []byte("where")})
	asks := b.next(t).at
	stop := make(chan struct{})
	var flood sync.WaitGroup
	for _, at := range []*net.UDPAddr{a.Addr(), asks} {
		c := try.Get(net.DialUDP("udp", nil, at))(t)
		flood.Go(func() {
			defer c.Close()
			for junk := make([]byte, 64); ; {
				select {
				case <-stop:
					return
				default:
					_, _ = c.Write(junk)
				}
			}
		})
	}
	eventually.True(t, "it comes", func() bool { return a.count.Foreign.Load() > 1000 })
	a.Ask(time.Millisecond, func() bool { return false }, nothing, Out{To: 2, Payload: []byte("never")})
	a.Close()
	close(stop)
	flood.Wait()
}

// While a key is replaced both keys open. Then the old one alone opens nothing.
//
// Promise (Keys): The cluster's key is changed under load without a failed question or a lost
// message. Afterwards the old key opens nothing. See also TestKeyRotation.
func TestRotation(t *testing.T) {
	old, both, fresh := [][]byte{[]byte("old")}, [][]byte{[]byte("old"), []byte("new")}, [][]byte{[]byte("new")}
	turned := [][]byte{fresh[0], old[0]}
	a, b := start(t, 1, keyed("old")), start(t, 2, keyed("old"))
	know(a, b)
	hears := func(what string) {
		t.Helper()
		for _, size := range []int{10, MaxPayload + 10} {
			p := bytes.Repeat([]byte("x"), size)
			a.Send(Out{To: 2, Payload: p})
			b.Send(Out{To: 1, Payload: p})
			if !bytes.Equal(a.next(t).p, p) || !bytes.Equal(b.next(t).p, p) {
				t.Fatal(what)
			}
		}
	}
	hears("old")
	for i, step := range []struct{ a, b [][]byte }{{both, old}, {both, both}, {turned, both}, {turned, turned}, {fresh, turned}, {fresh, fresh}} {
		a.SetKeys(step.a)
		b.SetKeys(step.b)
		hears(fmt.Sprint("step ", i))
	}
	b.SetKeys(old)
	f := b.count.Foreign.Load()
	a.Send(Out{To: 2, Payload: []byte("secret")}, Out{To: 2, Payload: make([]byte, MaxPayload+1)})
	eventually.True(t, "refused", func() bool { return b.count.Foreign.Load() == f+2 })
	f = a.count.Foreign.Load()
	b.Send(Out{To: 1, Payload: []byte("old alone")})
	eventually.True(t, "refused", func() bool { return a.count.Foreign.Load() == f+1 })
	b.SetKeys(fresh)
	hears("again")
	if len(a.got)+len(b.got) > 0 {
		t.Error("something was heard under the old key")
	}
}

// A member in a new incarnation is heard as soon as that incarnation is known. Datagrams of its old
// incarnation are not.
func TestNewLife(t *testing.T) {
	a, b := start(t, 1, nil), start(t, 2, nil)
	know(a, b)
	a.Send(Out{To: 2, Payload: []byte("one")})
	b.next(t)
	again := start(t, 2, nil)
	again.Meet(1, a.Epoch(), a.Addr())
	f := a.count.Foreign.Load()
	again.Send(Out{To: 1, Payload: []byte("too early")})
	eventually.True(t, "refused", func() bool { return a.count.Foreign.Load() == f+1 })
	a.Meet(2, again.Epoch(), again.Addr())
	again.Send(Out{To: 1, Payload: []byte("known")})
	if h := a.next(t); string(h.p) != "known" {
		t.Errorf("%q", h.p)
	}
	b.Send(Out{To: 1, Payload: []byte("from the grave")})
	eventually.True(t, "refused", func() bool { return a.count.Foreign.Load() == f+2 })
	a.Send(Out{To: 2, Payload: []byte("two")})
	if h := again.next(t); string(h.p) != "two" {
		t.Errorf("%q", h.p)
	}
	b.none(t, a.asIfKnownTo(b))
}

// asIfKnownTo returns n, which meets b again: no node knows b any more.
func (n *node) asIfKnownTo(b *node) *node {
	n.Meet(b.cfg.Self, b.Epoch(), b.Addr())
	return n
}

// global6 returns an IPv6 address of an interface that carries multicast, which the loopback
// interface does not by itself.
func global6() string {
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && i.Flags&net.FlagMulticast != 0 && i.Flags&net.FlagUp != 0 && n.IP.To4() == nil && !n.IP.IsLinkLocalUnicast() {
				return n.IP.String()
			}
		}
	}
	return "::1"
}

// Casts are received once by each port that knows the caster, as soon as it knows the caster's
// floor. The ports are on one machine, with a multicast group or a broadcast address.
func TestCast(t *testing.T) {
	for what, v := range map[string]struct{ bind, group string }{
		"multicast":                 {"127.0.0.1:0", "239.77.66.55:"},
		"multicast at another host": {"127.0.0.2:0", "239.77.66.55:"},
		"broadcast":                 {"127.0.0.1:0", "127.255.255.255:"},
		"multicast over IPv6":       {net.JoinHostPort(global6(), "0"), "[ff15::77:66]:"},
		"of one link":               {net.JoinHostPort(global6(), "0"), "[ff02::77:66]:"},
		"at every address":          {"0.0.0.0:0", "239.77.66.55:"},
	} {
		t.Run(what, func(t *testing.T) {
			free := try.Get(freeaddr.Port())(t)
			group := fmt.Sprint(v.group, free)
			var ns []*node
			for i := range resource.NodeID(3) {
				n, err := attempt(i+1, func(c *Config) { keyed("k")(c); c.Bind, c.Group = v.bind, group })
				if err != nil {
					t.Skipf("not here: %v", err)
				}
				t.Cleanup(func() { n.Close() })
				ns = append(ns, n)
			}
			a, b, c := ns[0], ns[1], ns[2]
			if a.group == nil {
				t.Fatal("there is a group")
			}
			isLoopback := v.bind[:4] == "127." // Linux carries groups and broadcasts there
			limit := 2 * time.Second
			if isLoopback {
				limit = eventually.Timeout
			}
			if !eventually.Within(limit, func() bool {
				a.Beacon()
				return len(b.beacons) > 0 && len(c.beacons) > 0
			}) {
				if isLoopback {
					t.Fatalf("no beacon comes by %s", group)
				}
				t.Skipf("this machine's network does not carry what goes to %s", group)
			}
			if h := <-b.beacons; h.from != 1 || h.at.Port != a.Addr().Port || v.bind[0] != '0' && !h.at.IP.Equal(a.Addr().IP) {
				t.Errorf("%d is at %v, and heard at %v", h.from, a.Addr(), h.at)
			}
			a.Cast([]byte("nobody knows me"))
			know(ns...)
			a.Cast(make([]byte, MaxPayload+1)) // too large: not sent
			floors := func(n *node) bool {
				p := n.peer(1)
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.castFrom > 0
			}
			said := 0
			eventually.True(t, "the floor is told", func() bool { said++; a.Cast(fmt.Append(nil, "again ", said)); return floors(b) && floors(c) })
			a.Cast([]byte("now"))
			for _, n := range []*node{b, c} {
				seen := map[string]bool{}
				for last := false; !last; {
					h := n.next(t)
					if last = string(h.p) == "now"; h.from != 1 || h.at != nil || !last && !bytes.HasPrefix(h.p, []byte("again ")) || seen[string(h.p)] {
						t.Fatalf("%q from %d at %v", h.p, h.from, h.at)
					}
					seen[string(h.p)] = true
				}
				n.none(t, a)
			}
			if len(a.got) > 0 {
				t.Errorf("it heard itself: %v", (<-a.got).p)
			}
		})
	}
	n := start(t, 9, nil)
	n.Cast([]byte("x"))
	n.Beacon()
	if n.group != nil || n.count.Sent.Load() != 0 {
		t.Error("there is no group")
	}
}

func TestBadConfig(t *testing.T) {
	before := descriptors(t)
	taken := start(t, 1, nil)
	for what, change := range map[string]func(*Config){
		"no port":         func(c *Config) { c.Bind = "127.0.0.1" },
		"no such host":    func(c *Config) { c.Bind = "198.51.100.1:1" },
		"taken":           func(c *Config) { c.Bind = taken.Addr().String() },
		"no such zone":    func(c *Config) { c.Bind = "[fe80::1%nowhere]:0" },
		"group":           func(c *Config) { c.Group = "239.1.1.1" },
		"other family":    func(c *Config) { c.Group = "[ff15::1]:7000" },
		"IPv6 broadcast":  func(c *Config) { c.Bind, c.Group = "[::1]:0", "[2001:db8::1]:7000" },
		"group's port is": func(c *Config) { c.Group = "239.1.1.1:99999" },
	} {
		if n, err := attempt(2, change); err == nil {
			n.Close()
			t.Errorf("%s: opened", what)
		}
	}
	taken.Close()
	if now := descriptors(t); !isWithin(now, before) {
		t.Errorf("descriptors %v, before %v", now, before)
	}
}

func nothing() {}

// drain empties a channel.
func drain[T any](c chan T) {
	for len(c) > 0 {
		<-c
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
