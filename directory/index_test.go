// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/directory/internal/index"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/sharedmem"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// mapped lets c ask until c has the index of its server.
func mapped(t *testing.T, c *Client) {
	t.Helper()
	sharedmem.NeedMemfd(t)
	eventually.True(t, "an index", func() bool {
		if _, err := c.Find(t.Context(), list(t, resource.Match{"no": "such"})); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrPartial) {
			t.Fatal(err)
		}
		return c.Stats().HasIndex
	})
}

// inPlace checks that f asks the server nothing and reads the index.
func inPlace(t *testing.T, s *Server, c *Client, f func()) {
	t.Helper()
	questions := func() (n uint64) {
		for _, q := range s.Stats().Questions {
			n += q.Found + q.None + q.Partial + q.Failed
		}
		return n
	}
	before, heard := c.Stats(), questions()
	f()
	if after := c.Stats(); after.Asked != before.Asked || questions() != heard || after.Mapped == before.Mapped {
		t.Errorf("asked %d times, from the index %d times; the server heard %d", after.Asked-before.Asked, after.Mapped-before.Mapped, questions()-heard)
	}
}

// register registers a resource of c and returns its identifier.
func register(t *testing.T, c *Client, serial uint32, a resource.Attributes) resource.GID {
	t.Helper()
	id := c.Self().WithSerial(serial)
	try.Get(c.Register(t.Context(), id, list(t, a)))(t)
	return id
}

// Answers from the index equal those over the socket, and need no question to the server.
func TestMapped(t *testing.T) {
	path, s, owner := begun(t)
	asker := joined(t, path)
	ids := map[resource.GID]bool{}
	for i := range uint32(100) {
		ids[register(t, owner, i+1, resource.Attrs{"type": "lamp", "n": fmt.Sprint(i), "room": fmt.Sprint(i % 4)})] = true
	}
	mapped(t, asker)
	bySocket := joined(t, path, WithoutClientIndex())
	inPlace(t, s, asker, func() {
		for i := range uint32(100) {
			a, err := asker.Find(t.Context(), list(t, resource.Match{"type": "lamp", "n": fmt.Sprint(i)}))
			if err != nil || a.ID != owner.Self().WithSerial(i+1) || a.Owner != owner.Self() || a.Revision != 1 || a.Attrs.GetString("room") != fmt.Sprint(i%4) {
				t.Fatal(a, err)
			}
			a, err = asker.Find(t.Context(), list(t, resource.Match{"n": fmt.Sprint(i)}, "room", "none"))
			if err != nil || a.Attrs.String() != fmt.Sprintf("{n=%d, room=%d, none=?}", i, i%4) {
				t.Fatal(&a.Attrs, err)
			}
		}
		for id := range ids {
			a, err := asker.Lookup(t.Context(), id, "n")
			if err != nil || a.ID != id || a.Attrs.GetString("n") != fmt.Sprint(id.Serial()-1) {
				t.Fatal(a, err)
			}
		}
		for _, p := range []*resource.List{list(t, resource.Match{"type": "lamp", "room": "5"}), list(t, resource.Match{"type": "chair"})} {
			try.Fails(asker.Find(t.Context(), p))(t, ErrNotFound)
		}
		for _, id := range []resource.GID{owner.Self().WithSerial(101), resource.MakeGID(s.Node()^1, 1, 1)} {
			try.Fails(asker.Lookup(t.Context(), id))(t, ErrNotFound)
		}
		some := map[resource.GID]bool{}
		for range 1000 {
			a, err := asker.Find(t.Context(), list(t, resource.Match{"type": "lamp"}))
			if err != nil || !ids[a.ID] {
				t.Fatal(a, err)
			}
			some[a.ID] = true
		}
		try.Equal(t, len(some), 100, "found of 100 that match")
	})
	for _, p := range []*resource.List{
		list(t, resource.Match{"n": "7"}), list(t, resource.Match{"n": "7"}, "room", "none"), list(t, resource.Match{AttrKind: "node"}),
		list(t, resource.Match{AttrKind: "node"}, AttrOS), list(t, resource.Match{"n": "no"}),
	} {
		a, e1 := asker.Find(t.Context(), p)
		b, e2 := bySocket.Find(t.Context(), p)
		if a.ID != b.ID || !a.Attrs.Equal(&b.Attrs) || a.Revision != b.Revision || !errors.Is(e1, e2) {
			t.Errorf("%v: %v %v in place, %v %v over the socket", p, a, e1, b, e2)
		}
	}
	if n := bySocket.Stats(); n.Mapped != 0 || n.HasIndex {
		t.Errorf("without indexes: %+v", n)
	}
}

