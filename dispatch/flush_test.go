// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/eventually"
	"github.com/rocl-go/rocl/resource"
)

// After Flush every message that was accepted before is in its mailbox: small messages, large ones,
// messages that travel in pieces, and messages behind these.
func TestFlush(t *testing.T) {
	for name, tr := range allTransports(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			me, mb := box(t, a, 1, 0), box(t, b, 1, 0)
			f := flow(t, a, mb)
			total := 0
			for round := range 20 {
				for _, n := range []int{0, 100, 3_000, 300_000, 10, 100_000} {
					if err := f.try(soon(t), uint64(round), n); err != nil {
						t.Fatal(err)
					}
					total++
				}
				flush := me.Flush
				if round%2 == 0 {
					flush = a.Flush
				}
				if err := flush(soon(t)); err != nil {
					t.Fatal(err)
				}
				if n, _ := mb.Len(); n != total {
					t.Fatalf("after Flush %d messages of %d are in the mailbox", n, total)
				}
				if round%4 == 3 {
					for ; total > 0; total-- {
						take(t, mb)
					}
				}
			}
		})
	}
}

// Flush says exactly how many of the accepted messages were not delivered because their resource
// was gone, while the receiver's context sends acknowledgements all the time. It tells each of them
// once.
func TestFlushTellsUndelivered(t *testing.T) {
	for name, tr := range links() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			me, other := box(t, a, 1, 0), box(t, a, 2, 0)
			stop := make(chan struct{})
			ended := make(chan struct{})
			received := make(chan struct{}, 1)
			go func() { // the frames of this goroutine carry acknowledgements
				defer close(ended)
				back := flow(t, b, other)
				for {
					select {
					case <-stop:
						return
					default:
					}
					if back.SendBytes(context.Background(), 9, 0, []byte("noise")) != nil {
						return
					}
					<-received
				}
			}()
			go func() {
				for {
					m, err := other.Recv(context.Background())
					if err != nil {
						return
					}
					m.Release()
					received <- struct{}{}
				}
			}()
			for round := range 50 {
				mb := box(t, b, uint32(round+1), 0)
				f := flow(t, a, mb)
				if err := f.try(soon(t), 0, 10); err != nil {
					t.Fatal(err)
				}
				if err := me.Flush(soon(t)); err != nil {
					t.Fatal(err)
				}
				take(t, mb)
				mb.Close()
				accepted := 0
				for _, n := range []int{10, 3000, 300_000, 10, 10} {
					err := f.try(soon(t), 1, n)
					if err == nil {
						accepted++
					} else if !errors.Is(err, ErrGone) {
						t.Fatal(err)
					}
				}
				err := me.Flush(soon(t))
				var fe *FlushError
				switch {
				case accepted == 0 && err == nil:
				case !errors.As(err, &fe) || fe.Undelivered != accepted || fe.Waiting != 0 || !errors.Is(err, ErrGone) || errors.Is(err, ErrUnreachable):
					t.Fatalf("round %d: %d messages were accepted in vain: %v", round, accepted, err)
				}
				if err := me.Flush(soon(t)); err != nil {
					t.Fatalf("they are reported twice: %v", err)
				}
			}
			close(stop)
			<-ended
			if err := a.Flush(soon(t)); !errors.Is(err, ErrGone) {
				t.Errorf("the context's Flush: %v", err)
			}
			if err := other.Flush(soon(t)); err != nil {
				t.Errorf("another resource's messages are reported: %v", err)
			}
			other.Close()
		})
	}
}

// Flush fails when the peer is out of reach for too long, with the number of messages that were
// under way.
func TestFlushUnreachable(t *testing.T) {
	for name, tr := range links() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a := w.node(t, 1, tr, func(c *Config) { c.GiveUp = 3 * time.Second })
			me := box(t, a, 1, 0)
			peer := resource.MakeGID(1, 2, 0)
			w.mu.Lock()
			w.at[peer] = nil // without an address, a search for the peer goes on
			w.mu.Unlock()
			f, err := a.Flow(peer, 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{10, 10_000, 10} {
				if err := f.try(soon(t), 0, n); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithCancel(soon(t))
			cancel()
			var fe *FlushError
			if err := me.Flush(ctx); !errors.As(err, &fe) || fe.Waiting != 3 || fe.Undelivered != 0 || !errors.Is(err, context.Canceled) {
				t.Errorf("while the peer is looked for: %v", err)
			}
			if err := me.Flush(soon(t)); !errors.As(err, &fe) || fe.Waiting != 0 || fe.Undelivered != 3 || !errors.Is(err, ErrUnreachable) {
				t.Errorf("when it was given up: %v", err)
			}
		})
	}
}

