// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sock returns a path for a socket in a folder of its own.
func sock(t testing.TB) string { return freeaddr.Socket(t) }

// yields skips a test where a daemon does not take over from a context that serves.
func yields(t *testing.T) {
	t.Helper()
	posix.Need(t, "context that gives way")
}

// list returns m as a pattern that wants the attributes want.
func list(t testing.TB, m resource.Attributes, want ...string) *resource.List {
	t.Helper()
	return try.Get(resource.NewPattern(m, want...))(t)
}

// serve starts a server at path, which ends with the test.
func serve(t testing.TB, path string, opts ...Option) *Server {
	t.Helper()
	s := try.Get(Listen(path, opts...))(t)
	t.Cleanup(func() { s.Close() })
	return s
}

// joined joins the directory at path with a client that ends with the test.
func joined(t testing.TB, path string, opts ...ClientOption) *Client {
	return joinedBy(t, DialSocket(path), opts...)
}

// begun starts a server at a new path, and joins it.
func begun(t testing.TB, opts ...Option) (path string, s *Server, c *Client) {
	path = sock(t)
	s = serve(t, path, opts...)
	return path, s, joined(t, path)
}

// joinedBy is joined with a Dialer.
func joinedBy(t testing.TB, dial Dialer, opts ...ClientOption) *Client {
	c := try.Get(Join(context.Background(), dial, opts...))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// joinedNode is joined with a client that serves, with the options serve, if no other process does.
func joinedNode(t testing.TB, path string, serve []Option, opts ...ClientOption) *Client {
	c := try.Get(JoinNode(context.Background(), path, slog.New(slog.DiscardHandler), serve, opts...))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// found takes the results of a question, and reports any other answer than the resource id.
func found(t testing.TB, id resource.GID) func(resource.Record, error) {
	return func(r resource.Record, err error) {
		t.Helper()
		if err != nil || r.ID != id {
			t.Errorf("found %v, %v; want %v", r.ID, err, id)
		}
	}
}

// names reports an error that does not name path.
func names(t testing.TB, err error, path string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("the error does not name %s: %v", path, err)
	}
}

// What one client registers another one finds, and only the owner may change it.
func TestAskAndAnswer(t *testing.T) {
	ctx := context.Background()
	path, _, c := begun(t)
	d := joined(t, path)
	id := c.Self().WithSerial(1)
	try.Get(c.Register(ctx, id, list(t, resource.Attrs{"type": "x", "load": "3"})))(t)
	a, err := d.Find(ctx, list(t, resource.Match{"type": "x"}, "load", "none"))
	if err != nil || a.ID != id || a.Owner != c.Self() || a.Attrs.GetString("load") != "3" {
		t.Fatalf("%+v, %v", a, err)
	}
	try.Fails(d.Register(ctx, id.WithSerial(2), list(t, nil)))(t, ErrNotOwner)             // registering for another context
	try.Fails(d.Delete(ctx, id))(t, ErrNotOwner)                                           // deleting another's
	try.Fails(c.Register(ctx, id.WithSerial(3), list(t, nil, "absent")))(t, ErrIncomplete) // registering an incomplete list
	for i := range uint32(50) {
		try.Get(c.Register(ctx, id.WithSerial(10+i), list(t, resource.Attrs{"n": fmt.Sprint(i), "many": "yes"})))(t)
	}
	n := 0
	for _, err := range d.FindAll(ctx, list(t, resource.Match{"many": "yes"})) {
		try.OK(t, err)
		n++
	}
	for range d.FindAll(ctx, list(t, resource.Match{"many": "yes"})) {
		break // the next question goes over the same connection
	}
	if _, err := d.Lookup(ctx, id); err != nil || n != 50 {
		t.Errorf("%d answers, then %v", n, err)
	}
	c.Close()
	eventually.True(t, "the server has seen the registration connection end", func() bool {
		_, err := d.Lookup(ctx, id)
		return errors.Is(err, ErrNotFound)
	})
}

// Of several processes that serve at once one wins, and its files have the modes that keep other
// users out.
func TestOneServer(t *testing.T) {
	path := sock(t)
	var wg sync.WaitGroup
	won := make(chan *Server, 20)
	for range 20 {
		wg.Go(func() {
			s, err := Listen(path)
			if err == nil {
				won <- s
			} else if !errors.Is(err, ErrInUse) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d servers", len(won))
	}
	(<-won).Close()
	if !posix.IsUnix {
		return
	}
	if fi, err := os.Stat(filepath.Dir(path)); err != nil || fi.Mode().Perm() != 0o700 {
		t.Error(fi.Mode(), err)
	}
	if fi, err := os.Stat(path + ".node"); err != nil || fi.Mode().Perm() != 0o600 {
		t.Error(fi.Mode(), err)
	}
}

// The number of a context is never given twice when servers, each in a process of its own, are
// killed while contexts join and close. A context keeps its number when it joins the next server.
//
// Promise (Resources): Identifiers are unique and never given twice, whichever process serves the
// directory.
func TestNumbersAreUnique(t *testing.T) {
	const mark = "ROCL_TEST_SERVE_AT"
	if path := os.Getenv(mark); path != "" {
		s := try.Get(Listen(path))(t)
		defer s.Close()
		_, _ = io.Copy(io.Discard, os.Stdin) // until the parent kills this process, or ends
		return
	}
	path := sock(t)
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Timeout)
	defer cancel()
	var mu sync.Mutex // guards joined
	var joined []*Client
	var busy sync.WaitGroup
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(joined)
	}
	join := func(closes bool) error {
		c, err := Join(ctx, DialSocket(path))
		if err != nil {
			return err
		}
		mu.Lock()
		joined = append(joined, c)
		mu.Unlock()
		if closes {
			c.Close()
		}
		return nil
	}
	stop := make(chan struct{})
	for i := range 4 {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if join(i%2 == 0) != nil {
					time.Sleep(time.Millisecond) // no server serves: no event tells when the next one does
				}
			}
		})
	}
	for range 5 {
		before := count()
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), mark+"="+path)
		in := try.Get(cmd.StdinPipe())(t)
		try.OK(t, cmd.Start())
		eventually.True(t, "contexts join", func() bool { return count() >= before+20 })
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		in.Close()
	}
	close(stop)
	busy.Wait()
	s := try.Get(Listen(path))(t)
	defer s.Close()
	seen := map[resource.GID]bool{}
	for _, c := range joined {
		if seen[c.Self()] || c.Node() != joined[0].Node() {
			t.Errorf("%v given twice, or the node changed", c.Self())
		}
		seen[c.Self()] = true
		c.Close()
	}
}

