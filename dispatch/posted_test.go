// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/dispatch/internal/session"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// post posts memory for a message from the first resource of a context.
func post(t *testing.T, m *Mailbox, from *Dispatcher, tag uint64, dst []byte) *Posted {
	t.Helper()
	p, err := m.Post(soon(t), from.self.WithSerial(1), tag, dst)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sendRandom sends n random bytes from the first resource of a context.
func sendRandom(t *testing.T, from *Dispatcher, to *Mailbox, tag uint64, n int) {
	t.Helper()
	if err := flow(t, from, to).Send(soon(t), 1, tag, buf(t, from, string(random(n)))); err != nil {
		t.Fatal(err)
	}
}

// The payload of a message lies in the memory that was posted for it, if it fits, even if the
// message came first. Over TCP large payloads are read into that memory: next to nothing is copied.
//
// Promise (Package bulk): A message or reply for posted memory lies in that memory, over any
// transport. See also TestReplyLands.
func TestPosted(t *testing.T) {
	for name, tr := range allTransports(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr, unreported(t)), w.node(t, 2, tr, unreported(t))
			box(t, a, 1, 0)
			mb := box(t, b, 7, 16<<20)
			for _, n := range []int{0, 5, 3000, 20_000, session.WholeLen, session.PieceLen + 1, 3*session.PieceLen + 5} {
				for _, more := range []int{0, 1, -1} {
					for _, isLate := range []bool{false, true} {
						if n+more < 0 {
							continue
						}
						dst := make([]byte, n+more)
						before := b.count.CopiedB.Load()
						if isLate {
							sendRandom(t, a, mb, 3, n)
							eventually.True(t, "the message is stored", func() bool {
								b.pollOnce()
								stored, _ := mb.Len()
								return stored == 1
							})
						}
						p := post(t, mb, a, 3, dst)
						if !isLate {
							sendRandom(t, a, mb, 3, n)
						}
						msg, err := p.Wait(soon(t))
						if err != nil || msg.Tag() != 3 || !bytes.Equal(msg.Bytes(), random(n)) {
							t.Fatalf("%d bytes into %d: not the message: %v", n, len(dst), err)
						}
						if fits := n <= len(dst); lies(msg, dst) != (fits || n == 0) {
							t.Errorf("%d bytes into %d lie elsewhere", n, len(dst))
						}
						if copied := b.count.CopiedB.Load() - before; name == "tcp" && n > 100_000 && more >= 0 && !isLate && copied > 50_000 {
							t.Errorf("%d bytes into %d: %d bytes were copied", n, len(dst), copied)
						}
						msg.Release()
					}
				}
			}
			if mb.posts != nil || mb.posted.Load() != 0 {
				t.Errorf("%d posts are left", mb.posted.Load())
			}
		})
	}
}

// Messages come to the memory that was posted for their origin and tag, in order. Other messages
// come to receivers.
func TestPostedOrder(t *testing.T) {
	for name, tr := range allTransports(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			box(t, a, 1, 0)
			mb := box(t, b, 7, 16<<20)
			var posts []*Posted
			sizes := []int{300_000, 10, 600_000}
			for _, n := range sizes {
				posts = append(posts, post(t, mb, a, 3, make([]byte, n)))
			}
			ended, end := context.WithCancel(soon(t))
			end()
			if _, err := post(t, mb, a, 3, nil).Wait(ended); !errors.Is(err, context.Canceled) { // the last one in the list
				t.Error(err)
			}
			if _, err := posts[1].Wait(ended); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			sendRandom(t, a, mb, 4, 50)
			for _, n := range []int{sizes[0], sizes[2], 70} {
				sendRandom(t, a, mb, 3, n)
			}
			for _, i := range []int{2, 0} {
				msg, err := posts[i].Wait(soon(t))
				if err != nil || !bytes.Equal(msg.Bytes(), random(sizes[i])) {
					t.Fatal("another message: ", err)
				}
				msg.Release()
			}
			for _, n := range []int{50, 70} {
				msg, err := mb.Recv(soon(t))
				if err != nil || msg.Len() != n {
					t.Fatal("another message: ", err)
				}
				msg.Release()
			}
		})
	}
}

// Memory is taken back while a message is being read into it. Nothing is written to it after that,
// and the whole message comes to the mailbox, over the same connection.
//
// Promise (Package bulk): Posted memory is the caller's when the wait has returned, and no message
// is lost. See also TestPostedModel.
func TestPostedIsTakenBack(t *testing.T) {
	for name, tr := range streamTransports(t) {
		for _, n := range []int{session.WholeLen, session.PieceLen + 1, 6 << 20} {
			t.Run(fmt.Sprint(name, " ", n), func(t *testing.T) {
				a, b, g, _ := gated(t, tr, 64<<10, unreported(t))
				box(t, a, 1, 0)
				mb := box(t, b, 2, 16<<20)
				credited(t, a, b, mb)
				dst, want := make([]byte, n), random(n)
				p := post(t, mb, a, 3, dst)
				sendRandom(t, a, mb, 3, n)
				g.let(int64(n) / 2)
				eventually.True(t, "a part of the message is there", func() bool {
					b.pollOnce()
					b.takeToken()
					defer b.giveToken()
					return bytes.Equal(dst[n/4:n/4+8], want[n/4:n/4+8])
				})
				ctx, cancel := context.WithCancel(soon(t))
				cancel()
				if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
					t.Fatal(err)
				}
				clear(dst)
				g.let(1 << 40)
				msg, err := mb.Recv(soon(t), Tag(3))
				if err != nil || !bytes.Equal(msg.Bytes(), want) {
					t.Fatal("the message is not whole: ", err)
				}
				msg.Release()
				if !bytes.Equal(dst, make([]byte, n)) {
					t.Error("bytes were written after the memory had been taken back")
				}
				if s := b.Stats(); s.Resumed > 0 {
					t.Errorf("%d connections broke", s.Resumed)
				}
			})
		}
	}
}

