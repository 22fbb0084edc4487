// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// small gives a dispatcher a pool of so many bytes.
func small(bytes int64) func(*Config) {
	return func(c *Config) { c.Pool = buffers.New(buffers.WithLimit(bytes)) }
}

// inflowOf returns the account of from with a mailbox of d.
func inflowOf(d, from *Dispatcher, mb *Mailbox) *inflow {
	l, _ := onlyLink(d, from)
	l.d.progress.Lock()
	defer l.d.progress.Unlock()
	return l.inflow(mb.serial)
}

// idle waits until the count that f returns no longer grows, and returns it.
func idle(t *testing.T, f func() uint64) uint64 {
	t.Helper()
	last, same := f(), 0
	eventually.True(t, "the count stays as it is", func() bool {
		if n := f(); n != last {
			last, same = n, 0
		}
		same++
		return same == 100
	})
	return last
}

// connsLost returns how often links of the contexts have lost a connection and resumed. Unlike the
// connections that are accepted, it does not grow when a first handshake takes too long for the
// dialler, which a loaded machine may cause.
func connsLost(ds ...*Dispatcher) (n uint64) {
	for _, d := range ds {
		n += d.Stats().Resumed
	}
	return n
}

// payload returns the payload of message i.
func payload(i int) []byte {
	sizes := []int{0, 100, 1500, 5_000, 30_000, 100, 100, 9_000, 70_000, 3_000}
	return bytes.Repeat([]byte{byte(i)}, sizes[i%len(sizes)])
}

// A context with less memory than the waiting messages need stops its senders. No connection is
// lost, and nothing is read again and again. An empty mailbox is reached, and when receivers
// continue, all messages arrive in order.
//
// Promise (Memory): A context whose memory is full stops its senders without cutting connections.
// When receivers go on, all messages arrive in order. See also TestMemoryHeld.
func TestMemoryBelowWhatWaits(t *testing.T) {
	const messages = 600 // 7 MB
	for name, tr := range allTransports(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr, small(1<<20))
			full, empty := box(t, b, 1, 0), box(t, b, 2, 0)
			f, g := flow(t, a, full), flow(t, a, empty)
			sent := make(chan error, 1)
			go func() {
				for i := range messages {
					if err := f.SendBytes(soon(t), 1, uint64(i), payload(i)); err != nil {
						sent <- fmt.Errorf("message %d: %w", i, err)
						return
					}
				}
				sent <- nil
			}()
			eventually.True(t, "messages", func() bool { n, _ := full.Len(); return n > 20 })
			lost := connsLost(a, b)
			idle(t, func() uint64 { n, _ := full.Len(); return uint64(n) })
			if _, stored := full.Len(); stored > 1<<20 && name != "shm" && name != "inproc" {
				t.Errorf("%d bytes are stored, in a pool of 1 MiB", stored)
			}
			for i := range 20 {
				if err := g.SendBytes(soon(t), 1, uint64(i), payload(1)); err != nil {
					t.Fatalf("to an empty mailbox: %v", err)
				}
				take(t, empty)
			}
			reads := idle(t, func() uint64 { return b.count.Reads.Load() + a.count.Reads.Load() })
			if reads > 20*messages {
				t.Errorf("%d reads", reads)
			}
			for i := range messages {
				msg, err := full.Recv(soon(t))
				if err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
				if msg.Tag() != uint64(i) || !bytes.Equal(msg.Bytes(), payload(i)) {
					t.Fatalf("message %d: tag %d, %d bytes", i, msg.Tag(), msg.Len())
				}
				msg.Release()
			}
			if err := <-sent; err != nil {
				t.Error(err)
			}
			try.Equal(t, connsLost(a, b), lost, "connections lost")
		})
	}
}

// A message in pieces that there is no memory for waits on its connection, with any transport. The
// link continues when memory is released. Over shared memory and within the process, pieces travel
// when a link is moved there in the midst of a message.
func TestPieceWaitsForMemory(t *testing.T) {
	const size, limit = 1 << 20, 8 << 20
	for name, tr := range allLinks(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			reported := make(chan Undelivered, 10)
			a, b := w.node(t, 1, tr, func(c *Config) { c.Undelivered = func(u Undelivered) { reported <- u } }), w.node(t, 2, tr, small(limit))
			mb := box(t, b, 1, 0)
			talk(t, a, b, mb, 9)
			lost := connsLost(a, b)
			f, in := flow(t, a, mb), inflowOf(b, a, mb)
			mb.mu.Lock()
			mb.credit.Grant(&in.Account, 2*size)
			mb.mu.Unlock()
			f.l.mu.Lock()
			f.credit.Grant(f.credit.Limit() + 2*size)
			f.l.canSplit = true
			f.l.mu.Unlock()
			// The message has begun before its pieces are denied memory.
			in.l.d.progress.Lock()
			err := in.l.onBegin(&subsys.Frame{Header: subsys.Header{Type: wire.TypeBegin, Tag: 1, Src: 1, Dst: mb.serial}, Data: binary.LittleEndian.AppendUint32(nil, size)})
			in.l.d.progress.Unlock()
			if err != nil {
				t.Fatal(err)
			}
			var held []*buffers.Buffer
			for {
				h, err := b.cfg.Pool.GetReserved(256 << 10)
				if err != nil {
					break
				}
				held = append(held, h)
			}
			whole := noise(t, a, size, 1)
			f.l.mu.Lock()
			f.credit.Take(credit.Charge(size))
			f.l.s.Queue(&f.line, &subsys.Frame{Header: subsys.Header{Type: wire.TypeData, Tag: 1, Src: 1, Dst: mb.serial, Len: size}, Data: whole.Bytes(), Buf: whole}, 0)
			for f.line.IsWaiting() { // as feedLinesLocked does behind a Begin
				f.l.s.Number(f.l.s.Upcoming(true), true)
			}
			f.l.writeLocked()
			f.l.mu.Unlock()
			if err := f.SendBytes(soon(t), 1, 2, []byte("behind")); err != nil {
				t.Fatal(err)
			}
			idle(t, func() uint64 { return b.count.Reads.Load() + a.count.Writes.Load() })
			for _, h := range held {
				h.Release()
			}
			for i, n := range []int{size, len("behind")} {
				got := make(chan *Message, 1)
				go func() {
					m, err := mb.Recv(soon(t))
					if err != nil {
						t.Error(err)
					}
					got <- m
				}()
				select {
				case m := <-got:
					if m == nil || m.Tag() != uint64(i+1) || m.Len() != n || i == 0 && !intact(m.Bytes()) {
						t.Fatalf("%+v in place of message %d of %d bytes", m, i+1, n)
					}
					m.Release()
				case u := <-reported:
					mb.Close()
					t.Fatalf("message %d of %d bytes is reported: %v", u.Tag, u.Bytes, u.Err)
				}
			}
			try.Equal(t, connsLost(a, b), lost, "connections lost")
		})
	}
}

