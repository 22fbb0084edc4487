// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/subsys/inproc"
)

// A loop over Messages that ends early, or whose body receives in any way, peeks or puts back,
// yields each message once and in order. Over a link and within the process.
func TestMessagesInOrder(t *testing.T) {
	const messages = 4000
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			mb := box(t, b, 1, 0)
			ctx := soon(t)
			f := flow(t, a, mb)
			var sending sync.WaitGroup
			sending.Go(func() {
				for i := range messages {
					if err := f.SendBytes(ctx, 1, uint64(i), make([]byte, i%90)); err != nil {
						t.Error(err)
						return
					}
				}
			})
			next := uint64(0)
			check := func(msg *Message) {
				if msg.Tag() != next || msg.Len() != int(next%90) {
					t.Fatalf("message %d of %d bytes, want %d", msg.Tag(), msg.Len(), next)
				}
			}
			also := func(msg *Message, err error) { // a receive inside the body of the loop
				if err == nil {
					next++
					check(msg)
					msg.Release()
				}
			}
			for next < messages {
				for msg, err := range mb.Messages(ctx) {
					if err != nil {
						t.Fatal(err)
					}
					check(msg)
					switch n := rand.IntN(60); {
					case n == 0:
						if err := mb.PutBack(msg); err != nil {
							t.Fatal(err)
						}
						continue
					case n == 1:
						mb.Len()
					case n == 2:
						if e, err := mb.Peek(); err == nil && e.Tag != next+1 {
							t.Fatalf("peek at %d, want %d", e.Tag, next+1)
						}
					case n == 3:
						also(mb.TryRecv(Tag(next + 1)))
					case n == 4:
						also(mb.TryRecv())
					case n == 5 && next < messages-1:
						_, o, err := RecvAny(ctx, []*Mailbox{mb})
						also(o, err)
					}
					msg.Release()
					if next++; next == messages || rand.IntN(100) == 0 {
						break
					}
				}
			}
			sending.Wait()
			checkEmpty(t, mb)
		})
	}
}

// Several loops and receivers of one mailbox get each message once, and no message waits behind the
// body of a loop while another goroutine could receive it.
func TestMessagesShared(t *testing.T) {
	const messages, loops = 4000, 3
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb, done := box(t, d, 1, 0), box(t, d, 2, 0)
	f, toDone := flow(t, d, mb), flow(t, d, done)
	ctx := soon(t)
	for i := range messages {
		if err := f.SendBytes(ctx, 1, 0, binary.LittleEndian.AppendUint32(nil, uint32(i))); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	seen := map[uint32]bool{}
	got := func(msg *Message) {
		n := binary.LittleEndian.Uint32(msg.Bytes())
		msg.Release()
		mu.Lock()
		defer mu.Unlock()
		if seen[n] {
			t.Errorf("message %d twice", n)
		}
		if seen[n] = true; len(seen) == messages {
			if err := toDone.SendBytes(ctx, 1, 0, nil); err != nil {
				t.Error(err)
			}
		}
	}
	// The body of the first loop does not return before all other messages are received.
	var loop sync.WaitGroup
	loop.Go(func() {
		for msg, err := range mb.Messages(ctx) {
			if err != nil {
				t.Error(err)
				return
			}
			got(msg)
			take(t, done)
			return
		}
	})
	for range loops {
		loop.Go(func() {
			for msg, err := range mb.Messages(ctx) {
				if err != nil {
					t.Error(err)
					return
				}
				got(msg)
				if rand.IntN(300) == 0 {
					if msg, err := mb.TryRecv(); err == nil {
						got(msg)
					}
				}
			}
		})
	}
	loop.Go(func() {
		for {
			msg, err := mb.Recv(ctx)
			if err != nil {
				return
			}
			got(msg)
		}
	})
	for {
		mu.Lock()
		n := len(seen)
		mu.Unlock()
		if n == messages {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("%d messages of %d were received", n, messages)
		}
	}
	mb.Close()
	loop.Wait()
}
