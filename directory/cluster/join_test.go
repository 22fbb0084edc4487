// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A nameServer has the addresses of names.
type nameServer struct {
	mu sync.Mutex
	of map[string][]string
}

func (s *nameServer) set(name string, of ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string][]string{}
	}
	s.of[name] = of
}

// use makes c ask s. A name "hangs" has no answer in time.
func (s *nameServer) use(c *Config) {
	c.resolve = func(ctx context.Context, host string) (of []netip.Addr, err error) {
		if host == "hangs" {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if ip, err := netip.ParseAddr(host); err == nil {
			return []netip.Addr{ip}, nil
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, ip := range s.of[host] {
			of = append(of, netip.MustParseAddr(ip))
		}
		if of == nil {
			err = errors.New("no such name")
		}
		return of, err
	}
}

func addressesOf(c *Cluster, name string) (to []string, err error) {
	of, _, err := c.joiner.addresses(name)
	for _, a := range of {
		to = append(to, a.String())
	}
	slices.Sort(to)
	return to, err
}

// A name yields all its addresses, except the member's own, those that its datagrams cannot reach,
// and duplicates. A name server that hangs is an error.
func TestAddresses(t *testing.T) { inMemory(t, testAddresses) }

func testAddresses(t *testing.T) {
	var s nameServer
	s.set("several", "10.0.0.2", "10.0.0.3", "10.0.0.2", "::1", "10.0.0.1")
	s.set("six", "::1")
	s.set("self", "10.0.0.1")
	var many []string
	for i := range mostAddresses + 100 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i>>8, i&255))
	}
	s.set("many", many...)
	c := member(t, 1, s.use) // at 10.0.0.1:7946
	for _, want := range []struct {
		name string
		to   []string // nil: an error
	}{
		{"several:7946", []string{"10.0.0.2:7946", "10.0.0.3:7946"}},
		{"several:7", []string{"10.0.0.1:7", "10.0.0.2:7", "10.0.0.3:7"}},
		{"six:7", []string{}}, {"self:7946", []string{}}, {"10.0.0.4:7", []string{"10.0.0.4:7"}}, {"none:7", nil}, {"hangs:7", nil},
		{"several", nil}, {"several:x-y", nil}, {"several:99999", nil}, {"", nil}, {":", nil},
	} {
		got, err := addressesOf(c, want.name)
		if err == nil != (want.to != nil) || !slices.Equal(got, want.to) {
			t.Errorf("%q stands for %q, %v; want %q", want.name, got, err, want.to)
		}
	}
	if got, err := addressesOf(c, "many:7"); err != nil || len(got) != mostAddresses {
		t.Errorf("of a name with very many addresses %d are tried, %v", len(got), err)
	}
}

// Each address of a name is joined, whether or not the other ones have a member. A name that does
// not resolve yet is looked up again.
func TestJoinByName(t *testing.T) { inMemory(t, testJoinByName) }

func testJoinByName(t *testing.T) {
	var s nameServer
	a, b := member(t, 1, nil), member(t, 2, nil) // the two do not know each other
	c := member(t, 3, func(c *Config) { s.use(c); c.Join = []string{"members:7946"} })
	eventually.True(t, "the name was asked for in vain", func() bool { return c.Stats().Unresolved > 0 })
	if n := len(c.Members()); n != 1 {
		t.Fatalf("%d members", n)
	}
	s.set("members", "10.0.0.99", hostOf(a), hostOf(b))
	together(t, a, b, c)
	if st := c.Stats(); st.Joins != 2 || st.Alive != 3 || st.Dead != 0 {
		t.Errorf("%+v", st)
	}
}

func hostOf(c *Cluster) string { return c.mux.Addr().IP.String() }

// Two pairs of members saw different answers of the name server at their start. When the name has
// all of them, they become one cluster. Then a daemon that has no address to join, and that was
// stopped in order, is started again: the others look for it.
func TestJoinListIsKept(t *testing.T) { inMemory(t, testJoinListIsKept) }

func testJoinListIsKept(t *testing.T) {
	var s nameServer
	named := func(c *Config) { s.use(c); c.Join = []string{"members:7946"} }
	a := member(t, 1, nil)
	s.set("members", hostOf(a))
	b := member(t, 2, named)
	together(t, a, b)
	s.set("members", "10.0.0.3", "10.0.0.4") // those of the next two
	c, d := member(t, 3, named), member(t, 4, named)
	together(t, c, d)
	s.set("members", hostOf(a), hostOf(b), hostOf(c), hostOf(d))
	together(t, a, b, c, d)
	at := a.Addr()
	a.Close()
	together(t, b, c, d)
	a = member(t, 1, func(c *Config) { c.Bind = at })
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
// nor its end.
//
// Name servers that hang, and members that do not answer, do not keep a member
// from starting, joining or ending. See also TestCloseEndsExchange.
func TestNameServerHangs(t *testing.T) { inMemory(t, testNameServerHangs) }

func testNameServerHangs(t *testing.T) {
	var s nameServer
	a := member(t, 1, nil)
	b := member(t, 2, func(c *Config) { s.use(c); c.Join, c.lookup = []string{"hangs:7946", a.Addr()}, time.Hour })
	together(t, a, b)
	eventually.True(t, "one is looked at, which hangs", func() bool { return b.Stats().LookedAt == 1 })
	closed := time.Now()
	b.Close()
	if took, n := time.Since(closed), b.Stats().Unresolved; took > time.Minute || n != 1 { // of virtual time
		t.Errorf("closed in %v; %d lookups have ended, want the one that Close has cut off", took, n)
	}
}

// A member logs that it does not reach an address to join. A member logs that it hears another
// cluster. Nothing else shows a wrong key or name.
//
// Promise (Clusters): A member that reaches no address to join, or hears another cluster, logs
// that.
func TestNotReached(t *testing.T) { inMemory(t, testNotReached) }

func testNotReached(t *testing.T) {
	var ours, theirs logged.Log
	logTo := func(l *logged.Log, name string) func(*Config) {
		return func(c *Config) { c.Name, c.Logger = name, l.Logger() }
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
	try.Equal(t, strings.Count(ours.String(), "not reached yet"), 2, "lines: %s", &ours)
}