// A context whose program holds the memory takes no more messages, and continues when the program
// releases the memory.
func TestMemoryHeld(t *testing.T) {
	const messages = 300
	for name, tr := range allLinks(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr, small(1<<20))
			mb := box(t, b, 1, 0)
			f := flow(t, a, mb)
			if err := f.SendBytes(soon(t), 1, 0, payload(0)); err != nil {
				t.Fatal(err)
			}
			take(t, mb)
			lost := connsLost(a, b)
			ctx, stop := context.WithCancel(soon(t))
			defer stop()
			var held []*buffers.Buffer
			for {
				h, err := b.cfg.Pool.Get(16 << 10)
				if err != nil {
					break
				}
				held = append(held, h)
			}
			sent := make(chan error, 1)
			go func() {
				for i := range messages {
					if err := f.SendBytes(ctx, 1, uint64(i), payload(i)); err != nil {
						sent <- err
						return
					}
				}
				sent <- nil
			}()
			received := make(chan error, 1)
			var done atomic.Int64
			go func() {
				for i := range messages {
					msg, err := mb.Recv(ctx)
					if err != nil {
						received <- err
						return
					}
					if msg.Tag() != uint64(i) || !bytes.Equal(msg.Bytes(), payload(i)) {
						received <- fmt.Errorf("message %d: tag %d, %d bytes", i, msg.Tag(), msg.Len())
						return
					}
					done.Add(1)
					msg.Release()
				}
				received <- nil
			}()
			idle(t, func() uint64 { return uint64(done.Load()) })
			reads := idle(t, func() uint64 { return b.count.Reads.Load() + a.count.Reads.Load() + b.count.Polls.Load()/100 })
			if reads > 100*messages {
				t.Errorf("%d reads", reads)
			}
			for _, h := range held {
				h.Release()
			}
			for _, err := range []error{<-sent, <-received} {
				if err != nil {
					t.Error(err)
				}
			}
			try.Equal(t, connsLost(a, b), lost, "connections lost")
		})
	}
}

// Two contexts that fill their memory with messages to each other still read each other's
// acknowledgements and credit.
func TestMemoryFullOfSent(t *testing.T) {
	const messages = 400
	for name, tr := range allTransports(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			ds := [2]*Dispatcher{w.node(t, 1, tr, small(1<<20)), w.node(t, 2, tr, small(1<<20))}
			boxes := [2]*Mailbox{box(t, ds[0], 1, 0), box(t, ds[1], 1, 0)}
			ctx := soon(t)
			failed := make(chan error, 4)
			var full atomic.Int32
			for side := range ds {
				d, f := ds[side], flow(t, ds[side], boxes[1-side])
				go func() {
					refused := false
					for i := range messages {
						for {
							err := f.SendBytes(ctx, 1, uint64(i), payload(i))
							if err == nil {
								break
							}
							if !errors.Is(err, buffers.ErrLimit) || ctx.Err() != nil {
								failed <- fmt.Errorf("message %d of %d: %w", i, side, err)
								return
							}
							if !refused {
								refused = true
								full.Add(1)
							}
							b, err := d.cfg.Pool.GetWait(ctx, len(payload(i)))
							if err == nil {
								b.Release()
							}
						}
					}
					failed <- nil
				}()
			}
			eventually.True(t, "messages", func() bool {
				x, _ := boxes[0].Len()
				y, _ := boxes[1].Len()
				return x > 0 && y > 0
			})
			idle(t, func() uint64 { return ds[0].count.Reads.Load() + ds[1].count.Reads.Load() })
			lost := connsLost(ds[:]...) // both contexts dial, and may refuse each other at first
			for side := range ds {
				go func() {
					for i := range messages {
						msg, err := boxes[side].Recv(ctx)
						if err != nil {
							failed <- fmt.Errorf("receiving message %d at %d: %w", i, side, err)
							return
						}
						if msg.Tag() != uint64(i) || !bytes.Equal(msg.Bytes(), payload(i)) {
							failed <- fmt.Errorf("message %d: tag %d, %d bytes", i, msg.Tag(), msg.Len())
							return
						}
						msg.Release()
					}
					failed <- nil
				}()
			}
			for range 4 {
				if err := <-failed; err != nil {
					t.Error(err)
				}
			}
			try.Equal(t, connsLost(ds[:]...), lost, "connections lost")
		})
	}
}
