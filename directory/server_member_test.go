// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// inCluster makes a server a member of the cluster "blue", as far as this package can see.
func inCluster() Option {
	return WithMembership(func(s *Server, _ bool) (func(bool), error) {
		s.SetTerms(Terms{Keys: [][]byte{make([]byte, 32)}, Member: true, Cluster: "blue"})
		return func(bool) {}, nil
	})
}

// ask looks for a resource that no server has.
func ask(t *testing.T, s *Server) error {
	t.Helper()
	c := try.Get(Join(context.Background(), s.Dialer()))(t)
	defer c.Close()
	_, err := c.Find(context.Background(), list(t, resource.Match{"no": "such"}))
	_, lookup := c.Lookup(context.Background(), resource.MakeGID(s.Node()^1, 1, 1))
	if errors.Is(err, ErrPartial) != errors.Is(lookup, ErrPartial) || errors.Is(err, ErrNotFound) != errors.Is(lookup, ErrNotFound) {
		t.Errorf("find: %v; lookup: %v", err, lookup)
	}
	return err
}

// A node belongs to its cluster until a server takes leave of the cluster, or until a daemon
// without the settings of a member serves the node. Other changes of its server do not matter.
func TestNodeBelongsToCluster(t *testing.T) {
	path := sock(t)
	serve := func(opts ...Option) *Server { return serve(t, path, opts...) }
	// handOver ends a daemon while a context lives.
	handOver := func(opts ...Option) {
		t.Helper()
		s := serve(append(opts, AsDaemon())...)
		c := try.Get(Join(context.Background(), s.Dialer()))(t)
		defer c.Close()
		try.OK(t, s.Close())
	}
	uncertain := func(s *Server) {
		t.Helper()
		if err := ask(t, s); !errors.Is(err, ErrPartial) || !strings.Contains(err.Error(), `"blue"`) {
			t.Errorf("in a cluster: %v, want ErrPartial with its name", err)
		}
		s.Close()
	}
	certain := func(s *Server) {
		t.Helper()
		try.Fails(ask(t, s))(t, ErrNotFound, "in no cluster")
		s.Close()
	}
	mark := func() bool {
		_, err := os.Lstat(path + memberSuffix)
		return err == nil
	}

	certain(serve())
	handOver(inCluster())
	uncertain(serve())
	uncertain(serve()) // and with the next server
	handOver(inCluster())
	uncertain(serve())
	certain(serve(AsDaemon())) // the operator has ended the membership
	certain(serve())

	handOver(inCluster())
	serve(inCluster()).Close() // no context goes on, so the server takes leave
	if mark() {
		t.Error("the node has left and is still marked")
	}
	certain(serve())

	handOver(inCluster())
	try.OK(t, os.Remove(path+nodeSuffix))
	certain(serve()) // another node

	other := sock(t)
	try.OK(t, os.WriteFile(other, []byte("mine"), 0o600))
	os.Remove(path + memberSuffix)
	try.OK(t, os.Symlink(other, path+memberSuffix))
	handOver(inCluster())
	certain(serve(AsDaemon())) // the file is neither replaced nor removed, and it is no mark
	if b, err := os.ReadFile(other); string(b) != "mine" {
		t.Errorf("what a symbolic link leads to is %q, %v", b, err)
	}
	os.Remove(path + memberSuffix)
	handOver(inCluster())
	uncertain(serve())
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".rocl-*")); len(left) > 0 || err != nil {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// A watch on such a node reports the node's own resources, and Synced after a while.
func TestUnreachableWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := database.New()
		w := db.Watch(new(resource.List))
		defer w.Close()
		end := Unreachable(errors.New("why")).Watch(new(resource.List), w)
		begun := time.Now()
		ev, err := w.Next(t.Context())
		if err != nil || ev.Kind != Synced || time.Since(begun) != unreachableTime {
			t.Fatalf("%v, %v after %v", ev, err, time.Since(begun))
		}
		end()
		w2 := db.Watch(new(resource.List))
		defer w2.Close()
		Unreachable(errors.New("why")).Watch(new(resource.List), w2)() // ended at once, so w2 waits for nothing
		try.Equal(t, try.Get(w2.Next(t.Context()))(t).Kind, Synced)
	})
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
	eventually.True(t, what, func() bool { return s.has(lates, ends) })
}

// A membership begins and ends with its server. It is handed over where another server goes on in
// its place, and the terms of the contexts remain those of the cluster.
func TestMembership(t *testing.T) {
	yields(t)
	path := sock(t)
	var s stay
	open := func(opts ...ClientOption) *Client {
		t.Helper()
		c := joinedNode(t, path, []Option{s.option()}, opts...)
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
	try.Fails(b.Delete(t.Context(), b.Self().WithSerial(9)))(t, ErrNotFound)
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
		s := try.Get(Listen(sock(t), st.option()))(t)
		c := try.Get(Join(t.Context(), s.Dialer(), AsMember()))(t)
		if other {
			joinedBy(t, s.Dialer(), AsMember())
		}
		try.OK(t, s.closeOf(c.Self()))
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
	try.Fails(Listen(path, s.option()))(t, broken)
	joinedNode(t, path, nil)
	// A process that only joins is not affected.
	other := try.Get(JoinNode(t.Context(), path, log, []Option{s.option()}, AsMember()))(t)
	other.Close()
}

// A question that waits for the cluster while its server ends goes to the next server. The caller
// sees no error.
func TestRemoteEnds(t *testing.T) {
	path := sock(t)
	asked := make(chan struct{}, 2)
	a := joinedNode(t, path, []Option{withRemote(silent(asked))})
	b := joinedNode(t, path, nil)
	got := make(chan error, 1)
	go func() {
		_, err := b.Find(context.Background(), list(t, resource.Match{"a": "b"}))
		got <- err
	}()
	<-asked
	a.Close()
	try.Fails(<-got)(t, ErrNotFound)
}

// The member file has the addresses of other members soon after they have changed, however seldom
// the server looks at its files.
func TestMetIsWritten(t *testing.T) {
	path := sock(t)
	var mu sync.Mutex
	met := map[resource.NodeID]string{}
	var changed func()
	s := serve(t, path, looking(never), WithMembership(func(s *Server, _ bool) (func(bool), error) {
		s.SetTerms(Terms{Member: true, Cluster: "blue"})
		changed = s.KeepMet(func() map[resource.NodeID]string {
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(met)
		})
		return func(bool) {}, nil
	}))
	for i, addr := range []string{"10.0.0.7:7946", "10.0.0.8:7946"} {
		mu.Lock()
		met[resource.NodeID(i+1)] = addr
		mu.Unlock()
		changed()
		eventually.True(t, "it is written", func() bool {
			b, err := os.ReadFile(path + memberSuffix)
			return err == nil && strings.Contains(string(b), addr)
		})
	}
	s.Close()
}
