// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/resource"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sock returns a path for a socket in a folder of its own.
func sock(t testing.TB) string {
	dir, err := os.MkdirTemp("", "rd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "d.sock")
}

// list returns m as a pattern that wants the attributes want.
func list(t testing.TB, m resource.Attributes, want ...string) *resource.List {
	t.Helper()
	l, err := resource.NewPattern(m, want...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve starts a server at path, which ends with the test.
func serve(t testing.TB, path string, opts ...Option) *Server {
	t.Helper()
	s, err := Listen(path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// joined joins the directory at path with a client that ends with the test.
func joined(t testing.TB, path string) *Client {
	t.Helper()
	c, err := Join(context.Background(), DialSocket(path))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
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
	path := sock(t)
	serve(t, path)
	c, d := joined(t, path), joined(t, path)
	id := c.Self().WithSerial(1)
	if _, err := c.Register(ctx, id, list(t, resource.Attrs{"type": "x", "load": "3"})); err != nil {
		t.Fatal(err)
	}
	a, err := d.Find(ctx, list(t, resource.Match{"type": "x"}, "load", "none"))
	if err != nil || a.ID != id || a.Owner != c.Self() || a.Attrs.GetString("load") != "3" {
		t.Fatalf("%+v, %v", a, err)
	}
	if _, err := d.Register(ctx, id.WithSerial(2), list(t, nil)); !errors.Is(err, ErrNotOwner) {
		t.Errorf("registering for another context: %v", err)
	}
	if err := d.Delete(ctx, id); !errors.Is(err, ErrNotOwner) {
		t.Errorf("deleting another's: %v", err)
	}
	if _, err := c.Register(ctx, id.WithSerial(3), list(t, nil, "absent")); !errors.Is(err, ErrIncomplete) {
		t.Errorf("registering an incomplete list: %v", err)
	}
	for i := range uint32(50) {
		if _, err := c.Register(ctx, id.WithSerial(10+i), list(t, resource.Attrs{"n": fmt.Sprint(i), "many": "yes"})); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for _, err := range d.FindAll(ctx, list(t, resource.Match{"many": "yes"})) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	for range d.FindAll(ctx, list(t, resource.Match{"many": "yes"})) {
		break // the next question goes over the same connection
	}
	if _, err := d.Lookup(ctx, id); err != nil || n != 50 {
		t.Errorf("%d answers, then %v", n, err)
	}
	c.Close()
	eventually.True(t, "the server has seen the life connection end", func() bool {
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
	if fi, err := os.Stat(filepath.Dir(path)); err != nil || fi.Mode().Perm() != 0o700 {
		t.Error(fi.Mode(), err)
	}
	if fi, err := os.Stat(path + ".node"); err != nil || fi.Mode().Perm() != 0o600 {
		t.Error(fi.Mode(), err)
	}
}

// The number of a context is never given twice, whatever happens to servers.
//
// Promise (Resources): Identifiers are unique and never given twice, whichever process serves the
// directory. See also TestNumbersAreUniqueAcrossKills.
func TestNumbersAreUnique(t *testing.T) {
	path := sock(t)
	seen := map[resource.GID]bool{}
	var node resource.NodeID
	for range 5 {
		s, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			c, err := Join(context.Background(), DialSocket(path))
			if err != nil {
				t.Fatal(err)
			}
			if seen[c.Self()] || node != 0 && c.Node() != node {
				t.Fatalf("%v given twice, or the node changed", c.Self())
			}
			seen[c.Self()], node = true, c.Node()
			c.Close()
		}
		s.Close()
	}
}

// The number of a context is never given twice when servers, each in a process of its own, are
// killed while contexts join. A context keeps its number when it joins the next server.
func TestNumbersAreUniqueAcrossKills(t *testing.T) {
	const mark = "ROCL_TEST_SERVE_AT"
	if path := os.Getenv(mark); path != "" {
		s, err := Listen(path)
		if err != nil {
			t.Fatal(err)
		}
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
	join := func() error {
		c, err := Join(ctx, DialSocket(path))
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		joined = append(joined, c)
		return nil
	}
	stop := make(chan struct{})
	for range 4 {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if join() != nil {
					time.Sleep(time.Millisecond) // no server serves: no event tells when the next one does
				}
			}
		})
	}
	for range 5 {
		before := count()
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), mark+"="+path)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually.True(t, "contexts join", func() bool { return count() >= before+20 })
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		in.Close()
	}
	close(stop)
	busy.Wait()
	s, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
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
	log := NewServer().log
	var cs []*Client
	for i := range 4 {
		c, err := JoinNode(ctx, path, log, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Register(ctx, c.Self().WithSerial(1), list(t, resource.Attrs{"i": fmt.Sprint(i), "all": "yes"})); err != nil {
			t.Fatal(err)
		}
		cs = append(cs, c)
	}
	last := cs[len(cs)-1]
	events := make(chan Event, 100)
	watching, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for ev, err := range last.Watch(watching, list(t, resource.Match{"all": "yes"})) {
			if err != nil {
				break
			}
			events <- ev
		}
		close(events)
	})
	want := func(kind EventKind, n int) {
		for range n {
			select {
			case ev := <-events:
				if ev.Kind != kind {
					t.Fatalf("%v %v, want %v", ev.Kind, ev.ID, kind)
				}
			case <-ctx.Done():
				t.Fatalf("no event %v", kind)
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
		if _, err := last.Find(ctx, list(t, resource.Match{"i": fmt.Sprint(i)})); !errors.Is(err, ErrNotFound) {
			t.Fatalf("what left is found: %v", err)
		}
	}
	stop()
	wg.Wait()
}

// A connection with garbage is closed, and other connections are unaffected.
func TestGarbage(t *testing.T) {
	path := sock(t)
	serve(t, path)
	c := joined(t, path)
	for _, junk := range [][]byte{
		[]byte("GET / HTTP/1.1\r\n\r\n"),
		append(wire.Greeting(wire.KindLife), 255, 255, 255, 255, 1, 0, 0, 0),
		append(wire.Greeting(wire.KindAsk), 12, 0, 0, 0, wire.MsgFind, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0),
		append(wire.Greeting(9), 0),
		append(wire.Greeting(wire.KindLife), append([]byte{60, 0, 0, 0, wire.MsgJoin, 0, 0, 0}, make([]byte, 56)...)...)[:70],
	} {
		nc, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = nc.Write(junk)
		nc.Close()
	}
	// A context that claims the identifier of another one without its token is refused.
	other := &Client{dial: DialSocket(path), self: c.Self()}
	if _, err := other.join(context.Background(), nil); !errors.Is(err, ErrDenied) {
		t.Errorf("joining as another: %v", err)
	}
	if _, err := c.Find(context.Background(), list(t, resource.Match{"a": "b"})); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// FuzzServer sends arbitrary bytes on a connection of a context.
func FuzzServer(f *testing.F) {
	f.Add(append(wire.Greeting(wire.KindAsk), 12, 0, 0, 0, wire.MsgFind, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0))
	k := &wire.Builder{}
	k.Begin(wire.MsgJoin, 1)
	k.Append(make([]byte, 48))
	k.Append(new(resource.List).Wire())
	f.Add(append(wire.Greeting(wire.KindLife), k.Finish()...))
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
		near, far := net.Pipe()
		done := make(chan struct{})
		go func() { s.ServeConn(far); close(done) }()
		go func() {
			buf := make([]byte, 4096)
			for {
				if _, err := near.Read(buf); err != nil {
					return
				}
			}
		}()
		_, _ = near.Write(b)
		near.Close()
		<-done
		s.Close()
	})
}

// A question with an ended context fails, and the next question works.
func TestCancelledAsk(t *testing.T) {
	path := sock(t)
	serve(t, path)
	c := joined(t, path)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Find(ctx, list(t, nil)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := c.Lookup(context.Background(), c.Self()); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
}

// Join fails with ErrNoDirectory if no process serves.
func TestNoDirectory(t *testing.T) {
	if _, err := Join(context.Background(), DialSocket(sock(t))); !errors.Is(err, ErrNoDirectory) {
		t.Error(err)
	}
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
	if !errors.Is(err, ErrUntrusted) {
		t.Error(err)
	}
}