// A change is in the index as soon as the client that made it, or a client that hears of it, asks.
//
// Promise (Index): What a directory has confirmed or told in a watch is in the index too. See also
// TestMappedDeath.
func TestMappedSeesWhatWasDone(t *testing.T) {
	path, s, owner := begun(t)
	asker := joined(t, path)
	mapped(t, asker)
	mapped(t, owner)
	all := list(t, resource.Match{"type": "lamp"})
	inPlace(t, s, owner, func() {
		inPlace(t, s, asker, func() {
			for i := range uint32(300) {
				id := register(t, owner, i+1, resource.Attrs{"type": "lamp", "n": "1"})
				for _, c := range []*Client{owner, asker} {
					if a, err := c.Find(t.Context(), all); err != nil || a.ID != id || a.Revision != 1 {
						t.Fatal(a, err)
					}
				}
				try.Get(owner.Update(t.Context(), id, 1, list(t, resource.Attrs{"type": "lamp", "n": "2"})))(t)
				for _, c := range []*Client{owner, asker} {
					if a, err := c.Lookup(t.Context(), id); err != nil || a.Revision != 2 || a.Attrs.GetString("n") != "2" {
						t.Fatal(a, err)
					}
					try.Fails(c.Find(t.Context(), list(t, resource.Match{"type": "lamp", "n": "1"})))(t, ErrNotFound)
				}
				try.OK(t, owner.Delete(t.Context(), id))
				for _, c := range []*Client{owner, asker} {
					try.Fails(c.Find(t.Context(), all))(t, ErrNotFound)
				}
			}
		})
	})
}

// When a watch reports that a context's resources are gone, the index no longer has them.
func TestMappedDeath(t *testing.T) {
	path, _, asker := begun(t)
	mapped(t, asker)
	for range 20 {
		owner := try.Get(Join(t.Context(), DialSocket(path)))(t)
		id := register(t, owner, 1, resource.Attrs{"type": "mortal"})
		found(t, id)(asker.Find(t.Context(), list(t, resource.Match{"type": "mortal"})))
		for ev, err := range asker.Watch(t.Context(), list(t, resource.Match{"type": "mortal"})) {
			try.OK(t, err)
			if ev.Kind == Synced {
				owner.Close()
			}
			if ev.Kind == Gone {
				break
			}
		}
		try.Fails(asker.Find(t.Context(), list(t, resource.Match{"type": "mortal"})))(t, ErrNotFound)
		try.Fails(asker.Lookup(t.Context(), id))(t, ErrNotFound)
	}
}

// The next server has an index of its own, and clients do not use the index of the last one.
func TestMappedAcrossServers(t *testing.T) {
	path, s, owner := begun(t)
	asker := joined(t, path)
	id := register(t, owner, 1, resource.Attrs{"n": "0"})
	for round := range 4 {
		mapped(t, asker)
		if a, err := asker.Lookup(t.Context(), id); err != nil || a.Attrs.GetString("n") != fmt.Sprint(round) {
			t.Fatal(a, err)
		}
		r := asker.index.Load()
		s.Close()
		if _, v := r.Lookup(id, nil); v != index.Ended {
			t.Errorf("the index of a server that has ended says %v", v)
		}
		s = serve(t, path)
		// What the new server reports is in its index at once.
		try.Get(owner.Update(t.Context(), id, 0, list(t, resource.Attrs{"n": fmt.Sprint(round + 1)})))(t)
		found(t, id)(asker.Find(t.Context(), list(t, resource.Match{"n": fmt.Sprint(round + 1)})))
	}
}

// In a cluster a client asks the server for what the index lacks, also if the index was made before
// the node joined. A node alone needs no question.
//
// Promise (Index): Nothing is denied because the index does not have it, in a cluster or after a
// takeover. See also TestMappedAfterRecovery.
func TestMappedInCluster(t *testing.T) {
	path, s, c := begun(t)
	here := register(t, c, 1, resource.Attrs{"type": "here"})
	mapped(t, c)
	far := resource.MakeGID(s.Node()^1, 1, 1)
	inPlace(t, s, c, func() {
		try.Fails(c.Lookup(t.Context(), far))(t, ErrNotFound)
	})
	s.Attach(holding(resource.Record{ID: far, Owner: far.Context(), Revision: 1, Attrs: *list(t, resource.Attrs{"type": "far"})}, nil))
	inPlace(t, s, c, func() {
		found(t, here)(c.Find(t.Context(), list(t, resource.Match{"type": "here"})))
		try.Fails(c.Lookup(t.Context(), here.WithSerial(2)))(t, ErrNotFound)
	})
	found(t, far)(c.Find(t.Context(), list(t, resource.Match{"type": "far"})))
	found(t, far)(c.Lookup(t.Context(), far))
	d := joined(t, path) // a client that joins later is told the same
	mapped(t, d)
	found(t, far)(d.Find(t.Context(), list(t, resource.Match{"type": "far"})))
}

