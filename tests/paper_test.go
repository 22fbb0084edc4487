// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/buffers"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

// The tests of this file show what the paper on RoCL describes, as far as one node can.

// pass sends p from one resource to another and returns what arrives.
func pass(t testing.TB, from, to *lib.Resource, tag uint64, p []byte) *lib.Message {
	t.Helper()
	ctx := eventually.Context(t)
	if err := from.SendBytes(ctx, to.ID(), tag, p); err != nil {
		t.Fatal(err)
	}
	m, err := to.Recv(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if m.From() != from.ID() || m.Tag() != tag || !bytes.Equal(m.Bytes(), p) {
		t.Fatalf("sent %d bytes with tag %d from %v, got %d, %d, %v", len(p), tag, from.ID(), m.Len(), m.Tag(), m.From())
	}
	return m
}

// openAt opens a context at a directory of the test's own, so that the test can look into the
// directory.
func openAt(t testing.TB, dial directory.Dialer, opts ...lib.Option) *lib.Context {
	t.Helper()
	c, err := lib.Open(eventually.Context(t), append([]lib.Option{icontext.WithDirectory(dial)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func server(t testing.TB) *directory.Server {
	s := directory.NewServer()
	t.Cleanup(func() { s.Close() })
	return s
}

func TestPaperContexts(t *testing.T) {
	t.Run("two contexts of one process are independent and talk", func(t *testing.T) {
		cl := rocltest.Cluster(t, 1)
		a, b := cl.Open(0), cl.Open(0)
		if a.ID().IsZero() || b.ID().IsZero() || a.ID() == b.ID() {
			t.Fatalf("identifiers %v and %v", a.ID(), b.ID())
		}
		ra, rb := register(t, a, lib.Attrs{}), register(t, b, lib.Attrs{})
		pass(t, ra, rb, 1, []byte("there")).Release()
		pass(t, rb, ra, 2, []byte("and back")).Release()
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		pass(t, rb, register(t, b, lib.Attrs{}), 3, nil).Release() // b does not need a
	})

	t.Run("nothing is left after Close", func(t *testing.T) {
		ctx := eventually.Context(t)
		s := server(t)
		watcher := openAt(t, s.Dialer())
		if _, err := watcher.Find(ctx, lib.Match{"a": "b"}); !errors.Is(err, lib.ErrNotFound) {
			t.Fatal(err)
		}
		descriptors := func() int {
			d, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			return len(d)
		}
		goroutines, fds := goleak.IgnoreCurrent(), descriptors()
		var closing []*lib.Context
		for range 2 {
			closing = append(closing, openAt(t, s.Dialer(), lib.WithTransports(inproc.NewNetwork().Transport(), tcp.New())))
		}
		r0, r1 := register(t, closing[0], lib.Attrs{"a": "b"}), register(t, closing[1], lib.Attrs{"a": "b"})
		pass(t, r0, r1, 0, make([]byte, 100_000)).Release()
		if descriptors() <= fds {
			t.Fatal("open contexts have no descriptors: the test looks in the wrong place")
		}
		blocked := make(chan error, 1)
		go func() {
			_, err := r0.Recv(context.Background())
			blocked <- err
		}()
		for _, c := range closing {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if n := c.Stats().Buffers; n.Mapped != 0 || n.InUse != 0 {
				t.Errorf("memory is left: %+v", n)
			}
		}
		if err := <-blocked; !errors.Is(err, lib.ErrClosed) {
			t.Errorf("the blocked receive: %v", err)
		}
		eventually.True(t, "the directory knows only the watcher", func() bool {
			_, err := watcher.Find(ctx, lib.Match{"a": "b"})
			return errors.Is(err, lib.ErrNotFound) && s.Stats().Contexts == 1
		})
		for _, c := range closing {
			if f, err := watcher.Lookup(ctx, c.ID()); !errors.Is(err, lib.ErrNotFound) {
				t.Errorf("a closed context is known: %v, %v", f, err)
			}
		}
		if err := goleak.Find(goroutines); err != nil {
			t.Error(err)
		}
		eventually.True(t, "all descriptors are closed", func() bool { return descriptors() <= fds })
	})

	t.Run("several ports and transports in one context", func(t *testing.T) {
		cl := rocltest.Cluster(t, 1)
		n := inproc.NewNetwork()
		b := cl.Open(0, lib.WithTransports(n.Transport(), tcp.New()))
		near, far := cl.Open(0, lib.WithTransports(n.Transport())), cl.Open(0, rocltest.TCP())
		if a := b.Addrs(); len(a) != 2 || !strings.HasPrefix(a[0], "inproc://") || !strings.HasPrefix(a[1], "tcp://") {
			t.Fatalf("addresses %q", a)
		}
		r := register(t, b, lib.Attrs{})
		rn, rf := register(t, near, lib.Attrs{}), register(t, far, lib.Attrs{})
		for i := range uint64(10) {
			pass(t, rn, r, i, []byte("near")).Release()
			pass(t, rf, r, i, []byte("far")).Release()
		}
		pass(t, rf, r, 10, nil).Release()
		if s := b.Stats().Received; s["inproc"] != 10 || s["tcp"] != 11 || len(s) != 2 {
			t.Errorf("received %v, want 10 over inproc and 11 over tcp", s)
		}
		if s := b.Stats().ReceivedBytes; s != 10*4+10*3 {
			t.Errorf("received %d bytes", s)
		}
	})

	t.Run("several networks at once, each with a role", func(t *testing.T) {
		cl := rocltest.Cluster(t, 1)
		both := lib.WithTransports(shm.New(), tcp.New())
		a, b := cl.Open(0, both), cl.Open(0, both)
		from := register(t, a, lib.Attrs{})
		for role, over := range map[string]string{"control": "tcp", "data": "shm"} {
			to, err := b.Register(context.Background(), lib.Attrs{"role": role}, lib.Over(over))
			if err != nil {
				t.Fatal(err)
			}
			for i := range uint64(10) {
				pass(t, from, to, i, []byte(role)).Release()
			}
		}
		if s := b.Stats().Received; s["tcp"] != 10 || s["shm"] != 10 || len(s) != 2 {
			t.Errorf("received %v, want 10 over each transport", s)
		}
	})

	t.Run("messages wait for whoever receives later", func(t *testing.T) {
		ctx := eventually.Context(t)
		cl := rocltest.Cluster(t, 1)
		b, far := cl.Open(0, rocltest.TCP()), cl.Open(0, rocltest.TCP())
		r := register(t, b, lib.Attrs{})
		s := []*lib.Resource{register(t, far, lib.Attrs{}), register(t, far, lib.Attrs{}), register(t, b, lib.Attrs{})}
		const n = 50
		for i := range uint64(n) {
			for _, s := range s {
				if err := s.SendBytes(ctx, r.ID(), i, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
		eventually.True(t, "all messages are kept", func() bool { have, _ := r.Waiting(); return have == n*len(s) })
		next := map[lib.GID]uint64{}
		for range n * len(s) {
			m, err := r.TryRecv()
			if err != nil {
				t.Fatal(err)
			}
			if m.Tag() != next[m.From()] {
				t.Fatalf("message %d from %v, want %d", m.Tag(), m.From(), next[m.From()])
			}
			next[m.From()]++
			m.Release()
		}
	})

	t.Run("contexts are system resources and own others", func(t *testing.T) {
		ctx := eventually.Context(t)
		cl := rocltest.Cluster(t, 1)
		a := cl.Open(0)
		b := cl.Open(0, lib.WithTransports(inproc.NewNetwork().Transport(), tcp.New()))
		f, err := a.Lookup(ctx, b.ID())
		if err != nil {
			t.Fatal(err)
		}
		var addrs []string
		for v := range f.Attrs.Values(icontext.AttrAddr) {
			addrs = append(addrs, string(v))
		}
		if !slices.Equal(addrs, b.Addrs()) || len(addrs) != 2 {
			t.Errorf("registered addresses %q, the ports' are %q", addrs, b.Addrs())
		}
		n := 0
		for _, err := range a.FindAll(ctx, lib.Match{icontext.AttrKind: "context"}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != 2 {
			t.Errorf("%d contexts, want 2", n)
		}
		r := register(t, b, lib.Attrs{"type": "server"})
		for f, err := range a.FindAll(ctx, lib.Match{}) {
			if err != nil || f.ID != r.ID() {
				t.Errorf("a user's question finds %v, %v", f.ID, err)
			}
		}
		f, err = a.Find(ctx, lib.Match{"type": "server"}, lib.Want(icontext.AttrContext))
		if err != nil || f.Attrs.GetString(icontext.AttrContext) != b.ID().String() || f.Context != b.ID() {
			t.Errorf("the owner is %v, found %v, %v", b.ID(), f, err)
		}
	})

	// TestScale has more resources.
	t.Run("many resources share a port", func(t *testing.T) {
		ctx := eventually.Context(t)
		cl := rocltest.Cluster(t, 1)
		a, b := cl.Open(0, rocltest.TCP()), cl.Open(0, rocltest.TCP())
		me := register(t, a, lib.Attrs{})
		before := len(tcpConns(t))
		rs := make([]*lib.Resource, 3000)
		for i := range rs {
			rs[i] = register(t, b, lib.Attrs{})
			if err := me.SendBytes(ctx, rs[i].ID(), uint64(i), nil); err != nil {
				t.Fatal(err)
			}
		}
		for i, r := range rs {
			m, err := r.Recv(ctx)
			if err != nil || m.Tag() != uint64(i) {
				t.Fatalf("resource %d got %v, %v", i, m, err)
			}
			m.Release()
			if _, err := r.TryRecv(); !errors.Is(err, lib.ErrEmpty) {
				t.Fatalf("resource %d got more: %v", i, err)
			}
		}
		if n := len(tcpConns(t)) - before; n != 2 { // both ends are in this process
			t.Errorf("%d ends of connections, want the 2 of one", n)
		}
	})
}

func TestPaperResources(t *testing.T) {
	t.Run("any attributes read back identically", func(t *testing.T) {
		ctx := eventually.Context(t)
		c := rocltest.Cluster(t, 1).Open(0)
		roundTrip := func(t rapid.TB, l *lib.List) {
			r, err := c.Register(ctx, l)
			if err != nil {
				t.Fatal(err)
			}
			f, err := c.Lookup(ctx, r.ID())
			if err != nil || !f.Attrs.Equal(l) {
				t.Fatalf("registered %v, read %v, %v", l, &f.Attrs, err)
			}
			if f, err = c.Find(ctx, l); err != nil || f.ID != r.ID() {
				t.Fatalf("found %v, %v by all attributes of %v", f.ID, err, r.ID())
			}
			if err := r.Delete(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for _, v := range [][]byte{nil, {0}, []byte("a\x00b"), {0xff, 0xfe}, bytes.Repeat([]byte("M"), 1<<20)} {
			var l lib.List
			if err := l.Add("value", v); err != nil {
				t.Fatal(err)
			}
			roundTrip(t, &l)
		}
		rapid.Check(t, func(t *rapid.T) {
			var l lib.List
			for range rapid.IntRange(1, 20).Draw(t, "attributes") {
				name := rapid.StringN(1, 50, 500).Filter(func(s string) bool { return !strings.HasPrefix(s, "rocl.") }).Draw(t, "name")
				if err := l.Add(name, rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "value")); err != nil {
					t.Fatalf("%q: %v", name, err)
				}
			}
			roundTrip(t, &l)
		})
	})

	t.Run("identifiers are unique, also across processes", func(t *testing.T) {
		sock := socket(t)
		c := open(t, sock)
		seen := map[string]bool{}
		for range 1000 {
			seen[register(t, c, lib.Attrs{}).ID().String()] = true
		}
		const processes = 4
		var ps []*child
		for range processes {
			ps = append(ps, peer(t, "mint", sock, "x"))
		}
		for _, p := range ps {
			for range mints {
				seen[strings.Fields(p.until(t, "minted"))[1]] = true
			}
		}
		if len(seen) != 1000+processes*mints {
			t.Errorf("%d different identifiers of %d", len(seen), 1000+processes*mints)
		}
	})

	t.Run("an incomplete list is not registered", func(t *testing.T) {
		ctx := eventually.Context(t)
		c := rocltest.Cluster(t, 1).Open(0)
		var l lib.List
		if err := errors.Join(l.AddString("type", "x"), l.Want("port")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Register(ctx, &l); !errors.Is(err, directory.ErrIncomplete) {
			t.Errorf("registered with an absent value: %v", err)
		}
		if f, err := c.Find(ctx, lib.Match{"type": "x"}); !errors.Is(err, lib.ErrNotFound) {
			t.Errorf("an entry is left: %v, %v", f, err)
		}
	})

	t.Run("what is deleted is gone, through warm caches too", func(t *testing.T) {
		ctx := eventually.Context(t)
		for name, opts := range map[string][]lib.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
			cl := rocltest.Cluster(t, 1)
			reports := make(chan lib.Undelivered, 100)
			a := cl.Open(0, append(opts, lib.WithUndelivered(func(u lib.Undelivered) { reports <- u }))...)
			b := cl.Open(0, opts...)
			me, r := register(t, a, lib.Attrs{}), register(t, b, lib.Attrs{"type": "x"})
			pass(t, me, r, 0, nil).Release()
			if err := r.Delete(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := a.Find(ctx, lib.Match{"type": "x"}); !errors.Is(err, lib.ErrNotFound) {
				t.Errorf("%s: find: %v", name, err)
			}
			if _, err := a.Lookup(ctx, r.ID()); !errors.Is(err, lib.ErrNotFound) {
				t.Errorf("%s: look-up: %v", name, err)
			}
			// Over a link with a delay the first message may be accepted. Then it is reported.
			err := me.SendBytes(ctx, r.ID(), 1, nil)
			if err == nil {
				select {
				case u := <-reports:
					if u.Tag != 1 || u.To != r.ID() || !errors.Is(u.Err, lib.ErrGone) {
						t.Errorf("%s: told %+v", name, u)
					}
				case <-ctx.Done():
					t.Fatalf("%s: the first message was accepted and not reported", name)
				}
				err = me.SendBytes(ctx, r.ID(), 2, nil)
			}
			if !errors.Is(err, lib.ErrGone) {
				t.Errorf("%s: send: %v", name, err)
			}
			pass(t, me, register(t, b, lib.Attrs{}), 3, nil).Release() // the link is as good as before
		}
	})

	t.Run("wanted values are filled in, lacking ones stay absent", func(t *testing.T) {
		ctx := eventually.Context(t)
		c := rocltest.Cluster(t, 1).Open(0)
		r := register(t, c, lib.Attrs{"name": "x", "port": "80", "empty": ""})
		byID, err := c.Lookup(ctx, r.ID(), "port", "empty", "lacking")
		if err != nil {
			t.Fatal(err)
		}
		byName, err := c.Find(ctx, lib.Match{"name": "x"}, lib.Want("port", "empty", "lacking"))
		if err != nil {
			t.Fatal(err)
		}
		for how, f := range map[string]lib.Found{"by id": byID, "by name": byName} {
			if f.ID != r.ID() || f.Attrs.GetString("port") != "80" {
				t.Errorf("%s: %v %v", how, f.ID, &f.Attrs)
			}
			if v, ok := f.Attrs.Get("empty"); !ok || len(v) != 0 {
				t.Errorf("%s: the empty value is %q, %v", how, v, ok)
			}
			if v, ok := f.Attrs.Get("lacking"); ok {
				t.Errorf("%s: the lacking value is %q", how, v)
			}
			if w := slices.Collect(f.Attrs.Wanted()); !slices.Equal(w, []string{"lacking"}) {
				t.Errorf("%s: absent are %q", how, w)
			}
		}
	})

	t.Run("two resources may be alike", func(t *testing.T) {
		ctx := eventually.Context(t)
		c := rocltest.Cluster(t, 1).Open(0)
		a, b := register(t, c, lib.Attrs{"twin": "yes"}), register(t, c, lib.Attrs{"twin": "yes"})
		if a.ID() == b.ID() {
			t.Fatal("one identifier for both")
		}
		if f, err := c.Find(ctx, lib.Match{"twin": "yes"}); err != nil || f.ID != a.ID() && f.ID != b.ID() {
			t.Errorf("found %v, %v", f.ID, err)
		}
		if got := collect(t, c.FindAll(ctx, lib.Match{"twin": "yes"})); len(got) != 2 || got[a.ID()] != 1 || got[b.ID()] != 1 {
			t.Errorf("found %v", got)
		}
	})

	t.Run("attribute lists", func(t *testing.T) {
		var l lib.List
		for i := range 100 {
			if err := l.AddString(fmt.Sprint("n", i), fmt.Sprint("v", i)); err != nil {
				t.Fatal(err)
			}
		}
		w := l.Wire()
		v, ok := l.Get("n42")
		if !ok || string(v) != "v42" {
			t.Fatalf("%q, %v", v, ok)
		}
		if i := bytes.Index(w, []byte("n42v42")); &w[i+3] != &v[0] {
			t.Error("Get does not return a view of the list")
		}
		for i := l.Len(); i < resource.MaxAttrs; i++ {
			if err := l.Add("x", nil); err != nil {
				t.Fatal(err)
			}
		}
		before := bytes.Clone(l.Wire())
		if err := l.Add("one too many", nil); err == nil {
			t.Error("a list takes any number of attributes")
		}
		if err := l.Add("x", make([]byte, resource.MaxValue+1)); err == nil {
			t.Error("a list takes a value of any length")
		}
		if !bytes.Equal(before, l.Wire()) {
			t.Error("what was refused changed the list")
		}
		// The attributes that a question asks for are filled in within the question's own list.
		var q, r lib.List
		err := errors.Join(q.AddString("name", "x"), q.Want("port"), q.Add("pad", make([]byte, 200)), r.AddString("port", "80"))
		if err != nil {
			t.Fatal(err)
		}
		where := &q.Wire()[0]
		q.Fill(&r)
		if q.GetString("port") != "80" || !q.Complete() {
			t.Errorf("filled in: %v", &q)
		}
		if where != &q.Wire()[0] {
			t.Log("filling in moved the list") // it had no room
		}
	})

	t.Run("a question costs few allocations", func(t *testing.T) {
		ctx := context.Background()
		c := rocltest.Cluster(t, 1).Open(0)
		register(t, c, lib.Attrs{"name": "x", "big": strings.Repeat("b", 100_000)})
		var q lib.List
		if err := errors.Join(q.AddString("name", "x"), q.Want("port")); err != nil {
			t.Fatal(err)
		}
		n := testing.AllocsPerRun(1000, func() {
			if _, err := c.Find(ctx, &q); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("%v allocations a question", n)
		if n > 30 {
			t.Errorf("%v allocations a question", n)
		}
	})

	t.Run("a message names the resource that sent it", func(t *testing.T) {
		cl := rocltest.Cluster(t, 1)
		a, b := cl.Open(0), cl.Open(0)
		r := register(t, b, lib.Attrs{})
		one, two := register(t, a, lib.Attrs{}), register(t, a, lib.Attrs{})
		pass(t, one, r, 0, nil).Release() // pass compares From
		m := pass(t, two, r, 0, nil)
		if m.From() == one.ID() || m.From() == a.ID() || m.From().Context() != a.ID() {
			t.Errorf("from %v", m.From())
		}
		pass(t, r, two, 1, nil).Release()
		m.Release()
	})
}

// collect counts the resources that a question finds.
func collect(t testing.TB, all iter.Seq2[lib.Found, error]) map[lib.GID]int {
	t.Helper()
	got := map[lib.GID]int{}
	for f, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		got[f.ID]++
	}
	return got
}

func TestPaperDirectory(t *testing.T) {
	t.Run("who serves anew gives out other identifiers", func(t *testing.T) {
		ctx := eventually.Context(t)
		sock := socket(t)
		seen := map[lib.GID]bool{}
		for range 3 { // all contexts leave, and the next round begins
			first := open(t, sock)
			keeper := open(t, sock)
			r := register(t, keeper, lib.Attrs{"who": "keeper"})
			if err := first.Close(); err != nil { // keeper takes over
				t.Fatal(err)
			}
			late := open(t, sock)
			for _, id := range []lib.GID{first.ID(), keeper.ID(), late.ID()} {
				if seen[id] {
					t.Errorf("%v is given again", id)
				}
				seen[id] = true
			}
			var f lib.Found
			eventually.True(t, "the old identifier is found", func() (ok bool) {
				var err error
				f, err = late.Find(ctx, lib.Match{"who": "keeper"})
				return err == nil
			})
			if f.ID != r.ID() {
				t.Errorf("found %v, it was %v", f.ID, r.ID())
			}
			pass(t, register(t, late, lib.Attrs{}), r, 0, nil).Release()
			if err := register(t, late, lib.Attrs{}).SendBytes(ctx, first.ID().WithSerial(7), 0, nil); !errors.Is(err, lib.ErrGone) {
				t.Errorf("a send to an identifier of before: %v", err)
			}
			if err := errors.Join(late.Close(), keeper.Close()); err != nil {
				t.Fatal(err)
			}
		}
	})

	// That it takes no longer is shown in directory/internal/database, by TestCandidates.
	t.Run("a question among many", func(t *testing.T) {
		ctx := eventually.Context(t)
		c := rocltest.Cluster(t, 1).Open(0)
		all := make([]*lib.Resource, 50_000)
		for i := range all {
			all[i] = register(t, c, lib.Attrs{"i": strconv.Itoa(i), "kind": "many"})
		}
		for range 1000 {
			i := rand.IntN(len(all))
			if f, err := c.Find(ctx, lib.Match{"i": strconv.Itoa(i)}); err != nil || f.ID != all[i].ID() {
				t.Fatalf("resource %d: %v, %v", i, f.ID, err)
			}
		}
	})

	t.Run("a question with many answers", func(t *testing.T) {
		ctx := eventually.Context(t)
		s := server(t)
		c := openAt(t, s.Dialer())
		want := map[lib.GID]int{}
		for range 1000 {
			want[register(t, c, lib.Attrs{"k": "v"}).ID()] = 1
			register(t, c, lib.Attrs{"k": "other"})
		}
		got := collect(t, c.FindAll(ctx, lib.Match{"k": "v"}))
		for id := range want {
			if got[id] != 1 {
				t.Fatalf("%v was found %d times", id, got[id])
			}
		}
		if len(got) != len(want) {
			t.Errorf("%d were found, %d are there", len(got), len(want))
		}
		before := s.Stats().Connections
		for range 100 { // stopping early leaves nothing at the server
			n := 0
			for range c.FindAll(ctx, lib.Match{"k": "v"}) {
				if n++; n == 3 {
					break
				}
			}
		}
		if n := s.Stats().Connections; n > before+1 {
			t.Errorf("%d connections, %d before", n, before)
		}
	})

	t.Run("answers come one at a time", func(t *testing.T) {
		ctx := eventually.Context(t)
		s := server(t)
		var got atomic.Int64
		dial := s.Dialer()
		c := openAt(t, func(ctx context.Context) (net.Conn, error) {
			nc, err := dial(ctx)
			return &countingConn{nc, &got}, err
		})
		for range 10_000 {
			register(t, c, lib.Attrs{"k": "v"})
		}
		before := got.Load()
		for range c.FindAll(ctx, lib.Match{"k": "v"}) {
			break
		}
		if n := got.Load() - before; n > 8<<10 || n == 0 { // answers come in batches, and the first one is small
			t.Errorf("the first of 10000 answers moved %d bytes", n)
		}
	})

	t.Run("iterators know nothing of each other", func(t *testing.T) {
		ctx := eventually.Context(t)
		s := server(t)
		c, dies := openAt(t, s.Dialer()), openAt(t, s.Dialer())
		for i := range 300 {
			register(t, c, lib.Attrs{"k": fmt.Sprint(i % 3)})
		}
		before := s.Stats().Connections
		next := make([]func() (lib.Found, error, bool), 3)
		for i := range next {
			var stop func()
			next[i], stop = iter.Pull2(c.FindAll(ctx, lib.Match{"k": fmt.Sprint(i)}))
			defer stop()
		}
		other, stop := iter.Pull2(dies.FindAll(ctx, lib.Match{}))
		defer stop()
		seen := map[lib.GID]bool{}
		for round := range 100 {
			for i, next := range next {
				f, err, ok := next()
				if err != nil || !ok || f.Attrs.GetString("k") != fmt.Sprint(i) || seen[f.ID] {
					t.Fatalf("iterator %d, round %d: %v, %v, %v", i, round, f, err, ok)
				}
				seen[f.ID] = true
			}
			if round < 5 {
				if _, err, ok := other(); err != nil || !ok {
					t.Fatal(err, ok)
				}
			}
			if round == 5 { // its client goes away in the middle
				if err := dies.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, next := range next {
			if f, err, ok := next(); ok {
				t.Errorf("iterator %d: one more: %v, %v", i, f, err)
			}
		}
		eventually.True(t, "the state of the client that left is gone", func() bool {
			st := s.Stats()
			return st.Contexts == 1 && st.Connections <= before+len(next)
		})
	})

	t.Run("everything comes and goes", func(t *testing.T) {
		rounds := 200
		if testing.Short() {
			rounds = 30
		}
		ctx := eventually.Context(t)
		cl := rocltest.Cluster(t, 1)
		asker := cl.Open(0)
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				c := cl.Open(0)
				for i := range rounds {
					what := lib.Attrs{"churn": fmt.Sprint(w, "-", i)}
					r, err := c.Register(ctx, what)
					if err != nil {
						t.Error(err)
						return
					}
					if f, err := asker.Find(ctx, what); err != nil || f.ID != r.ID() {
						t.Errorf("found %v, %v; want %v", f.ID, err, r.ID())
					}
					if i%10 == 9 { // with all its context
						err = c.Close()
						c = cl.Open(0)
						// The directory learns of the deletion from the end of the connection.
						for ctx.Err() == nil {
							if _, err := asker.Find(ctx, what); errors.Is(err, lib.ErrNotFound) {
								break
							}
						}
					} else {
						err = r.Delete(ctx)
					}
					if err != nil {
						t.Error(err)
					}
					if f, err := asker.Find(ctx, what); !errors.Is(err, lib.ErrNotFound) {
						t.Errorf("what is gone is found: %v, %v", f.ID, err)
					}
				}
			})
		}
		wg.Wait()
		if got := collect(t, asker.FindAll(ctx, lib.Match{})); len(got) != 0 {
			t.Errorf("left behind: %v", got)
		}
	})
}

// countingConn counts the bytes read.
type countingConn struct {
	net.Conn
	read *atomic.Int64
}

func (c *countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

func TestPaperBuffers(t *testing.T) {
	t.Run("buffers come from a pool", func(t *testing.T) {
		cl := rocltest.Cluster(t, 1)
		c := cl.Open(0)
		one := func() {
			for _, n := range []int{0, 1, 100, 5000, 300_000} {
				b, err := c.Buffer(n)
				if err != nil || b.Len() != n {
					t.Fatal(b, err)
				}
				b.Release()
			}
		}
		one()
		mapped := c.Stats().Buffers.Mapped
		if n := testing.AllocsPerRun(1000, one); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if s := c.Stats().Buffers; s.Mapped != mapped || s.InUse != 0 {
			t.Errorf("steady use maps memory: %+v, before %d", s, mapped)
		}
		small := cl.Open(0, lib.WithMemory(1<<20))
		var all []*lib.Buffer
		var err error
		for range 1000 {
			var b *lib.Buffer
			if b, err = small.Buffer(64 << 10); err != nil {
				break
			}
			all = append(all, b)
		}
		if !errors.Is(err, lib.ErrLimit) || len(all) == 0 || len(all) > 16 {
			t.Errorf("%d buffers of 64 KiB out of 1 MiB, then %v", len(all), err)
		}
		for _, b := range all {
			b.Release()
		}
		if b, err := small.Buffer(64 << 10); err != nil {
			t.Error(err)
		} else {
			b.Release()
		}
	})

	t.Run("a double release is noticed and harms no other buffer", func(t *testing.T) {
		c := rocltest.Cluster(t, 1).Open(0)
		b, err := c.Buffer(64)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		noticed := func() (yes bool) {
			defer func() { yes = recover() != nil || c.Stats().Buffers.DoubleReleases == 1 }() // the debug build panics
			b.Release()
			return
		}()
		if !noticed {
			t.Error("the second release went unnoticed")
		}
		seen := map[*byte]bool{}
		for range 1000 {
			b, err := c.Buffer(64)
			if err != nil {
				t.Fatal(err)
			}
			if seen[&b.Bytes()[0]] {
				t.Fatal("one piece of memory has two owners")
			}
			seen[&b.Bytes()[0]] = true
			defer b.Release()
		}
	})

	t.Run("a buffer comes back once the library is done with it", func(t *testing.T) {
		ctx := eventually.Context(t)
		cl := rocltest.Cluster(t, 1)
		for name, opts := range map[string][]lib.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
			a, b := cl.Open(0, opts...), cl.Open(0, opts...)
			me, r := register(t, a, lib.Attrs{}), register(t, b, lib.Attrs{})
			fresh := func() *lib.Buffer {
				b, err := a.Buffer(100_000)
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			p := fresh()
			if err := me.Send(ctx, r.ID(), 0, p.Retain()); err != nil {
				t.Fatal(err)
			}
			m, err := r.Recv(ctx)
			if err != nil {
				t.Fatal(err)
			}
			m.Release()
			eventually.True(t, name+": the library is done", p.Done)
			if p.Refs() != 1 {
				t.Errorf("%s: %d references, ours is one", name, p.Refs())
			}
			p.Release()
			p = fresh()
			if err := me.Send(ctx, b.ID().WithSerial(999), 0, p); err != nil {
				p.Release()
			} else if name == "inproc" {
				t.Errorf("a send to an unregistered identifier was accepted")
			}
			p = fresh()
			if err := me.Send(ctx, lib.GID{}, 0, p); err != nil {
				p.Release()
			} else {
				t.Errorf("%s: a send to no identifier was accepted", name)
			}
			eventually.True(t, name+": all buffers are back", func() bool { return a.Close() == nil && a.Stats().Buffers.InUse == 0 })
			if n := a.Stats().Buffers.DoubleReleases; n != 0 {
				t.Errorf("%s: %d came back twice", name, n)
			}
		}
	})

	t.Run("the state of a buffer; senders need not wait for a stalled wire", func(t *testing.T) {
		ctx := eventually.Context(t)
		sock := socket(t)
		c := open(t, sock)
		p := peer(t, "echo", sock, "stopped")
		target, err := c.Find(ctx, lib.Match{"peer": "stopped"})
		if err != nil {
			t.Fatal(err)
		}
		const senders, each = 64, 4
		rs := make([]*lib.Resource, senders)
		for i := range rs {
			rs[i] = register(t, c, lib.Attrs{})
		}
		// The first answer makes the link. Then the peer is stopped.
		if err := rs[0].SendBytes(ctx, target.ID, 0, nil); err != nil {
			t.Fatal(err)
		}
		m, err := rs[0].Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
		signal(t, p.cmd.Process.Pid, syscall.SIGSTOP)
		b, err := c.Buffer(20_000) // more than is copied, less than the first credit
		if err != nil {
			t.Fatal(err)
		}
		if s := b.State(); s != buffers.Owned {
			t.Errorf("a new buffer is %v", s)
		}
		if err := rs[0].Send(ctx, target.ID, 100, b.Retain()); err != nil {
			t.Fatal(err)
		}
		if s := b.State(); s != buffers.Sending || b.Done() {
			t.Errorf("while the receiver stands still the buffer is %v", s)
		}
		var wg sync.WaitGroup
		for _, r := range rs {
			wg.Go(func() {
				for tag := range uint64(each) {
					if err := r.SendBytes(ctx, target.ID, tag+1, []byte("stalled")); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait() // all senders have returned, and the peer has received nothing
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		for i, r := range rs {
			if i == 0 {
				m, err := r.Recv(ctx, lib.Tag(100))
				if err != nil || m.Len() != 20_000 {
					t.Fatal(m, err)
				}
				m.Release()
			}
			for tag := range uint64(each) {
				m, err := r.Recv(ctx)
				if err != nil || m.Tag() != tag+1 {
					t.Fatalf("sender %d: message %d is %v, %v", i, tag+1, m, err)
				}
				m.Release()
			}
		}
		eventually.True(t, "the library is done with the buffer", b.Done)
		if s := b.State(); s != buffers.Delivered {
			t.Errorf("after delivery the buffer is %v", s)
		}
		b.Release()
		if err := c.Flush(ctx); err != nil { // the peer may be killed before it acknowledges what it has answered
			t.Error(err)
		}
	})

	t.Run("copies are counted: none in memory, one of small messages over TCP", func(t *testing.T) {
		cl := rocltest.Cluster(t, 1)
		for name, opts := range map[string][]lib.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
			a, b := cl.Open(0, opts...), cl.Open(0, opts...)
			me, r := register(t, a, lib.Attrs{}), register(t, b, lib.Attrs{})
			ctx := eventually.Context(t)
			pass(t, me, r, 0, nil).Release() // the link is made
			for _, n := range []int{0, 1, 100, 2048, 2049, 1 << 16, 1 << 20} {
				sent, got := a.Stats().Copies, b.Stats().Copies
				p, err := a.Buffer(n)
				if err != nil {
					t.Fatal(err)
				}
				if err := me.Send(ctx, r.ID(), 0, p); err != nil {
					t.Fatal(err)
				}
				m, err := r.Recv(ctx)
				if err != nil || m.Len() != n {
					t.Fatal(m, err)
				}
				m.Release()
				sent, got = a.Stats().Copies-sent, b.Stats().Copies-got
				if name == "inproc" && sent+got > 0 || sent+got > 1 || n > 2048 && sent > 0 {
					t.Errorf("%s: %d bytes were copied %d times by the sender, %d times by the receiver", name, n, sent, got)
				}
			}
		}
	})

	t.Run("the receiver gets the very buffer, and passes it on", func(t *testing.T) {
		ctx := eventually.Context(t)
		cl := rocltest.Cluster(t, 1)
		rs := []*lib.Resource{register(t, cl.Open(0), lib.Attrs{}), register(t, cl.Open(0), lib.Attrs{}), register(t, cl.Open(0), lib.Attrs{}), register(t, cl.Open(0), lib.Attrs{})}
		p, err := rs[0].Context().Buffer(1000)
		if err != nil {
			t.Fatal(err)
		}
		copy(p.Bytes(), "payload")
		where := &p.Bytes()[0]
		for i := range rs[1:] {
			if err := rs[i].Send(ctx, rs[i+1].ID(), 0, p); err != nil {
				t.Fatal(err)
			}
			m, err := rs[i+1].Recv(ctx)
			if err != nil {
				t.Fatal(err)
			}
			p = m.Buffer()
			m.Release()
			if &p.Bytes()[0] != where || !bytes.HasPrefix(p.Bytes(), []byte("payload")) {
				t.Fatalf("hop %d: other memory", i)
			}
		}
		p.Release()
		// The last sender may still be returning from the delivery.
		eventually.True(t, "no buffer is out", func() bool { return rs[0].Context().Stats().Buffers.InUse == 0 })
	})
}

func TestPaperMessages(t *testing.T) {
	t.Run("messages of every length", func(t *testing.T) {
		sizes := []int{0, 1, 63, 2048, 2049, 65_536, 1<<20 + 1, 40 << 20}
		if !testing.Short() {
			sizes = append(sizes, 1<<30+1)
		}
		ctx := eventually.Context(t)
		for name, opts := range map[string][]lib.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
			cl := rocltest.Cluster(t, 1)
			a, b := cl.Open(0, opts...), cl.Open(0, opts...)
			me, r := register(t, a, lib.Attrs{}), register(t, b, lib.Attrs{})
			for tag, n := range sizes {
				p, err := a.Buffer(n)
				if err != nil {
					t.Fatal(err)
				}
				const step = 4093 // a mark here and there: a fill of 1 GiB takes long
				for i := 0; i < n; i += step {
					p.Bytes()[i] = byte(i/step + tag)
				}
				if n > 0 {
					p.Bytes()[n-1] = 0xa5
				}
				if err := me.Send(ctx, r.ID(), uint64(tag), p); err != nil {
					t.Fatalf("%s: %d bytes: %v", name, n, err)
				}
				m, err := r.Recv(ctx)
				if err != nil || m.Len() != n || m.Tag() != uint64(tag) || m.From() != me.ID() {
					t.Fatalf("%s: %d bytes: %v, %v", name, n, m, err)
				}
				for i := 0; i < n-1; i += step {
					if m.Bytes()[i] != byte(i/step+tag) {
						t.Fatalf("%s: %d bytes: byte %d is wrong", name, n, i)
					}
				}
				if n > 0 && m.Bytes()[n-1] != 0xa5 {
					t.Errorf("%s: %d bytes: the last is wrong", name, n)
				}
				m.Release()
				if _, err := r.TryRecv(); !errors.Is(err, lib.ErrEmpty) {
					t.Errorf("%s: %d bytes came twice: %v", name, n, err)
				}
			}
			// A resource that was deleted, or whose context is closed, sends nothing.
			if err := me.Delete(ctx); err != nil {
				t.Fatal(err)
			}
			if err := me.SendBytes(ctx, r.ID(), 0, nil); !errors.Is(err, lib.ErrClosed) {
				t.Errorf("%s: a deleted resource sends: %v", name, err)
			}
		}
	})

	t.Run("receives select by origin and tag", func(t *testing.T) {
		ctx := eventually.Context(t)
		cl := rocltest.Cluster(t, 1)
		a, b := cl.Open(0), cl.Open(0)
		r := register(t, b, lib.Attrs{})
		from := []*lib.Resource{register(t, a, lib.Attrs{}), register(t, a, lib.Attrs{}), register(t, a, lib.Attrs{})}
		type message struct {
			from lib.GID
			tag  uint64
			n    int
		}
		rapid.Check(t, func(t *rapid.T) {
			var kept []message // the model
			n := 0
			receive := func(who, tag int) bool {
				var sel []lib.Select
				if who >= 0 {
					sel = append(sel, lib.From(from[who].ID()))
				}
				if tag >= 0 {
					sel = append(sel, lib.Tag(uint64(tag)))
				}
				i := slices.IndexFunc(kept, func(k message) bool {
					return (who < 0 || k.from == from[who].ID()) && (tag < 0 || k.tag == uint64(tag))
				})
				m, err := r.TryRecv(sel...)
				if i < 0 {
					if !errors.Is(err, lib.ErrEmpty) {
						t.Fatalf("from %d, tag %d: %v, %v, nothing was expected", who, tag, m, err)
					}
					return false
				}
				want := kept[i]
				if err != nil || m.From() != want.from || m.Tag() != want.tag || string(m.Bytes()) != strconv.Itoa(want.n) {
					t.Fatalf("from %d, tag %d: %v, %v, want %+v", who, tag, m, err, want)
				}
				m.Release()
				kept = slices.Delete(kept, i, i+1)
				return true
			}
			for range rapid.IntRange(1, 60).Draw(t, "steps") {
				if rapid.Bool().Draw(t, "send") {
					k := message{from[rapid.IntRange(0, 2).Draw(t, "who")].ID(), uint64(rapid.IntRange(0, 2).Draw(t, "tag")), n}
					n++
					i := slices.IndexFunc(from, func(f *lib.Resource) bool { return f.ID() == k.from })
					if err := from[i].SendBytes(ctx, r.ID(), k.tag, []byte(strconv.Itoa(k.n))); err != nil {
						t.Fatal(err)
					}
					kept = append(kept, k)
					for have, _ := r.Waiting(); have < len(kept); have, _ = r.Waiting() { // the link is being made
						if ctx.Err() != nil {
							t.Fatal("a message does not arrive")
						}
					}
				} else {
					receive(rapid.IntRange(-1, 2).Draw(t, "from"), rapid.IntRange(-1, 2).Draw(t, "with"))
				}
			}
			for receive(-1, -1) {
			}
		})
	})

	t.Run("waiting, timed and immediate receives", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { // time is exact in here
			cl := rocltest.Cluster(t, 1)
			a, b := cl.Open(0), cl.Open(0)
			me, r := register(t, a, lib.Attrs{}), register(t, b, lib.Attrs{})
			began := time.Now()
			if _, err := r.TryRecv(); !errors.Is(err, lib.ErrEmpty) || time.Since(began) != 0 {
				t.Errorf("immediate: %v after %v", err, time.Since(began))
			}
			timed, cancel := context.WithTimeout(t.Context(), 70*time.Millisecond)
			defer cancel()
			if _, err := r.Recv(timed); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("timed: %v", err)
			}
			if d := time.Since(began); d < 70*time.Millisecond || d > 75*time.Millisecond {
				t.Errorf("timed: after %v", d)
			}
			got := make(chan error)
			blocked, stop := context.WithCancel(t.Context())
			for _, wake := range []func(){
				func() {
					if err := me.SendBytes(t.Context(), r.ID(), 7, nil); err != nil {
						t.Error(err)
					}
				}, stop,
			} {
				go func() {
					m, err := r.Recv(blocked)
					if err == nil {
						m.Release()
					}
					got <- err
				}()
				time.Sleep(time.Hour) // in the bubble's time: Recv waits without end
				select {
				case err := <-got:
					t.Fatalf("did not wait: %v", err)
				default:
				}
				wake()
				if err := <-got; err != nil && !(blocked.Err() != nil && errors.Is(err, context.Canceled)) {
					t.Error(err)
				}
			}
		})
	})

	t.Run("senders do not need a receiver; a full store holds them, nothing is lost", func(t *testing.T) {
		for name, opts := range map[string][]lib.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
			ctx := eventually.Context(t)
			cl := rocltest.Cluster(t, 1)
			a, b := cl.Open(0, opts...), cl.Open(0, opts...)
			const limit = 128 << 10
			r, err := b.Register(ctx, lib.Attrs{}, lib.MailboxLimit(limit))
			if err != nil {
				t.Fatal(err)
			}
			me := register(t, a, lib.Attrs{})
			accepted := uint64(0)
			fill(ctx, t, func(ctx context.Context) error {
				err := me.SendBytes(ctx, r.ID(), accepted, make([]byte, 1000))
				if err == nil {
					accepted++
				}
				if accepted > limit/1000 {
					t.Fatalf("%s: %d messages were accepted by a mailbox of %d bytes", name, accepted, limit)
				}
				return err
			})
			if accepted < limit/1000/4 {
				t.Errorf("%s: only %d messages of 1000 bytes were accepted by a mailbox of %d", name, accepted, limit)
			}
			blocked := make(chan error, 1)
			go func() { blocked <- me.SendBytes(ctx, r.ID(), accepted, nil) }()
			for i := range accepted + 1 {
				m, err := r.Recv(ctx)
				if err != nil || m.Tag() != i {
					t.Fatalf("%s: message %d is %v, %v", name, i, m, err)
				}
				m.Release()
			}
			if err := <-blocked; err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("no program connects, and broken links are made again", func(t *testing.T) {
		ctx := eventually.Context(t)
		cl := rocltest.Cluster(t, 1)
		a, b := cl.Open(0, rocltest.TCP()), cl.Open(0, rocltest.TCP())
		me, r := register(t, a, lib.Attrs{}), register(t, b, lib.Attrs{})
		before := tcpConns(t)
		const n, every = 2000, 100
		sent := make(chan error, 1)
		go func() {
			for i := range uint64(n) {
				if err := me.SendBytes(ctx, r.ID(), i, make([]byte, i%5000)); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		for i := range uint64(n) {
			m, err := r.Recv(ctx)
			if err != nil || m.Tag() != i || m.Len() != int(i%5000) {
				t.Fatalf("message %d is %v, %v", i, m, err)
			}
			m.Release()
			if i%every == every-1 {
				for _, fd := range tcpConns(t) {
					if !slices.Contains(before, fd) {
						_ = syscall.Shutdown(fd, syscall.SHUT_RDWR) // the connection may have just ended
					}
				}
			}
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		pass(t, me, r, n, nil).Release()
		if _, err := r.TryRecv(); !errors.Is(err, lib.ErrEmpty) {
			t.Errorf("one more message: %v", err)
		}
		if a.Stats().Resumed == 0 || b.Stats().Resumed == 0 {
			t.Error("no link was broken")
		}
		t.Logf("%d links were made again", a.Stats().Resumed)
	})

	t.Run("who waits sleeps, and an idle context costs nothing", func(t *testing.T) {
		cl := rocltest.Cluster(t, 1)
		n := inproc.NewNetwork()
		both := func() *lib.Context { return cl.Open(0, lib.WithTransports(n.Transport(), tcp.New())) }
		a, b, far := both(), both(), cl.Open(0, rocltest.TCP())
		r := register(t, b, lib.Attrs{})
		for i := range uint64(100) {
			pass(t, register(t, a, lib.Attrs{}), r, i, nil).Release()
			pass(t, register(t, far, lib.Attrs{}), r, i, nil).Release()
		}
		ctx, cancel := context.WithCancel(context.Background())
		waiting := make(chan error)
		go func() {
			_, err := r.Recv(ctx)
			waiting <- err
		}()
		// The CPU time and sleeps of half a second of waiting are counted, not timed: a shared
		// machine charges milliseconds for a handful of wake-ups. A loop that polls takes all of
		// the processor, and a timer of a millisecond sleeps hundreds of times.
		usage := func() (cpu time.Duration, sleeps int64) {
			var u syscall.Rusage
			if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
				t.Fatal(err)
			}
			return time.Duration(u.Utime.Nano() + u.Stime.Nano()), int64(u.Nvcsw)
		}
		const mostCPU, mostSleeps = 100 * time.Millisecond, 200
		var cpu time.Duration
		var sleeps int64
		for range 5 { // the runtime does something of its own now and then
			cpu, sleeps = usage()
			time.Sleep(500 * time.Millisecond) // the time that is measured
			cpu2, sleeps2 := usage()
			if cpu, sleeps = cpu2-cpu, sleeps2-sleeps; cpu < mostCPU && sleeps < mostSleeps {
				break
			}
		}
		if cpu >= mostCPU || sleeps >= mostSleeps {
			t.Errorf("waiting for half a second took %v of a processor and %d sleeps", cpu, sleeps)
		}
		t.Logf("waiting for half a second took %v of a processor and %d sleeps", cpu, sleeps)
		cancel()
		if err := <-waiting; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if s := b.Stats(); s.Sleeps == 0 {
			t.Errorf("no goroutine slept: %+v", s)
		}
	})

	t.Run("many receive at once", func(t *testing.T) {
		const receivers = 1000
		each := 100
		if testing.Short() {
			each = 10
		}
		ctx := eventually.Context(t)
		for name, opts := range map[string][]lib.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
			cl := rocltest.Cluster(t, 1)
			a, b := cl.Open(0, opts...), cl.Open(0, opts...)
			me := register(t, a, lib.Attrs{})
			rs := make([]*lib.Resource, receivers)
			var wg sync.WaitGroup
			// The link is made first, so that there is no backlog: see TestCrashBacklog.
			pass(t, me, register(t, b, lib.Attrs{}), 0, nil).Release()
			for i := range rs {
				rs[i] = register(t, b, lib.Attrs{})
				wg.Go(func() {
					for n := range each {
						m, err := rs[i].Recv(ctx)
						if err != nil || m.Tag() != uint64(n*receivers+i) {
							t.Errorf("%s: receiver %d, message %d: %v, %v", name, i, n, m, err)
							return
						}
						m.Release()
					}
				})
			}
			for n := range each {
				for i, r := range rs {
					if err := me.SendBytes(ctx, r.ID(), uint64(n*receivers+i), nil); err != nil {
						t.Fatal(err)
					}
				}
			}
			wg.Wait()
		}
	})

	t.Run("finding the way: context, addresses, then no more questions", func(t *testing.T) {
		ctx := eventually.Context(t)
		cl := rocltest.Cluster(t, 1)
		far := lib.WithTransports(tcp.New()) // within a process addresses are not asked for
		b := cl.Open(0, far)
		r := register(t, b, lib.Attrs{})
		for range 20 { // every context is new: nothing is remembered, all works
			a := cl.Open(0, far)
			me := register(t, a, lib.Attrs{})
			before := a.Stats().Questions
			pass(t, me, r, 0, nil).Release()
			if n := a.Stats().Questions - before; n != 2 {
				t.Fatalf("the first message took %d questions, not 2", n)
			}
			for i := range uint64(1000) {
				pass(t, me, r, i, nil).Release()
			}
			if n := a.Stats().Questions - before; n != 2 {
				t.Fatalf("the first thousand messages took %d questions, not 2", n)
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
		}
		// The death of the target's context invalidates what is remembered.
		b = cl.Open(0)
		r = register(t, b, lib.Attrs{})
		a := cl.Open(0)
		me := register(t, a, lib.Attrs{})
		pass(t, me, r, 0, nil).Release()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "the directory knows that the context is closed", func() bool {
			_, err := a.Lookup(ctx, r.ID())
			return errors.Is(err, lib.ErrNotFound)
		})
		if err := me.SendBytes(ctx, r.ID(), 0, nil); !errors.Is(err, lib.ErrGone) {
			t.Errorf("a send to a closed context: %v", err)
		}
	})

	t.Run("programs come, go, and find each other", func(t *testing.T) {
		ctx := eventually.Context(t)
		sock := socket(t)
		c := open(t, sock)
		me := register(t, c, lib.Attrs{})
		seen := map[lib.GID]bool{}
		for i := range uint64(3) { // the module is started again, this process is not
			p := peer(t, "echo", sock, "module")
			f, err := c.Find(ctx, lib.Match{"peer": "module"})
			if err != nil {
				t.Fatal(err)
			}
			if seen[f.ID] {
				t.Fatalf("%v is dead", f.ID)
			}
			seen[f.ID] = true
			if err := me.SendBytes(ctx, f.ID, i, []byte("again")); err != nil {
				t.Fatal(err)
			}
			m, err := me.Recv(ctx)
			if err != nil || m.From() != f.ID || m.Tag() != i || string(m.Bytes()) != "again" {
				t.Fatal(m, err)
			}
			m.Release()
			if err := c.Flush(ctx); err != nil { // the answer may overtake the acknowledgement
				t.Fatal(err)
			}
			p.kill(t)
			eventually.True(t, "the dead module is not found", func() bool {
				_, err := c.Find(ctx, lib.Match{"peer": "module"})
				return errors.Is(err, lib.ErrNotFound)
			})
		}
	})
}
