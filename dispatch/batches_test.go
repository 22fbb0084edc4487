// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// Requests of many goroutines, and the replies to them, go in batches.
func TestCallsGoInBatches(t *testing.T) {
	var sends atomic.Int64
	tr := alias{Transport: tcp.New(), name: "counted", send: func(int) { sends.Add(1) }}
	w := newWorld()
	a, b := w.node(t, 1, tr), w.node(t, 2, tr)
	ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
	to := flow(t, a, mb)
	go serveCalls(mb)
	defer mb.Close()
	const goroutines, calls = 32, 200
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
	if n := sends.Load(); n > goroutines*calls { // of 2 messages for each call
		t.Errorf("%d batches of %d requests and as many replies", n, goroutines*calls)
	}
}

// A goroutine that is to write what is queued, while another one writes, leaves it to that one.
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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	receive := func(want string) {
		t.Helper()
		msg, err := mb.Recv(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(msg.Bytes()); got != want {
			t.Fatalf("received %q, want %q", got, want)
		}
		msg.Release()
	}
	send := func(s string) {
		t.Helper()
		if err := to.SendBytes(ctx, 1, 1, []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	send("connects")
	receive("connects")
	to.l.mu.Lock() // a paced link, without the flusher: it would write in the end
	to.l.stream.slot = 1
	to.l.mu.Unlock()
	a.streams.slots[0].Store(to.l)
	a.streams.count.Add(1)
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

// A message that was received goes to another goroutine: that runs before the receiver polls.
func TestHandedOverGoesFirst(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // which says what runs when
	w := newWorld()
	tr := transports()["tcp"]
	a, b := w.node(t, 1, tr), w.node(t, 2, tr)
	mb := box(t, b, 1, 0)
	to := flow(t, a, mb)
	var first atomic.Int32
	for range 20 {
		if err := to.SendBytes(context.Background(), 1, 1, []byte("handed over")); err != nil {
			t.Fatal(err)
		}
		msg, err := mb.Recv(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		b.take() // so that the next message waits in the socket
		if err := to.SendBytes(context.Background(), 1, 1, []byte("next")); err != nil {
			t.Fatal(err)
		}
		b.give()
		var handled atomic.Bool
		go func() {
			msg.Release()
			handled.Store(true)
		}()
		next, err := mb.Recv(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if handled.Load() {
			first.Add(1)
		}
		next.Release()
	}
	if n := first.Load(); n < 15 { // the keeper may have received the next one
		t.Errorf("the goroutine with the message ran first in %d of 20 cases", n)
	}
}

// However calls end, no goroutine stays counted as woken: those that poll would give way to it.
func TestWokenAreCounted(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
			to := flow(t, a, mb)
			go serveCalls(mb)
			var all sync.WaitGroup
			for g := range 16 {
				all.Go(func() {
					random := rand.New(rand.NewPCG(1, uint64(g)))
					for i := range 100 {
						ctx, cancel := context.WithCancel(context.Background())
						if random.IntN(2) == 0 {
							time.AfterFunc(time.Duration(random.IntN(200))*time.Microsecond, cancel)
						}
						err := callBytes(ctx, ma, to, fmt.Append(nil, g, i))
						if err != nil && ctx.Err() == nil {
							t.Errorf("call %d of %d: %v", i, g, err)
						}
						cancel()
					}
				})
			}
			all.Wait()
			mb.Close()
			if n := a.woken.Load(); n != 0 {
				t.Errorf("%d goroutines are counted as woken, and none waits", n)
			}
		})
	}
}
