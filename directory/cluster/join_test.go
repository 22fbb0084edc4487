// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/resource"
	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers DNS questions for addresses over UDP.
type nameServer struct {
	at   net.PacketConn
	mu   sync.Mutex
	of   map[string][]string // addresses by name
	fail dnsmessage.RCode    // the answer for every name, if not 0
	mute bool
}

func names(t *testing.T) *nameServer {
	t.Helper()
	at, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{at: at, of: map[string][]string{}}
	var busy sync.WaitGroup
	busy.Go(s.serve)
	t.Cleanup(func() { at.Close(); busy.Wait() })
	return s
}

func (s *nameServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *nameServer) serve() {
	b := make([]byte, 2048)
	for {
		n, from, err := s.at.ReadFrom(b)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(b[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		q := m.Questions[0]
		name := strings.TrimSuffix(q.Name.String(), ".")
		s.mu.Lock()
		mute := s.mute
		answer := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true, RCode: s.fail}, Questions: m.Questions}
		if _, known := s.of[name]; !known && s.fail == 0 {
			answer.RCode = dnsmessage.RCodeNameError
		}
		for _, ip := range s.of[name] {
			a := netip.MustParseAddr(ip)
			switch {
			case s.fail != 0:
			case a.Is4() && q.Type == dnsmessage.TypeA:
				answer.Answers = append(answer.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AResource{A: a.As4()}})
			case a.Is6() && q.Type == dnsmessage.TypeAAAA:
				answer.Answers = append(answer.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
			}
		}
		s.mu.Unlock()
		out, err := answer.Pack()
		if err == nil && !mute {
			_, _ = s.at.WriteTo(out, from)
		}
	}
}

func (s *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", s.at.LocalAddr().String())
	}}
}

func (s *nameServer) use(c *Config) { c.Resolver = s.resolver() }

func addressesOf(c *Cluster, name string) (to []string, err error) {
	of, _, err := c.joiner.addresses(name)
	for _, a := range of {
		to = append(to, a.String())
	}
	slices.Sort(to)
	return to, err
}

// A name yields all its addresses, except the member's own, those that its datagrams cannot reach,
// and duplicates.
func TestAddresses(t *testing.T) {
	s := names(t)
	s.set(func() {
		s.of["several.rocl.test"] = []string{"127.0.0.2", "127.0.0.3", "127.0.0.2", "::1", "127.0.0.1"}
		s.of["six.rocl.test"] = []string{"::1"}
		s.of["self.rocl.test"] = []string{"127.0.0.1"}
	})
	c := member(t, 1, s.use)
	_, port, _ := net.SplitHostPort(c.Addr())
	for _, want := range []struct {
		name string
		to   []string // nil: an error
	}{
		{"several.rocl.test:" + port, []string{"127.0.0.2:" + port, "127.0.0.3:" + port}},
		{"several.rocl.test:7", []string{"127.0.0.1:7", "127.0.0.2:7", "127.0.0.3:7"}},
		{"six.rocl.test:7", []string{}}, {"self.rocl.test:" + port, []string{}}, {"127.0.0.4:7", []string{"127.0.0.4:7"}}, {"none.rocl.test:7", nil},
		{"several.rocl.test", nil}, {"several.rocl.test:x-y", nil}, {"several.rocl.test:99999", nil}, {"", nil}, {":", nil},
	} {
		got, err := addressesOf(c, want.name)
		if err == nil != (want.to != nil) || !slices.Equal(got, want.to) {
			t.Errorf("%q stands for %q, %v; want %q", want.name, got, err, want.to)
		}
	}
	s.set(func() { s.fail = dnsmessage.RCodeServerFailure })
	if got, err := addressesOf(c, "several.rocl.test:7"); err == nil {
		t.Errorf("of a name server that fails: %q", got)
	}
	s.set(func() { s.mute = true })
	if got, err := addressesOf(c, "several.rocl.test:7"); err == nil {
		t.Errorf("of a name server that is silent: %q", got)
	}
	c.joiner.resolve = func(context.Context, string) (many []netip.Addr, err error) {
		for i := range mostAddresses + 100 {
			many = append(many, netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}))
		}
		return many, nil
	}
	if got, _, err := c.joiner.addresses("many.rocl.test:7"); err != nil || len(got) != mostAddresses {
		t.Errorf("of a name with very many addresses %d are tried, %v", len(got), err)
	}
}

// at returns a member at the given address and port.
func at(t *testing.T, n resource.NodeID, bind string) *Cluster {
	t.Helper()
	return member(t, n, func(c *Config) { c.Bind = bind })
}

// Each address of a name is joined, whether or not the other ones have a member. A name that does
// not resolve yet is looked up again.
func TestJoinByName(t *testing.T) {
	s := names(t)
	a := at(t, 1, "127.0.0.2:0")
	_, port, _ := net.SplitHostPort(a.Addr())
	b := at(t, 2, "127.0.0.3:"+port) // the two do not know each other
	c := member(t, 3, func(c *Config) { s.use(c); c.Join = []string{"members.rocl.test:" + port} })
	eventually.True(t, "the name was asked for in vain", func() bool { return c.Stats().Unresolved > 0 })
	if n := len(c.Members()); n != 1 {
		t.Fatalf("%d members", n)
	}
	s.set(func() { s.of["members.rocl.test"] = []string{"127.0.0.9", "127.0.0.2", "127.0.0.3"} })
	together(t, a, b, c)
	if st := c.Stats(); st.Joins != 2 || st.Alive != 3 || st.Dead != 0 {
		t.Errorf("%+v", st)
	}
}

