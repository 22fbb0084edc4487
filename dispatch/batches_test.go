// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// serveCalls replies to each request with its own bytes until the mailbox is closed.
func serveCalls(m *Mailbox) {
	for {
		msg, err := m.Recv(context.Background())
		if err != nil {
			return
		}
		_ = m.ReplyBytes(context.Background(), msg, msg.Bytes()) // the caller may have given up
		msg.Release()
	}
}

// callBytes makes one call.
func callBytes(ctx context.Context, m *Mailbox, to *Flow, p []byte) error {
	c, err := m.RequestBytes(ctx, to, 1, p)
	if err != nil {
		return err
	}
	reply, err := c.Wait(ctx)
	if err != nil {
		return err
	}
	reply.Release()
	return nil
}

// Requests of many goroutines go in batches. The best of some attempts counts, as below.
func TestCallsGoInBatches(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // as if other threads got no processor
	var sends atomic.Int64
	w := newWorld()
	a := w.node(t, 1, alias{Transport: tcp.New(), name: "counted", send: func(int) { sends.Add(1) }})
	b := w.node(t, 2, alias{Transport: tcp.New(), name: "counted"})
	ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
	to := flow(t, a, mb)
	go serveCalls(mb)
	defer mb.Close()
	const goroutines, calls, attempts = 32, 200, 10
	for range attempts {
		sends.Store(0)
		var all sync.WaitGroup
		for range goroutines {
			all.Go(func() {
				for range calls {
					if err := callBytes(context.Background(), ma, to, []byte("request")); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		if sends.Load() <= goroutines*calls/4 {
			return
		}
	}
	t.Errorf("%d batches of %d requests", sends.Load(), goroutines*calls)
}

// The requests of one goroutine that has many calls in flight go in batches. So do the replies of a
// goroutine that answers them. On a busy machine a thread may wait for a processor after each few
// calls, and what is queued is written meanwhile. So the best of some attempts counts.
func TestStartedCallsGoInBatches(t *testing.T) {
	var requests, replies atomic.Int64
	w := newWorld()
	a := w.node(t, 1, alias{Transport: tcp.New(), name: "counted", send: func(int) { requests.Add(1) }})
	b := w.node(t, 2, alias{Transport: tcp.New(), name: "counted", send: func(int) { replies.Add(1) }})
	ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
	to := flow(t, a, mb)
	go serveCalls(mb)
	defer mb.Close()
	const inFlight, calls, attempts = 64, 64 * 100, 10
	var window [inFlight]Pending
	for range attempts {
		requests.Store(0)
		replies.Store(0)
		for i := range calls + inFlight {
			p := &window[i%inFlight]
			if i >= inFlight {
				reply := try.Get(p.Wait(t.Context()))(t)
				reply.Release()
			}
			if i < calls {
				var err error
				*p, err = ma.RequestBytes(t.Context(), to, 1, []byte("request"))
				try.OK(t, err)
			}
		}
		if requests.Load() <= calls/4 && replies.Load() <= calls/4 {
			return
		}
	}
	t.Errorf("%d batches of %d requests, %d of replies", requests.Load(), calls, replies.Load())
}

// The goroutine that polls writes the replies that other goroutines have queued.
func TestPollerWritesReplies(t *testing.T) {
	over(t, links(), func(t *testing.T, w *world, tr subsys.Transport) {
		a := w.node(t, 1, tr)
		b := w.node(t, 2, tr, func(c *Config) { c.Poll.Policy = PollAlways })
		ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
		p := try.Get(ma.RequestBytes(soon(t), flow(t, a, mb), 1, nil))(t)
		msg := requestAt(t, mb)
		in := msg.in
		in.l.mu.Lock() // paced without waking the flusher, which would write in the end
		in.l.pace.slot = 1
		in.l.mu.Unlock()
		b.paced.slots[0].Store(in.l)
		b.progress.Paced.Add(1)
		var polls sync.WaitGroup
		polls.Go(func() { _, _ = mb.Recv(t.Context()) }) // until the mailbox is closed
		eventually.True(t, "a goroutine polls", b.Poll)  // nothing arrives: another goroutine makes progress
		try.OK(t, mb.ReplyBytes(soon(t), msg, nil))
		msg.Release()
		awaitReply(t, p)
		mb.Close()
		polls.Wait()
	})
}

// A goroutine that is to write queued frames while another one writes leaves them to that one.
func TestFlushWhileWriting(t *testing.T) {
	writes, goesOn := make(chan struct{}), make(chan struct{})
	var blocks atomic.Bool
	tr := alias{Transport: tcp.New(), name: "blocked", send: func(int) {
		if blocks.CompareAndSwap(true, false) {
			writes <- struct{}{}
			<-goesOn
		}
	}}
	w := newWorld()
	a, b := w.node(t, 1, tr), w.node(t, 2, tr)
	mb := box(t, b, 1, 0)
	to := flow(t, a, mb)
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Timeout)
	defer cancel()
	receive := func(want string) {
		t.Helper()
		msg := try.Get(mb.Recv(ctx))(t)
		if got := string(msg.Bytes()); got != want {
			t.Fatalf("received %q, want %q", got, want)
		}
		msg.Release()
	}
	send := func(s string) {
		t.Helper()
		try.OK(t, to.SendBytes(ctx, 1, 1, []byte(s)))
	}
	send("connects")
	receive("connects")
	to.l.mu.Lock() // a paced link, without waking the flusher, which would write in the end
	to.l.pace.slot = 1
	to.l.mu.Unlock()
	a.paced.slots[0].Store(to.l)
	a.progress.Paced.Add(1)
	send("first")
	blocks.Store(true)
	var writer sync.WaitGroup
	writer.Go(func() { a.flushAll(false) })
	<-writes
	send("second")
	a.flushAll(false)
	close(goesOn)
	receive("first")
	receive("second")
	writer.Wait()
}

// Promise (Waiting): A goroutine that is handed a message runs before the receiver polls again.
// Requests and replies of many goroutines go in batches. See also TestCallsGoInBatches.
func TestHandedOverGoesFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // makes the order in which goroutines run known
	w := newWorld()
	tr := transports()["tcp"]
	a, b := w.node(t, 1, tr), w.node(t, 2, tr)
	mb := box(t, b, 1, 0)
	to := flow(t, a, mb)
	var first atomic.Int32
	for range 20 {
		try.OK(t, to.SendBytes(context.Background(), 1, 1, []byte("handed over")))
		msg := try.Get(mb.Recv(context.Background()))(t)
		b.progress.Lock() // so that the next message waits in the socket
		try.OK(t, to.SendBytes(context.Background(), 1, 1, []byte("next")))
		b.progress.Unlock()
		var handled atomic.Bool
		go func() {
			msg.Release()
			handled.Store(true)
		}()
		next := try.Get(mb.Recv(context.Background()))(t)
		if handled.Load() {
			first.Add(1)
		}
		next.Release()
	}
	if n := first.Load(); n < 15 { // the keeper may have received the next one
		t.Errorf("the goroutine with the message ran first in %d of 20 cases", n)
	}
}
