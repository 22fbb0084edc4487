// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

var testLog *slog.Logger // set by hand when looking for a fault

// world is a set of dispatchers that know each other's addresses.
type world struct {
	mu   sync.Mutex
	at   map[resource.GID][]string
	gone map[resource.GID]bool
}

func newWorld() *world {
	return &world{at: map[resource.GID][]string{}, gone: map[resource.GID]bool{}}
}

func (w *world) resolve(_ context.Context, id resource.GID) ([]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gone[id] {
		return nil, ErrGone
	}
	return w.at[id], nil
}

// setAddrs sets the addresses of a context.
func (w *world) setAddrs(id resource.GID, addrs ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[id] = addrs
}

// setGone says whether a context has ended, as resolve is to answer.
func (w *world) setGone(id resource.GID, isGone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone[id] = isGone
}

// trusting returns a function for Config.Trust.
func trusting(cluster string, keys ...string) func() Trust {
	t := Trust{Cluster: cluster}
	for _, k := range keys {
		t.Keys = append(t.Keys, []byte(k))
	}
	return func() Trust { return t }
}

// givesUp is for contexts of tests in which a peer is gone without a goodbye: until the context
// gives up, Close waits for the peer.
func givesUp(c *Config) { c.GiveUp = 2 * time.Second }

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }

// node returns a context that listens on tr. A test that waits for it to give up sets a short
// GiveUp.
func (w *world) node(t testing.TB, n uint64, tr subsys.Transport, change ...func(*Config)) *Dispatcher {
	t.Helper()
	pool := buffers.New()
	cfg := Config{Self: resource.MakeGID(1, n, 0), Pool: pool, Resolve: w.resolve, Trust: trusting("", "key"), GiveUp: 20 * time.Second, Logger: testLog}
	for _, f := range change {
		f(&cfg)
	}
	d := New(cfg)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		d.Close(ctx)
		pool.Close()
	})
	listen(t, d, tr)
	w.setAddrs(cfg.Self, d.Addrs()...)
	return d
}

// listen makes a context listen on tr. The test is skipped if this system does not have tr.
func listen(t testing.TB, d *Dispatcher, tr subsys.Transport) {
	t.Helper()
	err := d.Listen(tr, "")
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	try.OK(t, err)
}

func buf(t testing.TB, d *Dispatcher, s string) *buffers.Buffer {
	t.Helper()
	b := try.Get(d.cfg.Pool.Get(len(s)))(t)
	copy(b.Bytes(), s)
	return b
}

func box(t testing.TB, d *Dispatcher, serial uint32, limit int) *Mailbox {
	t.Helper()
	m := try.Get(d.Mailbox(serial, limit))(t)
	return m
}

func flow(t testing.TB, d *Dispatcher, to *Mailbox) *Flow {
	t.Helper()
	f := try.Get(d.Flow(to.d.self, to.serial))(t)
	return f
}

// over runs f with a new world for each of the transports.
func over(t *testing.T, all map[string]subsys.Transport, f func(t *testing.T, w *world, tr subsys.Transport)) {
	for name, tr := range all {
		t.Run(name, func(t *testing.T) { f(t, newWorld(), tr) })
	}
}

// locked returns a function that calls f with mu held.
func locked(mu sync.Locker, f func() bool) func() bool {
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		return f()
	}
}

// links returns the transports that make connections.
func links() map[string]subsys.Transport {
	all := transports()
	delete(all, "inproc")
	return all
}

func transports() map[string]subsys.Transport {
	return map[string]subsys.Transport{"tcp": tcp.New(), "inproc": inproc.NewNetwork().Transport(), "shm": shm.New()}
}

// soon returns a context for what must happen. It ends only if a test fails.
func soon(t testing.TB) context.Context { return eventually.Context(t) }

// ended returns a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// try sends n bytes, or returns why it cannot.
func (f *Flow) try(ctx context.Context, tag uint64, n int) error {
	b, err := f.dispatcher().cfg.Pool.Get(n)
	if err != nil {
		return err
	}
	if err = f.Send(ctx, 1, tag, b); err != nil {
		b.Release()
	}
	return err
}

// take receives a message.
func take(t testing.TB, m *Mailbox, sel ...Select) {
	t.Helper()
	receive(t, m, sel).Release()
}