// Two pairs of members saw different answers of the name server at their start. When the name has
// all of them, they become one cluster. Then a daemon that has no address to join, and that was
// stopped in order, is started again: the others look for it.
func TestJoinListIsKept(t *testing.T) {
	s := names(t)
	a := at(t, 1, "127.0.0.2:0")
	_, port, _ := net.SplitHostPort(a.Addr())
	named := func(n resource.NodeID, host string) *Cluster {
		return member(t, n, func(c *Config) {
			s.use(c)
			c.Bind, c.Join = net.JoinHostPort(host, port), []string{"members.rocl.test:" + port}
		})
	}
	of := func(hosts ...string) { s.set(func() { s.of["members.rocl.test"] = hosts }) }
	of("127.0.0.2", "127.0.0.3")
	b := named(2, "127.0.0.3")
	together(t, a, b)
	of("127.0.0.4", "127.0.0.5")
	c, d := named(3, "127.0.0.4"), named(4, "127.0.0.5")
	together(t, c, d)
	of("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
	together(t, a, b, c, d)
	if err := a.Close(); err != nil {
		t.Log(err)
	}
	together(t, b, c, d)
	a = at(t, 1, "127.0.0.2:"+port)
	together(t, a, b, c, d)
}

// A member that says hello and does not join, because it has met the other one, is joined by that
// one.
func TestHelloIsFollowed(t *testing.T) { inMemory(t, testHelloIsFollowed) }

func testHelloIsFollowed(t *testing.T) {
	a, b := member(t, 1, nil), member(t, 2, nil)
	if _, err := a.mux.Hello(t.Context(), b.mux.Addr()); err != nil {
		t.Log(err) // the answer may be late
	}
	together(t, a, b)
}

// A name server that hangs delays neither the start of a member, nor its joining of other members,
// nor its end. A member that waited for it would not get there before the test ends.
//
// Promise (Clusters): Name servers that hang, and members that do not answer, do not keep a member
// from starting, joining or ending. See also TestJoinByName.
func TestNameServerHangs(t *testing.T) {
	ended := make(chan struct{})
	defer close(ended)
	hangs := func(context.Context, string, string) (net.Conn, error) {
		<-ended
		return nil, errors.New("the test has ended")
	}
	a := member(t, 1, nil)
	b := member(t, 2, func(c *Config) {
		c.Resolver = &net.Resolver{PreferGo: true, Dial: hangs}
		c.Join, c.lookup = []string{"members.rocl.test:7946", a.Addr()}, time.Hour
	})
	together(t, a, b)
	eventually.True(t, "one is looked at, which hangs", func() bool { return b.Stats().LookedAt == 1 })
	if err := b.Close(); err != nil {
		t.Log(err) // on a busy machine the other members may not hear the goodbye in time
	}
	if n := b.Stats().Unresolved; n != 1 {
		t.Errorf("%d lookups have ended, want the one that Close has cut off", n)
	}
}

// A peer that accepts a connection and is silent does not delay the end of a member either.
func TestJoinSilent(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	life, end := context.WithCancel(t.Context())
	plain := func(ctx context.Context, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}
	w := within{dial: plain, life: life}
	nc, err := w.DialAddressTimeout(memberlist.Address{Addr: ln.Addr().String()}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := nc.Read(make([]byte, 1))
		read <- err
	}()
	end()
	select {
	case err := <-read:
		if !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	case <-time.After(eventually.Timeout):
		t.Error("the stream has outlived its member")
	}
	nc.Close()
	if nc, err := w.DialTimeout(ln.Addr().String(), time.Hour); err == nil {
		nc.Close()
		t.Error("dialled when the member had ended")
	}
}

// A member logs that it does not reach an address to join. A member logs that it hears another
// cluster. Nothing else shows a wrong key or name.
//
// Promise (Clusters): A member that reaches no address to join, or hears another cluster, logs
// that.
func TestNotReached(t *testing.T) {
	var ours, theirs lines
	logTo := func(l *lines, name string) func(*Config) {
		return func(c *Config) { c.Name, c.Logger = name, slog.New(slog.NewTextHandler(l, nil)) }
	}
	a := member(t, 1, logTo(&theirs, "one"))
	b := member(t, 2, func(c *Config) {
		logTo(&ours, "another")(c)
		c.Join = []string{a.Addr(), "nobody.invalid:1"}
	})
	eventually.True(t, "the other cluster's member says so", func() bool { return strings.Contains(theirs.String(), "of another cluster") })
	eventually.True(t, "both are wanted", func() bool {
		b.joiner.mu.Lock()
		defer b.joiner.mu.Unlock()
		for _, w := range b.joiner.wanting {
			if w.warn == sayAgain {
				w.since = time.Now().Add(-sayAgain)
			}
		}
		return len(b.joiner.wanting) == 2
	})
	for _, addr := range b.cfg.Join {
		eventually.True(t, "it is said", func() bool { return strings.Contains(ours.String(), "not reached yet\" addr="+addr) })
	}
	if n := strings.Count(ours.String(), "not reached yet"); n != 2 {
		t.Errorf("said %d times: %s", n, &ours)
	}
}