// No client gets the index before the server has recovered, because its "no" would not be certain.
func TestMappedAfterRecovery(t *testing.T) {
	path := sock(t)
	serve(t, path).Close()
	s := serve(t, path)
	var done atomic.Bool
	s.awaits = func() bool { return !done.Load() }
	c := joined(t, path)
	s.markOpen() // anew: on a busy machine the second offer would come after the recovery otherwise
	ids := offerLater(t, s, c, &done)
	mapped(t, c)
	if !s.Recovered() {
		t.Error("there is an index before the server has recovered")
	}
	for _, id := range ids {
		try.Get(c.Lookup(t.Context(), id))(t)
	}
}

// An index that cannot go on is replaced. Until then clients ask the server.
func TestMappedAnew(t *testing.T) {
	_, s, c := begun(t)
	id := register(t, c, 1, resource.Attrs{"type": "lamp"})
	for range 3 {
		mapped(t, c)
		r := c.index.Load()
		s.Database().DropIndex()
		found(t, id)(c.Lookup(t.Context(), id))
		if c.index.Load() == r {
			t.Fatal("an index that has ended is kept")
		}
	}
}

// Without an index everything works, and both sides log it once.
//
// Promise (Index): An index that is full or missing costs only speed, and is logged once. See also
// TestIndexFails.
func TestWithoutIndex(t *testing.T) {
	posix.Need(t, "Unix socket, over which a client asks for the index")
	path := sock(t)
	var log logged.Log
	logger := log.Logger()
	serve(t, path, WithoutIndex())
	c := joined(t, path, WithClientLogger(logger))
	id := register(t, c, 1, resource.Attrs{"type": "lamp"})
	for range 5 * indexAfter {
		found(t, id)(c.Find(t.Context(), list(t, resource.Match{"type": "lamp"})))
	}
	eventually.True(t, "that it is said", func() bool { return log.Count("over the socket") > 0 })
	if n := log.Count("over the socket"); n != 1 || c.Stats().HasIndex || c.Stats().Mapped != 0 {
		t.Errorf("said %d times; %+v", n, c.Stats())
	}
}

// A context that has not joined gets no index, and neither does a connection that is not over the
// Unix socket.
//
// Promise (Index): Only a process that has joined at the Unix socket gets the index. See also
// TestOtherUserRefused.
func TestIndexDenied(t *testing.T) {
	path, s, c := begun(t)
	ask := func(dial Dialer, self resource.GID, token []byte) (m wire.Message, fd int, err error) {
		k := raw(t, dial, wire.KindIndex)
		defer k.Close()
		k.Begin(wire.MsgIndex, 0)
		k.GID(self)
		k.Append(token)
		try.OK(t, k.Send())
		if uc, ok := k.Conn.(*net.UnixConn); ok {
			return wire.ReceiveDescriptor(uc)
		}
		m, err = k.ReadMessage()
		if err == nil && m.Type == wire.MsgError {
			err = wire.ParseError(m.Body)
		}
		return m, -1, err
	}
	sharedmem.NeedMemfd(t)
	if _, fd, err := ask(DialSocket(path), c.self, c.token[:]); err != nil || fd < 0 {
		t.Fatal(fd, err)
	} else {
		memfd.Close(fd)
	}
	never := resource.MakeGID(s.Node(), 0xffffff, 0)
	token := s.id.Token(never)
	for _, q := range []struct {
		dial  Dialer
		self  resource.GID
		token []byte
	}{
		{DialSocket(path), c.self, make([]byte, 32)}, {DialSocket(path), never, token[:]}, {s.Dialer(), c.self, c.token[:]},
		{DialSocket(path), c.self, c.token[:31]}, {DialSocket(path), c.self, append(c.token[:], 0)},
	} {
		if m, fd, err := ask(q.dial, q.self, q.token); err == nil || fd >= 0 {
			t.Errorf("%v was given %d %v", q.self, fd, m)
		}
	}
}

// Clients that join, ask and close while servers change find what they have registered, and leave
// nothing behind.
func TestMappedChurn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	path := sock(t)
	ctx := t.Context()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	var wg sync.WaitGroup
	for n := range 6 {
		wg.Go(func() {
			for range 4 {
				c, err := JoinNode(ctx, path, log, nil)
				if err != nil {
					t.Error(err)
					return
				}
				id := c.Self().WithSerial(1)
				mine := resource.Attrs{"who": fmt.Sprint(c.Self())}
				try.Works(c.Register(ctx, id, list(t, mine)))(t)
				for range 40 * (n + 1) {
					a, err := c.Find(ctx, list(t, mine))
					if err != nil || a.ID != id {
						t.Errorf("%v does not find what it has registered: %v %v", c.Self(), a, err)
						break
					}
				}
				try.Check(t, c.Close())
			}
		})
	}
	wg.Wait()
}
