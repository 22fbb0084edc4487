// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// Messages accepted before Close arrive, in order and complete, small and large.
//
// Promise (Delivery): `Close` delivers what was accepted, for as long as `WithLinger` says. Its
// error names the targets of what is left. See also TestCloseNamesTargets.
func TestCloseDelivers(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		me, you := newResource(t, a, nil), newResource(t, b, nil)
		const n = 500
		size := func(i int) int { return i % 7 * (i % 11) * 1000 }
		for i := range n {
			try.OK(t, me.SendBytes(bg, you.ID(), uint64(i), make([]byte, size(i))))
		}
		try.OK(t, a.Close())
		for i := range n {
			m := recv(t, you)
			if m.Tag() != uint64(i) || m.Len() != size(i) {
				t.Fatalf("message %d has tag %d and %d bytes, want %d", i, m.Tag(), m.Len(), size(i))
			}
			m.Release()
		}
	})
}

// Close waits for a target that cannot be reached at the moment.
func TestCloseWaits(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	f := newFlaky()
	f.fail.Store(true)
	a := cl.Open(0, rocl.WithTransports(f), rocl.WithLinger(time.Minute))
	b := cl.Open(0, rocl.WithTransports(tcp.New()))
	me, you := newResource(t, a, nil), newResource(t, b, nil)
	for i := range 10 {
		send(t, me, you.ID(), fmt.Sprint(i))
	}
	closed := make(chan error, 1)
	go func() { closed <- a.Close() }()
	// Resources are closed first: from then on, Close waits.
	try.Fails(me.Recv(bg))(t, dispatch.ErrClosed, "receiving while the context closes")
	<-f.tried
	select {
	case err := <-closed:
		t.Fatalf("Close did not wait: %v", err)
	default:
	}
	f.fail.Store(false)
	try.Check(t, <-closed)
	for i := range 10 {
		expect(t, you, fmt.Sprint(i))
	}
}

// nowhere is a transport over which no peer is reached. Unlike tcp it works in a synctest bubble.
type nowhere struct{}

func (nowhere) Name() string                                      { return "nowhere" }
func (nowhere) Listen(string, subsys.Config) (subsys.Port, error) { return nowhere{}, nil }
func (nowhere) Addr() string                                      { return "nowhere://here" }
func (nowhere) Reaches(string) bool                               { return true }
func (nowhere) Close() error                                      { return nil }
func (nowhere) Dial(context.Context, string, subsys.Sink) (subsys.Conn, error) {
	return nil, subsys.ErrNoPeer
}

// Close waits for the linger time and no longer, and says how many messages it gave up.
func TestCloseGivesUp(t *testing.T) {
	for _, linger := range []time.Duration{-time.Second, 0, time.Millisecond, 50 * time.Millisecond, 5 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			reported := make(reports, 10)
			server := directory.NewServer()
			defer server.Close()
			open := func(o ...rocl.Option) *rocl.Context {
				c := try.Get(rocl.Open(bg, append(o, rocl.WithTransports(nowhere{}), icontext.WithDirectory(server.Dialer()))...))(t)
				return c
			}
			a := open(rocl.WithLinger(linger), reported.option())
			b := open()
			defer b.Close()
			me, you := newResource(t, a, nil), newResource(t, b, nil)
			for i := range uint64(3) {
				try.OK(t, me.SendBytes(bg, you.ID(), i, []byte("12345")))
			}
			start := time.Now()
			err := a.Close()
			var fe *dispatch.FlushError
			if !errors.As(err, &fe) || fe.Undelivered != 3 || len(fe.Targets) != 1 || fe.Targets[0].To != you.ID() {
				t.Errorf("Close says %v", err)
			}
			if took := time.Since(start); took != max(linger, 0) {
				t.Errorf("linger %v: Close took %v of virtual time", linger, took)
			}
			for i := range uint64(3) {
				u := <-reported
				if u.From != me.ID() || u.To != you.ID() || u.Tag != i || u.Bytes != 5 || !errors.Is(u.Err, dispatch.ErrClosed) {
					t.Errorf("reported %+v", u)
				}
			}
			if s := a.Stats(); s.Undelivered != 3 {
				t.Errorf("%d undelivered, want 3", s.Undelivered)
			}
			if again := a.Close(); again == nil || again.Error() != err.Error() {
				t.Errorf("the second Close says %v, the first said %v", again, err)
			}
		})
	}
}