// takeTag receives a message, which must have the tag.
func takeTag(t testing.TB, m *Mailbox, tag uint64, sel ...Select) {
	t.Helper()
	msg := receive(t, m, sel)
	defer msg.Release()
	if msg.Tag() != tag {
		t.Fatalf("message %d in place of %d", msg.Tag(), tag)
	}
}

func receive(t testing.TB, m *Mailbox, sel []Select) *Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Timeout)
	defer cancel()
	msg := try.Get(m.Recv(ctx, sel...))(t)
	return msg
}

// awaitReply waits for the reply to a call.
func awaitReply(t testing.TB, p Pending) {
	t.Helper()
	reply := try.Get(p.Wait(soon(t)))(t)
	reply.Release()
}

func TestPingPong(t *testing.T) {
	for _, poll := range []PollPolicy{PollAdaptive, PollNever, PollAlways} {
		t.Run(poll.String(), func(t *testing.T) {
			over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
				policy := func(c *Config) { c.Poll.Policy = poll }
				a, b := w.node(t, 1, tr, policy), w.node(t, 2, tr, policy)
				ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
				echoing(t, b, mb, a)
				pinging(t, a, flow(t, a, mb), ma, 500)
				mb.Close()
			})
		})
	}
}

// Many senders, several mailboxes, all sizes: every message arrives once and in order.
//
// Promise (Delivery): Messages from one resource to another arrive once and in the order in which
// they were sent, whatever their size, also within a process. See also TestMoves,
// TestLocalMessages.
func TestOrderAndCompleteness(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		ctx := soon(t)
		const senders, each = 8, 2000
		sizes := []int{0, 1, 64, 2000, 3000, 9000, 40_000, 1 << 20}
		var wg sync.WaitGroup
		for s := range uint32(senders) {
			mb := box(t, b, 10+s, 1<<20)
			wg.Add(2)
			go func() {
				defer wg.Done()
				f := flow(t, a, mb)
				for i := range each {
					size := sizes[i%len(sizes)]
					if size > 9000 && i > 200 {
						size = 100
					}
					p, err := a.cfg.Pool.Get(size)
					if err != nil {
						t.Error(err)
						return
					}
					if size >= 8 {
						binary.LittleEndian.PutUint64(p.Bytes()[size-8:], uint64(i))
					}
					if err := f.Send(ctx, 1+s, uint64(i), p); err != nil {
						t.Errorf("send %d: %v", i, err)
						return
					}
				}
			}()
			go func() {
				defer wg.Done()
				for i := range uint64(each) {
					m, err := mb.Recv(ctx)
					if err != nil {
						t.Errorf("recv %d: %v", i, err)
						return
					}
					if m.Tag() != i || m.From() != a.self.WithSerial(1+s) {
						t.Errorf("got %d from %v, want %d", m.Tag(), m.From(), i)
						return
					}
					if n := m.Len(); n >= 8 && binary.LittleEndian.Uint64(m.Bytes()[n-8:]) != i {
						t.Errorf("message %d damaged", i)
						return
					}
					m.Release()
				}
			}()
		}
		wg.Wait()
	})
}

func TestSendToMissing(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		reported := make(chan Undelivered, 10)
		a := w.node(t, 1, tr, func(c *Config) { c.Undelivered = func(u Undelivered) { reported <- u } })
		b := w.node(t, 2, tr)
		ctx := soon(t)
		f, err := a.Flow(b.self, 99)
		if tr.Name() == "inproc" { // this transport knows at once
			if !errors.Is(err, ErrGone) {
				t.Error(err)
			}
			return
		}
		try.OK(t, err)
		try.OK(t, f.Send(ctx, 5, 7, buf(t, a, "x")))
		u := <-reported
		if u.To != b.self.WithSerial(99) || u.From != a.self.WithSerial(5) || u.Tag != 7 || !errors.Is(u.Err, ErrGone) {
			t.Fatalf("reported %+v", u)
		}
		p := buf(t, a, "y")
		if err := f.Send(ctx, 5, 8, p); !errors.Is(err, ErrGone) {
			t.Fatalf("second send: %v", err)
		}
		p.Release()
	})
}

// idle reports whether the peer has acknowledged everything that was sent over the link of f.
func (f *Flow) idle() bool {
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	return f.l.s.IsIdle()
}