// The serving client closes again and again. The other clients and their watches go on.
func TestTakeover(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Timeout)
	defer cancel()
	path := sock(t)
	var cs []*Client
	for i := range 4 {
		c := joinedNode(t, path, nil)
		try.Get(c.Register(ctx, c.Self().WithSerial(1), list(t, resource.Attrs{"i": fmt.Sprint(i), "all": "yes"})))(t)
		cs = append(cs, c)
	}
	last := cs[len(cs)-1]
	next, stop := iter.Pull2(last.Watch(ctx, list(t, resource.Match{"all": "yes"})))
	defer stop()
	want := func(kind EventKind, n int) {
		for range n {
			if ev, err, _ := next(); err != nil || ev.Kind != kind {
				t.Fatalf("%v %v, %v; want %v", ev.Kind, ev.ID, err, kind)
			}
		}
	}
	want(Appeared, 4)
	want(Synced, 1)
	for i, c := range cs[:3] {
		c.Close() // the first client serves, then one of those that are left
		want(Gone, 1)
		for j, o := range cs[i+1:] {
			a, err := last.Find(ctx, list(t, resource.Match{"i": fmt.Sprint(i + 1 + j)}))
			if err != nil || a.ID != o.Self().WithSerial(1) {
				t.Fatalf("after %d left: %v, %v", i, a.ID, err)
			}
		}
		try.Fails(last.Find(ctx, list(t, resource.Match{"i": fmt.Sprint(i)})))(t, ErrNotFound) // what left
	}
}