// If a connection is cut anywhere within a message, the message is read again, and is right.
//
// Promise (Package bulk): Messages for posted memory are whole, even if connections break. See also
// TestLandsThroughCuts.
func TestPostedThroughCuts(t *testing.T) {
	w := newWorld()
	a, b := w.node(t, 1, tcp.New(), unreported(t)), w.node(t, 2, tcp.New(), unreported(t))
	r := newRelay(t, b.Addrs()[0], session.PieceLen+70_001, 30)
	w.mu.Lock()
	w.at[b.self] = []string{"tcp://" + r.ln.Addr().String()}
	w.at[a.self] = nil
	w.mu.Unlock()
	defer func() { // runs before the relay waits for its connections
		if err := errors.Join(a.Close(soon(t)), b.Close(soon(t))); err != nil {
			t.Error(err)
		}
	}()
	box(t, a, 1, 0)
	mb := box(t, b, 2, 16<<20)
	for i := 0; r.cuts.Load() > 0; i++ {
		dst := make([]byte, 100_000+i%7*150_000)
		p := post(t, mb, a, 3, dst)
		sendRandom(t, a, mb, 3, len(dst))
		msg, err := p.Wait(soon(t))
		if err != nil || !lies(msg, dst) || !bytes.Equal(dst, random(len(dst))) {
			t.Fatal("another message: ", err)
		}
		msg.Release()
	}
}

// A Posted ends when its origin ends, and when its mailbox is closed.
func TestPostedEnds(t *testing.T) {
	for name, tr := range allTransports(t) {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			ma, mb := box(t, a, 1, 0), box(t, b, 2, 16<<20)
			last := post(t, mb, a, 3, make([]byte, 600_000))
			none := post(t, mb, a, 4, nil)
			sendRandom(t, a, mb, 3, 600_000)
			ma.Close()
			if _, err := none.Wait(soon(t)); !errors.Is(err, ErrGone) {
				t.Error(err)
			}
			msg, err := last.Wait(soon(t))
			if err != nil || msg.Len() != 600_000 {
				t.Fatal("what was sent before the end: ", err)
			}
			msg.Release()
			if _, err := post(t, mb, a, 3, nil).Wait(soon(t)); !errors.Is(err, ErrGone) {
				t.Error(err)
			}
			box(t, a, 5, 0)
			p, err := mb.Post(soon(t), a.self.WithSerial(5), 3, nil)
			if err != nil {
				t.Fatal(err)
			}
			mb.Close()
			if _, err := p.Wait(soon(t)); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
			if _, err := mb.Post(soon(t), a.self.WithSerial(5), 3, nil); !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		})
	}
}

// A message that does not fit beside the stored ones is let in for posted memory, as it is for a
// receiver.
func TestPostedBesideStored(t *testing.T) {
	w := newWorld()
	a, b := w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New())
	box(t, a, 1, 0)
	other := w.node(t, 3, tcp.New())
	box(t, other, 1, 0)
	mb := box(t, b, 2, FirstCredit)
	sendRandom(t, other, mb, 9, FirstCredit-overhead)
	eventually.True(t, "the mailbox is full", func() bool {
		b.pollOnce()
		n, _ := mb.Len()
		return n == 1
	})
	const n = FirstCredit
	p := post(t, mb, a, 3, make([]byte, n))
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Patience)
	defer cancel()
	f, sent := flow(t, a, mb), make(chan error)
	go func() { sent <- f.Send(ctx, 1, 3, buf(t, a, string(random(n)))) }()
	msg, err := p.Wait(ctx)
	if e := <-sent; err != nil || e != nil || msg.Len() != n {
		t.Fatal(err, e)
	}
	msg.Release()
}

// A wait that ends with its context as its origin ends returns one of the two reasons. The function
// of OnEnd may run while Wait returns; the race detector sees what the two share.
func TestPostedEndsTwice(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 7, 0)
	for i := range uint32(300) {
		origin := box(t, d, 100+i, 0)
		ctx, cancel := context.WithCancel(t.Context())
		p, err := mb.Post(ctx, d.self.WithSerial(origin.serial), 1, make([]byte, 8))
		if err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		both.Go(origin.Close)
		both.Go(cancel)
		if _, err := p.Wait(ctx); !errors.Is(err, ErrGone) && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		both.Wait()
	}
}
