// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys/inproc"
)

// A numbered message has the number of its sender as tag, and its place among the messages of that
// sender in its payload.
func numbered(n int) []byte {
	return binary.LittleEndian.AppendUint32(make([]byte, 0, 900)[:rand.IntN(2)*rand.IntN(800)], uint32(n))
}

// Messages within the process arrive once and in order, from several senders at a time, with and
// without a receiver that waits, and however they are received.
func TestLocalMessages(t *testing.T) {
	const senders, messages, receivers = 5, 3000, 2
	for _, limit := range []int{0, FirstCredit} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			w, near := newWorld(), inproc.NewNetwork().Transport()
			a, b := w.node(t, 1, near), w.node(t, 2, near)
			mb := box(t, a, 1, limit)
			ctx := soon(t)
			var sending sync.WaitGroup
			for s := range senders {
				d := []*Dispatcher{a, b}[s%2]
				f := flow(t, d, mb)
				sending.Go(func() {
					for i := range messages {
						if err := sendSomehow(ctx, f, uint64(s), numbered(i)); err != nil {
							t.Errorf("message %d of sender %d: %v", i, s, err)
							return
						}
					}
				})
			}
			var mu sync.Mutex // of next: one goroutine at a time receives, as they would change places otherwise
			var next [senders]int
			left := senders * messages
			var receiving sync.WaitGroup
			for range receivers {
				receiving.Go(func() {
					for {
						mu.Lock()
						if left == 0 {
							mu.Unlock()
							return
						}
						msg, err := receiveSomehow(ctx, mb)
						if err != nil {
							t.Error(err)
							mu.Unlock()
							return
						}
						if msg != nil {
							p := msg.Bytes()
							if got := int(binary.LittleEndian.Uint32(p[len(p)-4:])); got != next[msg.Tag()] {
								t.Errorf("message %d of sender %d, want %d", got, msg.Tag(), next[msg.Tag()])
							}
							next[msg.Tag()]++
							left--
							msg.Release()
						}
						mu.Unlock()
						if rand.IntN(100) == 0 {
							runtime.Gosched()
						}
					}
				})
			}
			sending.Wait()
			receiving.Wait()
			checkEmpty(t, mb)
		})
	}
}

// sendSomehow sends a message in one of the ways that there are.
func sendSomehow(ctx context.Context, f *Flow, tag uint64, p []byte) error {
	if rand.IntN(2) == 0 {
		return f.SendBytes(ctx, 1, tag, p)
	}
	b, err := f.dispatcher().cfg.Pool.Get(len(p))
	if err != nil {
		return err
	}
	copy(b.Bytes(), p)
	err = ErrFull
	if rand.IntN(4) == 0 {
		err = f.TrySend(context.Background(), 1, tag, b)
	}
	if errors.Is(err, ErrFull) {
		err = f.Send(ctx, 1, tag, b)
	}
	if err != nil {
		b.Release()
	}
	return err
}

// receiveSomehow receives a message in one of the ways that there are, or none.
func receiveSomehow(ctx context.Context, mb *Mailbox) (msg *Message, err error) {
	switch tag := uint64(rand.IntN(5)); rand.IntN(40) {
	case 0:
		msg, err = mb.TryRecv(Tag(tag))
	case 1:
		msg, err = mb.TryRecv(Tags(tag, tag+1))
	case 2:
		_, err = mb.Peek(Tag(tag))
	case 3:
		if msg, err = mb.TryRecv(); err == nil {
			err = mb.PutBack(msg)
			msg = nil
		}
	case 4, 5:
		_, msg, err = RecvAny(ctx, []*Mailbox{mb})
	default:
		msg, err = mb.TryRecv()
		if rand.IntN(2) == 0 && errors.Is(err, ErrEmpty) {
			msg, err = mb.Recv(ctx)
		}
	}
	if errors.Is(err, ErrEmpty) {
		err = nil
	}
	return msg, err
}

// checkEmpty checks that nothing is stored in a mailbox, and that its senders have their credit.
func checkEmpty(t *testing.T, mb *Mailbox) {
	t.Helper()
	if n, stored := mb.Len(); n != 0 || stored != 0 {
		t.Errorf("%d messages of %d bytes are left", n, stored)
	}
	mb.mu.Lock()
	defer mb.mu.Unlock()
	promise := uint64(0)
	for in := range mb.inflows {
		if in.Stored() != 0 || in.queue != nil && in.queue.sent != in.Received() {
			t.Errorf("%d of %d bytes are consumed", in.Received()-in.Stored(), in.Received())
		}
		promise += in.Granted() - in.Received() + in.Stored()
	}
	if promise != mb.credit.Promised() {
		t.Errorf("%d bytes are promised, and the senders have %d", mb.credit.Promised(), promise)
	}
}