// A connection with garbage is closed, and other connections are unaffected.
func TestGarbage(t *testing.T) {
	path, _, c := begun(t)
	for _, junk := range [][]byte{
		[]byte("GET / HTTP/1.1\r\n\r\n"),
		append(wire.Greeting(wire.KindRegistration), 255, 255, 255, 255, 1, 0, 0, 0),
		append(wire.Greeting(wire.KindAsk), 12, 0, 0, 0, wire.MsgFind, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0),
		append(wire.Greeting(9), 0),
		append(wire.Greeting(wire.KindRegistration), append([]byte{60, 0, 0, 0, wire.MsgJoin, 0, 0, 0}, make([]byte, 56)...)...)[:70],
	} {
		nc := try.Get(DialSocket(path)(t.Context()))(t)
		_, _ = nc.Write(junk)
		nc.Close()
	}
	// A context that claims the identifier of another one without its token is refused.
	other := &Client{dial: DialSocket(path), self: c.Self()}
	try.Fails(other.join(context.Background(), nil))(t, ErrDenied) // joining as another
	try.Fails(c.Find(context.Background(), list(t, resource.Match{"a": "b"})))(t, ErrNotFound)
}

// fed writes b to a connection that serve serves, and reads what comes back. done is closed when
// serve has returned.
func fed(serve func(net.Conn), b []byte) (near net.Conn, done chan struct{}) {
	near, far := net.Pipe()
	done = make(chan struct{})
	go func() { serve(far); close(done) }()
	go func() { _, _ = io.Copy(io.Discard, near) }()
	_, _ = near.Write(b)
	return near, done
}

// raw returns a connection of a kind that has been greeted, and closes it with the test.
func raw(t *testing.T, dial Dialer, kind byte) *wire.Conn {
	nc := try.Get(dial(t.Context()))(t)
	t.Cleanup(func() { nc.Close() })
	try.Get(nc.Write(wire.Greeting(kind)))(t)
	return wire.NewConn(nc)
}

// FuzzServer sends arbitrary bytes on a connection of a context.
func FuzzServer(f *testing.F) {
	f.Add(append(wire.Greeting(wire.KindAsk), 12, 0, 0, 0, wire.MsgFind, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0))
	k := &wire.Builder{}
	k.Begin(wire.MsgJoin, 1)
	k.Append(make([]byte, 48))
	k.Append(new(resource.List).Wire())
	f.Add(append(wire.Greeting(wire.KindRegistration), k.Finish()...))
	f.Add(append(wire.Greeting(wire.KindAsk), 19, 0, 0, 0, wire.MsgTrace, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, byte(strategy.Unicast), 0, 0, 6, 0, 0, 0))
	var asks []byte
	for _, typ := range []byte{wire.MsgList, wire.MsgMore, wire.MsgFind, wire.MsgStop} {
		p := list(f, resource.Match{"a": "b"}, "c")
		_, _ = p.Compare("n", resource.Ge, "4"), p.OrderBy("n", true)
		m := &wire.Builder{}
		if m.Begin(typ, 1); typ == wire.MsgList || typ == wire.MsgFind {
			m.Append(p.Wire())
		}
		asks = append(asks, m.Finish()...)
	}
	f.Add(append(wire.Greeting(wire.KindAsk), asks...))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewServer()
		near, done := fed(s.ServeConn, b)
		near.Close()
		<-done
		s.Close()
	})
}

// A client neither joins nor replaces a directory that is not to be trusted.
func TestJoinUntrusted(t *testing.T) {
	untrusted := func(context.Context) (net.Conn, error) { return nil, fmt.Errorf("%w: a test", ErrUntrusted) }
	c, err := Join(t.Context(), untrusted, WithServe(func(context.Context) error {
		t.Error("the client serves")
		return nil
	}))
	if err == nil {
		c.Close()
	}
	try.Fails(err)(t, ErrUntrusted)
}
