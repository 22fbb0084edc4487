// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// Terms arrive unchanged, whatever else is in their list.
func TestTermsTravel(t *testing.T) {
	for _, want := range []Terms{
		{Keys: [][]byte{{1}}},
		{Keys: [][]byte{{1, 2, 3}, {}, {4}}, Member: true, Cluster: "blue", Host: "10.0.0.7", Sealed: true},
		{Keys: [][]byte{make([]byte, 32)}, Member: true},
		{Keys: [][]byte{{9}}, Host: "fd00::7"},
		{Keys: [][]byte{{9}}, Member: true, Sealed: true, Certificates: true},
	} {
		l := want.list()
		if err := l.AddString("of a later version", "x"); err != nil {
			t.Fatal(err)
		}
		got, err := parseTerms(&l)
		if err != nil || !got.equal(&want) {
			t.Errorf("%+v came as %+v: %v", want, got, err)
		}
	}
	if _, err := parseTerms(new(resource.List)); !errors.Is(err, ErrProtocol) {
		t.Errorf("terms without a key: %v", err)
	}
}

// Contexts are told new terms at once and in order, also between other answers. A context that
// stops reading delays no other one.
func TestTermsChange(t *testing.T) {
	path := sock(t)
	s := serve(t, path)
	own := s.id.LinkKey()
	heard := make(chan Terms, 1000)
	c, err := Join(t.Context(), DialSocket(path), WithTerms(func(t Terms) { heard <- t }))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := <-heard; len(got.Keys) != 1 || string(got.Keys[0]) != string(own[:]) || got.Member || got.Host != "" || got.Sealed {
		t.Errorf("terms of a node in no cluster: %+v", got)
	}
	deaf, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	k := wire.NewConn(deaf)
	if _, err := deaf.Write(wire.Greeting(wire.KindLife)); err != nil {
		t.Fatal(err)
	}
	k.Begin(wire.MsgJoin, 0)
	k.Append(make([]byte, 48))
	k.Append(new(resource.List).Wire())
	if err := k.Send(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 200 {
			if _, err := c.Register(t.Context(), c.Self().WithSerial(uint32(i+1)), list(t, resource.Attrs{"i": fmt.Sprint(i)})); err != nil {
				t.Error(err)
			}
		}
	})
	const last = 2000
	for i := 1; i <= last; i++ {
		var key [32]byte
		binary.BigEndian.PutUint32(key[:], uint32(i))
		s.SetLinkKeys(key, own)
	}
	wg.Wait()
	before := uint32(0)
	for before < last {
		k := (<-heard).Keys
		if len(k) != 2 || string(k[1]) != string(own[:]) {
			t.Fatalf("keys %x", k)
		}
		n := binary.BigEndian.Uint32(k[0])
		if n <= before {
			t.Fatalf("key %d after %d", n, before)
		}
		before = n
	}
	if got := c.Terms().Keys[0]; binary.BigEndian.Uint32(got) != last {
		t.Errorf("the client has key %x", got)
	}
	// Terms that have not changed are not told again.
	s.SetTerms(c.Terms())
	s.SetTerms(Terms{Keys: [][]byte{{1}}, Member: true, Cluster: "x", Host: "10.0.0.7", Sealed: true})
	if got := <-heard; got.Cluster != "x" || got.Host != "10.0.0.7" || !got.Sealed || !got.Member {
		t.Errorf("terms %+v", got)
	}
	// A context that joins later has the terms from the beginning.
	if late := joined(t, path).Terms(); late.Cluster != "x" || len(late.Keys) != 1 {
		t.Errorf("terms %+v", late)
	}
}

// stay records the memberships of servers.
type stay struct {
	mu    sync.Mutex
	lates []bool
	ends  []bool
	fail  error
}

func (s *stay) option() Option {
	return WithMembership(func(srv *Server, late bool) (func(bool), error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.fail != nil {
			return nil, s.fail
		}
		s.lates = append(s.lates, late)
		srv.SetTerms(Terms{Keys: [][]byte{{1}}, Member: true, Cluster: "stay"})
		return func(handOver bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.ends = append(s.ends, handOver)
		}, nil
	})
}

func (s *stay) has(lates, ends []bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Equal(s.lates, lates) && slices.Equal(s.ends, ends)
}