// 25 sources answer each part of a sink. The sink ends when it has sent the last part, and reads no
// answer. The sources end without an error, whether their answers still find the sink or not.
func TestLateAcknowledgements(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		sink := open()
		out := newResource(t, sink, nil)
		var sources sync.WaitGroup
		for range 25 {
			c := open(rocl.WithUndelivered(func(u dispatch.Undelivered) { t.Errorf("reported: %+v", u) }))
			in := newResource(t, c, nil)
			send(t, out, in.ID(), "part")
			sources.Go(func() {
				expect(t, in, "part")
				err := in.SendAndForget(bg, out.ID(), 0, []byte("acknowledged"))
				if err != nil && !errors.Is(err, dispatch.ErrGone) {
					t.Error(err)
				}
				try.Check(t, in.Flush(bg))
				try.Check(t, c.Close())
			})
		}
		try.Check(t, sink.Close())
		sources.Wait()
	})
}

// Close without a linger time withdraws the resources too.
func TestCloseWithdrawsWithoutLinger(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	said := make(chan string, 100)
	a, b := cl.Open(0, rocl.WithLinger(0), logging(func(r slog.Record) { said <- r.Message })), cl.Open(0)
	r := newResource(t, a, nil)
	try.Check(t, a.Close())
	try.Fails(b.Lookup(bg, r.ID()))(t, directory.ErrNotFound, "looking up a resource of the closed context")
	close(said)
	for line := range said {
		if strings.Contains(line, "did not withdraw the resources") {
			t.Error(line)
		}
	}
}

// Concurrent calls of Close return when all is done, with the same error.
func TestCloseTogether(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		me, you := newResource(t, a, nil), newResource(t, b, nil)
		for range 100 {
			send(t, me, you.ID(), "hello")
		}
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				try.Check(t, a.Close())
				try.Fails(a.Register(bg, resource.Attrs{}))(t, dispatch.ErrClosed, "registering after Close")
			})
		}
		wg.Wait()
		for range 100 {
			expect(t, you, "hello")
		}
		try.Check(t, a.Close())
	})
}

// Every call on a closed context or its resources fails with ErrClosed, and does not hang.
func TestAfterClose(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	c, other := cl.Open(0), cl.Open(0)
	me, you := newResource(t, c, nil), newResource(t, other, nil)
	send(t, me, you.ID(), "hello") // now there is a flow
	try.OK(t, c.Close())
	calls := map[string]func() error{
		"Register": func() error { _, err := c.Register(bg, resource.Attrs{}); return err },
		"Find":     func() error { _, err := c.Find(bg, resource.Match{}); return err },
		"Lookup":   func() error { _, err := c.Lookup(bg, you.ID()); return err },
		"FindAll": func() error {
			for _, err := range c.FindAll(bg, resource.Match{}) {
				return err
			}
			return nil
		},
		"Watch": func() error {
			for _, err := range c.Watch(bg, resource.Match{}) {
				return err
			}
			return nil
		},
		"Recv":          func() error { _, err := me.Recv(bg); return err },
		"TryRecv":       func() error { _, err := me.TryRecv(); return err },
		"SendBytes":     func() error { return me.SendBytes(bg, you.ID(), 0, nil) },
		"a large one":   func() error { return me.SendBytes(bg, you.ID(), 0, make([]byte, 100<<10)) },
		"Buffer":        func() error { _, err := c.Buffer(1); return err },
		"Update":        func() error { return me.Update(bg, resource.Attrs{}) },
		"CompareAndSet": func() error { _, err := me.CompareAndSet(bg, 1, resource.Attrs{}); return err },
		"Delete":        func() error { return me.Delete(bg) },
	}
	for name, f := range calls {
		try.Fails(f())(t, dispatch.ErrClosed, name)
	}
	try.Check(t, me.Close(), "Resource.Close")
	for m, err := range me.Messages(bg) {
		t.Errorf("message %v, %v", m, err)
	}
	if c.ID().IsZero() || c.Stats().Links != 0 {
		t.Errorf("id %v, %d links", c.ID(), c.Stats().Links)
	}
	gone(t, other, me.ID())
}

