// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// The requests of calls that are given up before a receiver takes them leave the mailbox, whether
// the calls are cancelled or their contexts end, and no goroutine is left for any of them. Other
// messages stay, in order.
//
// Promise (Calls): A request that was given up before it was received leaves the mailbox. A
// receiver that has it learns that by `Message.OnCancel`. See also TestCancelledBehindLarge.
func TestCancelledRequestsLeave(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		ctx, cancel := context.WithCancel(context.Background())
		const n = 300
		var calls []Pending
		for i := range n {
			p := try.Get(ma.RequestBytes(soon(t), f, uint64(i), []byte("request")))(t)
			calls = append(calls, p)
			if i%100 == 0 {
				try.OK(t, f.SendBytes(soon(t), 1, uint64(n+i), nil))
			}
		}
		eventually.True(t, "all is stored", func() bool { b.progress.Poll(true); got, _ := mb.Len(); return got == n+3 })
		before := runtime.NumGoroutine()
		cancel()
		for i, p := range calls {
			switch i % 3 {
			case 0:
				p.Cancel(nil)
				if _, err := p.Wait(soon(t)); !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
			case 1:
				if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
			}
		}
		if now := runtime.NumGoroutine(); now > before+20 {
			t.Errorf("%d goroutines more", now-before)
		}
		eventually.True(t, "the requests leave", func() bool { b.progress.Poll(true); got, _ := mb.Len(); return got == n/3+3 })
		for i := range n {
			if i%3 == 2 {
				msg := try.Get(mb.Recv(soon(t), Tag(uint64(i))))(t)
				try.OK(t, mb.ReplyBytes(soon(t), msg, nil))
				msg.Release()
				awaitReply(t, calls[i])
			}
		}
		for i := 0; i < n; i += 100 {
			take(t, mb, Tag(uint64(n+i)))
		}
		if _, stored := mb.Len(); stored != 0 {
			t.Errorf("%d charged bytes are left", stored)
		}
	})
}

// The receiver of a request learns that its caller has given up the call, with the reason, also if
// it asks only afterwards. It learns nothing after stop, and nothing of a call that has its reply.
func TestOnCancel(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		for name, c := range map[string]struct {
			ctx  func() (context.Context, context.CancelFunc)
			want error
		}{
			"cancelled": {func() (context.Context, context.CancelFunc) { return context.WithCancel(context.Background()) }, context.Canceled},
			"deadline": {func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(context.Background(), time.Millisecond)
			}, context.DeadlineExceeded},
		} {
			for _, isLate := range []bool{false, true} {
				p := try.Get(ma.RequestBytes(soon(t), f, 1, nil))(t)
				msg := requestAt(t, mb)
				why := make(chan error, 1)
				watch := func() (stop func()) { return msg.OnCancel(func(cause error) { why <- cause }) }
				stop := func() {}
				if !isLate {
					stop = watch()
				}
				ctx, cancel := c.ctx()
				if name == "cancelled" {
					cancel()
				}
				if _, err := p.Wait(ctx); !errors.Is(err, c.want) {
					t.Fatalf("%s: %v", name, err)
				}
				cancel()
				if isLate {
					eventually.True(t, "the news", func() bool {
						b.progress.Poll(true)
						mb.mu.Lock()
						defer mb.mu.Unlock()
						return len(msg.in.early) > 0
					})
					stop = watch()
				}
				var got error
				eventually.True(t, "the receiver learns it", func() bool {
					b.progress.Poll(true)
					select {
					case got = <-why:
						return true
					default:
						return false
					}
				})
				if !errors.Is(got, c.want) {
					t.Errorf("%s: the receiver learns %v", name, got)
				}
				stop()
				msg.Release()
			}
		}
		mb.mu.Lock()
		defer mb.mu.Unlock()
		if len(mb.onCancel) > 0 {
			t.Errorf("%d functions are left", len(mb.onCancel))
		}
	})
}