// A receiver that polls for messages within the process does not hold virtual time: the sender may
// wait for that (testing/synctest).
func TestLocalSpinInVirtualTime(t *testing.T) {
	for _, policy := range []PollPolicy{PollAdaptive, PollAlways} {
		t.Run(policy.String(), func(t *testing.T) {
			inSimulation(t, func(t *testing.T, n *simulated) {
				a := newWorld().node(t, 1, n.transport(), func(c *Config) { c.Poll.Policy = policy })
				mb := box(t, a, 1, 0)
				f := flow(t, a, mb)
				const messages = 10 * streamLeast
				go func() {
					for i := range messages {
						if i == messages/2 {
							time.Sleep(time.Hour) // virtual: the receiver polls meanwhile
						}
						try.Check(t, f.SendBytes(t.Context(), 1, 0, numbered(i)))
					}
				}()
				for range messages {
					msg := try.Get(mb.Recv(t.Context()))(t)
					msg.Release()
				}
			})
		})
	}
}

// A sender that waits for room goes on once half of its window is free, or after heldBack if the
// receiver has made less room and stopped.
func TestLocalSenderHeldBack(t *testing.T) {
	inSimulation(t, func(t *testing.T, n *simulated) {
		a := newWorld().node(t, 1, n.transport())
		mb := box(t, a, 1, FirstCredit)
		f := flow(t, a, mb)
		var sent atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		var sending sync.WaitGroup
		sending.Go(func() {
			for f.SendBytes(ctx, 1, 0, make([]byte, 64)) == nil {
				sent.Add(1)
			}
		})
		receive := func(count int64) {
			for range count {
				msg := try.Get(mb.Recv(ctx))(t)
				msg.Release()
			}
			synctest.Wait()
		}
		synctest.Wait()
		full := sent.Load()
		receive(1)
		if now := sent.Load(); now != full {
			t.Errorf("after 1 message received of %d, %d sent at once", full, now-full)
		}
		time.Sleep(heldBack) // virtual
		synctest.Wait()
		if now := sent.Load(); now != full+1 {
			t.Errorf("after 1 message received of %d and %v, %d sent", full, heldBack, now-full)
		}
		receive(full * 3 / 4)
		if now := sent.Load(); now < full+full/2 {
			t.Errorf("after %d messages received of %d, %d sent", full*3/4+1, full, now-full)
		}
		stop()
		sending.Wait()
	})
}

// On one processor, a sender that need not wait makes way for a receiver that it has woken: it does
// not fill the mailbox first.
func TestSenderMakesWay(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	m := box(t, d, 1, 0)
	f := flow(t, d, m)
	ctx := soon(t)
	const messages = 100 * runMost
	var received atomic.Int32
	var receiving sync.WaitGroup
	receiving.Go(func() {
		for range messages {
			msg, err := m.Recv(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			msg.Release()
			received.Add(1)
		}
	})
	for !m.isWaiting.Load() {
		runtime.Gosched()
	}
	for range messages {
		try.OK(t, f.SendBytes(ctx, 1, 7, nil))
	}
	if received.Load() == 0 {
		t.Errorf("the receiver has not run while %d messages were sent", messages)
	}
	receiving.Wait()
}

// Messages of each goroutine keep their order where several goroutines send by one flow to a
// receiver that waits again and again. A goroutine may stand still at any instruction: one that has
// listed the queue only half must not let another one overtake itself.
func TestLocalOrderOfSenders(t *testing.T) {
	const senders, messages = 4, 50_000
	w, near := newWorld(), inproc.NewNetwork().Transport()
	m := box(t, w.node(t, 1, near), 1, 0)
	f := flow(t, w.node(t, 2, near), m)
	ctx := soon(t)
	var p [64]byte
	var sending sync.WaitGroup
	defer sending.Wait()
	for s := range senders {
		sending.Go(func() {
			for i := range messages {
				if err := f.SendBytes(ctx, uint32(s), uint64(i), p[:]); err != nil {
					t.Errorf("message %d of sender %d: %v", i, s, err)
					return
				}
			}
		})
	}
	var next [senders]uint64
	isWrong := false
	for range senders * messages {
		msg := try.Get(m.Recv(ctx))(t)
		s := msg.From().Serial()
		if msg.Tag() != next[s] && !isWrong {
			t.Errorf("message %d of sender %d came in place of %d", msg.Tag(), s, next[s])
			isWrong = true
		}
		next[s]++
		msg.Release()
	}
}