// Flush of a resource does not wait for messages of other resources, and Flush of the
// context does.
func TestFlushOfOneResource(t *testing.T) {
	w := newWorld()
	tr := transports()["tcp"]
	a, b := w.node(t, 1, tr, func(c *Config) { c.GiveUp = time.Hour }), w.node(t, 2, tr)
	me, other := box(t, a, 1, 0), box(t, a, 2, 0)
	nobody := resource.MakeGID(1, 3, 0) // has no address
	defer w.setGone(nobody, true)       // then a can close
	f, err := a.Flow(nobody, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SendBytes(soon(t), other.serial, 0, []byte("stuck")); err != nil {
		t.Fatal(err)
	}
	mb := box(t, b, 1, 0)
	if err := flow(t, a, mb).try(soon(t), 0, 10); err != nil {
		t.Fatal(err)
	}
	if err := me.Flush(soon(t)); err != nil {
		t.Error(err)
	}
	if n, _ := mb.Len(); n != 1 {
		t.Errorf("%d messages are in the mailbox", n)
	}
	ctx, cancel := context.WithCancel(soon(t))
	cancel()
	var fe *FlushError
	for what, err := range map[string]error{"the other resource": other.Flush(ctx), "the context": a.Flush(ctx)} {
		if !errors.As(err, &fe) || fe.Waiting != 1 {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Flush returns when its context closes, with the messages that were not delivered.
func TestFlushAsContextCloses(t *testing.T) {
	w := newWorld()
	a := w.node(t, 1, transports()["tcp"])
	me := box(t, a, 1, 0)
	f, err := a.Flow(resource.MakeGID(1, 3, 0), 1) // the context has no address
	if err != nil {
		t.Fatal(err)
	}
	if err := f.try(soon(t), 0, 10); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 2)
	go func() { got <- me.Flush(soon(t)) }()
	go func() { got <- a.Flush(soon(t)) }()
	ctx, cancel := context.WithCancel(soon(t))
	cancel()
	a.Close(ctx)
	eventually.Returns(t, "Flush", func() {
		for range 2 {
			if err := <-got; !errors.Is(err, ErrClosed) {
				t.Errorf("Flush as the context closed: %v", err)
			}
		}
	})
	if err := me.Flush(soon(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("Flush of a closed resource: %v", err)
	}
}

// Wait returns when the library no longer needs a buffer: when its message was delivered over the
// last of its links, or was given up.
func TestWaitForBuffer(t *testing.T) {
	for name, tr := range links() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr, func(c *Config) { c.GiveUp = time.Hour }), w.node(t, 2, tr)
			mb := box(t, b, 1, 0)
			nobody := resource.MakeGID(1, 3, 0) // the context has no address
			lost, err := a.Flow(nobody, 1)
			if err != nil {
				t.Fatal(err)
			}
			p := noise(t, a, 10_000, 1)
			if err := p.Wait(soon(t)); err != nil {
				t.Errorf("a buffer that was not sent: %v", err)
			}
			for range 20 {
				p.Retain()
				if err := flow(t, a, mb).Send(soon(t), 1, 0, p); err != nil {
					t.Fatal(err)
				}
				if err := p.Wait(soon(t)); err != nil {
					t.Fatal(err)
				}
				if n, _ := mb.Len(); n != 1 {
					t.Fatalf("%d messages are in the mailbox", n)
				}
				take(t, mb)
			}
			p.Retain()
			if err := lost.Send(soon(t), 1, 0, p); err != nil {
				t.Fatal(err)
			}
			p.Retain()
			if err := flow(t, a, mb).Send(soon(t), 1, 0, p); err != nil {
				t.Fatal(err)
			}
			w.setGone(nobody, true)
			if err := a.Flush(soon(t)); err == nil || p.State() != buffers.Delivered {
				// The flush ends when the other link has been given up.
				t.Errorf("flush: %v; the buffer is %v", err, p.State())
			}
			take(t, mb)
			eventually.True(t, "the link that has ended is forgotten", func() bool { return a.Stats().Links == 1 })
			w.setGone(nobody, false)
			if lost, err = a.Flow(nobody, 1); err != nil {
				t.Fatal(err)
			}
			p.Retain()
			if err := lost.Send(soon(t), 1, 0, p); err != nil {
				t.Fatal(err)
			}
			p.Retain()
			if err := flow(t, a, mb).Send(soon(t), 1, 0, p); err != nil {
				t.Fatal(err)
			}
			take(t, mb)
			ctx, cancel := context.WithCancel(soon(t))
			cancel()
			if err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("one of two sends is under way: %v", err)
			}
			w.setGone(nobody, true)
			if err := p.Wait(soon(t)); err != nil || p.State() != buffers.Delivered {
				t.Errorf("when the link was given up: %v, the buffer is %v", err, p.State())
			}
			p.Release()
		})
	}
}

// Each loss is taken together with its reason, even if losses are counted while others are taken.
// Flush returns nil without a reason, so a count without one would be a report that is lost.
func TestLossesHaveReasons(t *testing.T) {
	const each = 500_000
	var l losses
	var adding sync.WaitGroup
	for _, err := range lossErrs {
		adding.Go(func() {
			for range each {
				l.add(err)
			}
		})
	}
	total := 0
	for total < each*len(lossErrs) {
		n, errs := l.take()
		if n > 0 && len(errs) == 0 || n == 0 && len(errs) > 0 {
			t.Fatalf("%d losses with %d reasons", n, len(errs))
		}
		total += n
	}
	adding.Wait()
	if n, _ := l.take(); total != each*len(lossErrs) || n > 0 {
		t.Errorf("%d losses were taken, and %d remain", total, n)
	}
}