func (s *stay) expect(t *testing.T, what string, lates, ends []bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !s.has(lates, ends); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: %v begun, %v ended", what, s.lates, s.ends)
		}
	}
}

// A membership begins and ends with its server. It is handed over where another server goes on in
// its place, and the terms of the contexts remain those of the cluster.
func TestMembership(t *testing.T) {
	path, log := sock(t), slog.New(slog.DiscardHandler)
	var s stay
	open := func(opts ...ClientOption) *Client {
		t.Helper()
		c, err := JoinNode(t.Context(), path, log, []Option{s.option()}, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if m := c.Terms(); !m.Member || m.Cluster != "stay" {
			t.Errorf("terms %+v", m)
		}
		return c
	}
	a := open(AsMember())
	b := open(AsMember())
	s.expect(t, "one serves", []bool{false}, nil)
	a.Close()
	s.expect(t, "the other takes over", []bool{false, true}, []bool{true})
	d := serve(t, path, AsDaemon(), s.option())
	s.expect(t, "a daemon takes over", []bool{false, true, false}, []bool{true, true})
	// The answer proves that b has joined again.
	if err := b.Delete(t.Context(), b.Self().WithSerial(9)); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	d.Close() // b serves in its place
	s.expect(t, "the context takes over again", []bool{false, true, false, true}, []bool{true, true, true})
	b.Close()
	s.expect(t, "the last one leaves", []bool{false, true, false, true}, []bool{true, true, true, false})

	// Contexts that would not be members do not keep the node in the cluster.
	s = stay{}
	a, _ = open(AsMember()), joined(t, path)
	a.Close()
	s.expect(t, "nobody goes on", []bool{false}, []bool{false})
}

// The context that serves ends with its server, so it does not keep the membership, even if the
// server has not read its leave. Another context keeps it.
func TestMembershipOfOne(t *testing.T) {
	for _, other := range []bool{false, true} {
		var st stay
		s, err := Listen(sock(t), st.option())
		if err != nil {
			t.Fatal(err)
		}
		c, err := Join(t.Context(), s.Dialer(), AsMember())
		if err != nil {
			t.Fatal(err)
		}
		if other {
			c, err := Join(t.Context(), s.Dialer(), AsMember())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		if err := s.closeOf(c.Self()); err != nil {
			t.Error(err)
		}
		st.expect(t, "it ends", []bool{false}, []bool{other})
		c.Close()
	}
}

// An error that makes a membership impossible is returned to the process that serves first, and
// leaves the node free.
func TestMembershipFails(t *testing.T) {
	path, log := sock(t), slog.New(slog.DiscardHandler)
	broken := errors.New("broken")
	s := stay{fail: broken}
	if c, err := JoinNode(t.Context(), path, log, []Option{s.option()}); !errors.Is(err, broken) || c != nil {
		t.Fatalf("joined: %v", err)
	}
	if _, err := Listen(path, s.option()); !errors.Is(err, broken) {
		t.Fatalf("served: %v", err)
	}
	c, err := JoinNode(t.Context(), path, log, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// A process that only joins is not affected.
	other, err := JoinNode(t.Context(), path, log, []Option{s.option()}, AsMember())
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
}

// A question that waits for the cluster while its server ends goes to the next server. The caller
// sees no error.
func TestRemoteEnds(t *testing.T) {
	path, log := sock(t), slog.New(slog.DiscardHandler)
	r := &hanging{asked: make(chan struct{}, 2)}
	with := []Option{WithMembership(func(s *Server, _ bool) (func(bool), error) {
		s.Attach(r)
		return func(bool) {}, nil
	})}
	a, err := JoinNode(t.Context(), path, log, with)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := JoinNode(t.Context(), path, log, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	got := make(chan error, 1)
	go func() {
		_, err := b.Find(context.Background(), list(t, resource.Match{"a": "b"}))
		got <- err
	}()
	<-r.asked
	a.Close()
	if err := <-got; !errors.Is(err, ErrNotFound) {
		t.Errorf("answered %v", err)
	}
}

// hanging is a Remote that does not answer.
type hanging struct {
	Remote
	asked chan struct{}
}

func (h *hanging) Addr() string { return "" }

func (h *hanging) Find(ctx context.Context, _ *resource.List) (r resource.Record, err error) {
	h.asked <- struct{}{}
	<-ctx.Done()
	return r, context.Cause(ctx)
}