// Blocked calls return ErrClosed when their context closes.
func TestCloseWakes(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open(rocl.WithMailbox(1))
		me, slow := newResource(t, a, nil), newResource(t, b, nil)
		// The target accepts one message of any size, and then none. The message behind it on the
		// link tells when it has arrived.
		try.OK(t, me.SendBytes(bg, slow.ID(), 0, make([]byte, 100<<10)))
		behind := newResource(t, b, nil)
		send(t, me, behind.ID(), "hello")
		expect(t, behind, "hello")
		ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
		defer cancel()
		if err := me.SendBytes(ctx, slow.ID(), 0, make([]byte, 100<<10)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		p := try.Get(a.Buffer(100 << 10))(t)
		defer p.Release()
		calls := map[string]func() error{
			"Recv": func() error { _, err := me.Recv(bg); return err },
			"Send": func() error { return me.Send(bg, slow.ID(), 0, p) },
		}
		type result struct {
			name string
			err  error
		}
		results := make(chan result, len(calls))
		for name, f := range calls {
			go func() { results <- result{name, f()} }()
		}
		try.Check(t, a.Close())
		for range calls {
			if r := <-results; !errors.Is(r.err, dispatch.ErrClosed) {
				t.Errorf("%s: %v", r.name, r.err)
			}
		}
	})
}

// A watch ends when its context closes.
func TestCloseEndsWatch(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	ctx := eventually.Context(t)
	closed := make(chan error, 1)
	for ev, err := range c.Watch(ctx, resource.Match{}) {
		if err != nil {
			if !errors.Is(err, dispatch.ErrClosed) || ctx.Err() != nil {
				t.Error(err)
			}
			break
		}
		if ev.Kind == directory.Synced {
			go func() { closed <- c.Close() }()
		}
	}
	try.Check(t, <-closed)
}

// Close withdraws the resources before it waits for accepted messages, so that no search finds a
// resource that refuses messages.
func TestCloseWithdrawsFirst(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	f := newFlaky()
	f.fail.Store(true)
	a, b := cl.Open(0, rocl.WithTransports(f)), cl.Open(0, rocl.WithTransports(f))
	me, you := newResource(t, a, nil), newResource(t, b, nil)
	send(t, me, you.ID(), "hello")
	closed := make(chan error, 1)
	go func() { closed <- a.Close() }()
	if _, err := me.Recv(bg); !errors.Is(err, dispatch.ErrClosed) { // waits until the resource is closed
		t.Error(err)
	}
	<-f.tried
	<-f.tried // Close waits now
	try.Fails(b.Lookup(bg, me.ID()))(t, directory.ErrNotFound, "looking up a closed resource")
	f.fail.Store(false)
	try.Check(t, <-closed)
	try.Fails(b.Lookup(bg, a.ID()))(t, directory.ErrNotFound, "looking up a closed context")
}

// Messages and buffers that the program holds stay readable after Close.
func TestHeldAcrossClose(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		me, you := newResource(t, a, nil), newResource(t, b, nil)
		p := try.Get(b.Buffer(5))(t)
		copy(p.Bytes(), "12345")
		send(t, me, you.ID(), "hello")
		m := recv(t, you)
		try.Check(t, errors.Join(a.Close(), b.Close()))
		if string(m.Bytes()) != "hello" || string(p.Bytes()) != "12345" {
			t.Errorf("%q, %q", m.Bytes(), p.Bytes())
		}
		m.Release()
		p.Release()
	})
}
