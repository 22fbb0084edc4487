// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A gate stands between a client and a server. While it is shut, it accepts connections and moves
// no bytes, as a stopped process does.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while the gate is open
}

// newGate returns a gate that is open.
func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

func (g *gate) lift() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.open)
}

func (g *gate) now() chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open
}

// dialer dials the server at path through g. A write blocks at once while g is shut.
func (g *gate) dialer(t *testing.T, path string) Dialer {
	var busy sync.WaitGroup
	t.Cleanup(busy.Wait)
	return func(ctx context.Context) (net.Conn, error) {
		far, err := DialSocket(path)(ctx)
		if err != nil {
			return nil, err
		}
		near, mid := net.Pipe()
		ended := make(chan struct{})
		var end sync.Once
		pass := func(to, from net.Conn) {
			defer end.Do(func() {
				close(ended)
				mid.Close()
				far.Close()
			})
			b := make([]byte, 4096)
			for {
				n, err := from.Read(b)
				select {
				case <-g.now():
				case <-ended:
					return
				}
				if _, e := to.Write(b[:n]); err != nil || e != nil {
					return
				}
			}
		}
		busy.Go(func() { pass(far, mid) })
		busy.Go(func() { pass(mid, far) })
		return near, nil
	}
}

// Every call of a client returns when the caller's context ends, wherever the call waits, even if
// the server hangs.
//
// Promise (Takeover): While a directory stands still, calls return their context's error when the
// context ends. A `Register` given up is withdrawn later.
func TestSilentServer(t *testing.T) {
	path := sock(t)
	s := serve(t, path)
	g := newGate()
	c := joinedBy(t, g.dialer(t, path))
	lamp := list(t, resource.Attrs{"type": "lamp"})
	kept, dropped := c.Self().WithSerial(1), c.Self().WithSerial(2)
	for _, id := range []resource.GID{kept, dropped} {
		try.Get(c.Register(t.Context(), id, lamp))(t)
	}
	large := list(t, resource.Attrs{"type": "lamp", "large": strings.Repeat("x", 4<<20)})
	pair := func(id uint32) resource.GID { return c.Self().WithSerial(id) }
	type question struct {
		name string
		ask  func(context.Context) error
	}
	questions := []question{
		{"a large Register", func(ctx context.Context) error { _, err := c.Register(ctx, pair(3), large); return err }},
		{"Register", func(ctx context.Context) error { _, err := c.Register(ctx, pair(4), lamp); return err }},
		{"Update", func(ctx context.Context) error { _, err := c.Update(ctx, kept, 0, lamp); return err }},
		{"Delete", func(ctx context.Context) error { return c.Delete(ctx, dropped) }},
		{"Find", func(ctx context.Context) error { _, err := c.Find(ctx, lamp); return err }},
		{"a large Find", func(ctx context.Context) error { _, err := c.Find(ctx, large); return err }},
		{"Lookup", func(ctx context.Context) error { _, err := c.Lookup(ctx, kept); return err }},
		{"FindAll", func(ctx context.Context) error {
			for _, err := range c.FindAll(ctx, lamp) {
				return err
			}
			return nil
		}},
		{"Watch", func(ctx context.Context) error {
			for _, err := range c.Watch(ctx, lamp) {
				return err
			}
			return nil
		}},
		{"Trace", func(ctx context.Context) error { _, err := c.Trace(ctx, 0, lamp); return err }},
		{"Join", func(ctx context.Context) error { _, err := Join(ctx, c.dial); return err }},
	}
	enough := errors.New("enough")
	g.shut()
	ask := func(q question, ctx context.Context) {
		t.Helper()
		try.Fails(q.ask(ctx))(t, enough, "%s of a server that stands still", q.name)
	}
	for range 2 { // the second time the client's writing goroutine is blocked
		for _, q := range questions {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(20*time.Millisecond, func() { cancel(enough) })
			ask(q, ctx)
		}
	}
	if n := len(c.conn.queue); n > len(questions) {
		t.Errorf("%d requests of callers that gave up are queued", n)
	}
	g.lift()
	// A Register that was given up is withdrawn, and a Delete is done.
	var ids []resource.GID
	if _, err := c.Update(t.Context(), kept, 0, lamp); err != nil { // answered after all earlier messages
		t.Fatal(err)
	}
	for a, err := range c.FindAll(t.Context(), lamp) {
		try.OK(t, err)
		ids = append(ids, a.ID)
	}
	if len(ids) != 1 || ids[0] != kept {
		t.Errorf("the directory has %v, the context %v", ids, kept)
	}
	if r, ok := s.Database().Get(kept); !ok || r.Revision != c.owned[kept].revision {
		t.Errorf("the context has it at revision %d, the directory at %d, %v", c.owned[kept].revision, r.Revision, ok)
	}
	g.shut()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(enough)
	ask(question{"Withdraw", c.Withdraw}, ctx)
	_ = c.Close() // returns too
	g.lift()
}