// A peer that cancels calls that it has not made, over and over, takes no memory. A damaged frame
// is a violation of the protocol.
func TestHostileCancels(t *testing.T) {
	w := newWorld()
	a, b := w.node(t, 1, transports()["tcp"]), w.node(t, 2, transports()["tcp"])
	mb := box(t, b, 2, 0)
	talk(t, a, b, mb, 1)
	l, _ := onlyLink(b, a)
	b.progress.Lock()
	defer b.progress.Unlock()
	frame := func(number uint64, payload ...byte) subsys.Frame {
		return subsys.Frame{Header: subsys.Header{Type: wire.TypeCancel, Dst: mb.serial, Src: 1, Tag: number, Len: uint32(len(payload))}, Data: payload}
	}
	for i := range uint64(10 * mostEarly) {
		try.OK(t, l.onCancel([]subsys.Frame{frame(i+1, wire.WhyCancelled), frame(i+1, 99)}))
	}
	if in := l.inflow(mb.serial); len(in.early) > mostEarly {
		t.Errorf("%d numbers are kept", len(in.early))
	}
	for what, f := range map[string]subsys.Frame{"no number": frame(0, 1), "no reason": frame(1), "long": frame(1, 1, 1)} {
		try.Fails(l.onCancel([]subsys.Frame{f}))(t, ErrProtocol, what)
	}
}

// A cancellation does not overtake its request, which waits behind a large message or is large
// itself. So the request leaves the mailbox, however many are cancelled.
func TestCancelledBehindLarge(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		if f.mb != nil {
			t.Skip("within the process nothing waits in a line")
		}
		const n, room = 4 * mostEarly, 2 << 20
		talkSize(t, a, mb, FirstCredit*3/4)
		eventually.True(t, "there is credit", func() bool {
			a.progress.Poll(true)
			f.l.mu.Lock()
			defer f.l.mu.Unlock()
			return f.credit.Limit() > room
		})
		ended, end := context.WithCancel(context.Background())
		end()
		f.l.mu.Lock()
		f.l.awaitPenLocked()
		f.l.pen.Store(penWriting) // nothing is written until all is cancelled
		f.l.mu.Unlock()
		large := try.Get(a.Buffer(session.PieceLen + 1))(t)
		first, err := ma.Request(soon(t), f, 1, large)
		large.Release()
		try.OK(t, err)
		calls := []Pending{first}
		for i := range n {
			p := try.Get(ma.RequestBytes(soon(t), f, uint64(2+i), []byte("request")))(t)
			calls = append(calls, p)
		}
		for _, p := range calls {
			if _, err := p.Wait(ended); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		f.l.mu.Lock()
		f.l.pump()
		eventually.True(t, "all has been sent", func() bool {
			a.progress.Poll(true)
			b.progress.Poll(true)
			f.l.mu.Lock()
			defer f.l.mu.Unlock()
			return !f.line.IsWaiting()
		})
		try.OK(t, f.SendBytes(soon(t), 1, 9999, nil))
		take(t, mb, Tag(9999))
		if got, stored := mb.Len(); got != 0 || stored != 0 {
			t.Errorf("%d requests of %d charged bytes are left", got, stored)
		}
	})
}

// A request that is cancelled while a receiver has it is dropped when the receiver puts it back.
func TestCancelledBeforePutBack(t *testing.T) {
	pairs(t, func(t *testing.T, a, b *Dispatcher, ma, mb *Mailbox) {
		f := flow(t, a, mb)
		p := try.Get(ma.RequestBytes(soon(t), f, 1, nil))(t)
		msg := requestAt(t, mb)
		p.Cancel(nil)
		if _, err := p.Wait(soon(t)); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		eventually.True(t, "the news", func() bool {
			b.progress.Poll(true)
			mb.mu.Lock()
			defer mb.mu.Unlock()
			return len(msg.in.early) > 0
		})
		try.OK(t, mb.PutBack(msg))
		if got, stored := mb.Len(); got != 0 || stored != 0 {
			t.Errorf("%d requests of %d charged bytes are left", got, stored)
		}
	})
}
