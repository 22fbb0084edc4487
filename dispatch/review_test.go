// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/eventually"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// within runs f, which must return before long.
func within(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s: stuck", what)
	}
}

func brief(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	t.Cleanup(cancel)
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

func take(t *testing.T, m *Mailbox, sel ...Select) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	msg, err := m.Recv(ctx, sel...)
	if err != nil {
		t.Fatalf("recv: %v", err)
	}
	msg.Release()
}

// A sender asks for credit of a mailbox that has been closed since its last message. The sender is
// told that the resource is gone.
func TestNeedOfClosed(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			mb := box(t, b, 1, FirstCredit)
			f := flow(t, a, mb)
			if err := f.try(brief(t), 0, 10); err != nil {
				t.Fatal(err)
			}
			take(t, mb)
			mb.Close()
			within(t, "a send to a closed mailbox", func() {
				if err := f.try(brief(t), 1, 4*FirstCredit); !errors.Is(err, ErrGone) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// A sender that waits for credit as a mailbox is closed, and has no message in it, is told as well.
func TestCloseTellsTheNeedy(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b, c := w.node(t, 1, tr), w.node(t, 2, tr), w.node(t, 3, tr)
			mb := box(t, b, 1, FirstCredit)
			if err := flow(t, c, mb).try(brief(t), 0, 60_000); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "the message of another", func() bool { n, _ := mb.Len(); return n == 1 })
			f := flow(t, a, mb)
			within(t, "a send to a mailbox that is closed", func() {
				go func() {
					needed(t, mb)
					mb.Close()
				}()
				if err := f.try(brief(t), 1, 4*FirstCredit); !errors.Is(err, ErrGone) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// Credit for a sender that has given up waiting does not keep the next sender from getting credit.
func TestNeedyBehindCancelled(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			b := w.node(t, 9, tr)
			mb := box(t, b, 1, FirstCredit)
			needy := func() int { mb.mu.Lock(); defer mb.mu.Unlock(); return len(mb.needy) }
			a, c, e := w.node(t, 1, tr), w.node(t, 2, tr), w.node(t, 3, tr)
			if err := flow(t, c, mb).try(brief(t), 0, 60_000); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "the message of another", func() bool { n, _ := mb.Len(); return n == 1 })
			ctx, cancel := context.WithCancel(brief(t))
			first, second := make(chan error, 1), make(chan error, 1)
			go func() { first <- flow(t, a, mb).try(ctx, 1, 2*FirstCredit) }()
			eventually.True(t, "the first need", func() bool { return needy() == 1 })
			go func() { second <- flow(t, e, mb).try(brief(t), 2, 2*FirstCredit) }()
			eventually.True(t, "the second need", func() bool { return needy() == 2 })
			cancel()
			<-first
			take(t, mb)
			within(t, "the second", func() {
				if err := <-second; err != nil {
					t.Error(err)
				}
			})
			take(t, mb, Tag(2))
		})
	}
}

// A message that was too large to wait for, and was given up, does not stop the small messages
// after it.
func TestSmallBehindCancelled(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			mb := box(t, b, 1, 4*FirstCredit)
			f := flow(t, a, mb)
			if err := f.try(brief(t), 99, 10); err != nil { // the message stays in the mailbox
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(brief(t))
			gaveUp := make(chan error, 1)
			go func() { gaveUp <- f.try(ctx, 1, 8*FirstCredit) }()
			needed(t, mb)
			cancel()
			<-gaveUp
			for range 40 {
				within(t, "a small message", func() {
					if err := f.try(brief(t), 2, 10_000); err != nil {
						t.Error(err)
					}
				})
				take(t, mb, Tag(2))
			}
		})
	}
}

// crowd returns a context with more connections than are polled directly.
func crowd(t *testing.T) (b *Dispatcher, mb *Mailbox, peers []*Dispatcher, flows []*Flow) {
	w := newWorld()
	b = w.node(t, 100, tcp.New())
	mb = box(t, b, 1, 0)
	for i := range uint64(5) {
		p := w.node(t, 1+i, tcp.New())
		f := flow(t, p, mb)
		if err := f.try(brief(t), 0, 1); err != nil {
			t.Fatal(err)
		}
		take(t, mb)
		peers, flows = append(peers, p), append(flows, f)
	}
	return b, mb, peers, flows
}

func (f *Flow) idle() bool {
	f.l.mu.Lock()
	defer f.l.mu.Unlock()
	return f.l.s.IsIdle()
}

// Messages that TryRecv has read are acknowledged, though no goroutine waits.
func TestTryRecvAcknowledges(t *testing.T) {
	_, mb, _, flows := crowd(t)
	for i := range 20 {
		time.Sleep(10 * time.Millisecond) // then the keeper rests
		if err := flows[0].try(brief(t), 1, 100); err != nil {
			t.Fatal(err)
		}
		for {
			m, err := mb.TryRecv()
			if err == nil {
				m.Release()
				break
			}
		}
		eventually.True(t, fmt.Sprint("acknowledgement ", i), flows[0].idle)
	}
}

// The keeper reads what a receiver left unread when it stopped waiting.
func TestLeftUnread(t *testing.T) {
	_, mb, _, flows := crowd(t)
	for round := range 20 {
		time.Sleep(12 * time.Millisecond) // then the keeper rests
		const n = 1000
		sent := make(chan error, 1)
		go func() {
			for range n {
				if err := flows[0].try(brief(t), 1, 7000); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		take(t, mb)
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		eventually.True(t, fmt.Sprint("all of round ", round), func() bool { k, _ := mb.Len(); return k == n-1 })
		for range n - 1 {
			take(t, mb)
		}
	}
}

// lateConn takes nothing, and is writable again before its caller checks.
type lateConn struct {
	fakeConn
	l    *link
	full bool
}

func (c *lateConn) Send(fs []subsys.Frame) (int, error) {
	if c.full {
		c.full = false
		c.l.onWritable(c)
		return 0, nil
	}
	return c.fakeConn.Send(fs)
}

// An acknowledgement that the connection did not take is still owed.
func TestAckNotTaken(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	l := newLink(d, linkKey{peer: resource.MakeGID(1, 2, 0)})
	c := &lateConn{l: l, full: true}
	l.mu.Lock()
	if err := l.bind(&endpoint{d: d}, c, &wire.Attach{Session: 7, Gen: 1}); err != nil {
		t.Fatal(err)
	}
	expectFrom(t, l, 5)
	l.mu.Unlock()
	l.flushAck()
	l.flushAck()
	if len(c.sent) != 1 || c.sent[0].Ack != 5 {
		t.Errorf("sent %v", c.sent)
	}
}

// A connection that outlives its link for a moment leaves nothing in the mailboxes.
func TestRoomAfterTheEnd(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 0)
	l, err := d.link(resource.MakeGID(1, 2, 0))
	if err != nil {
		t.Fatal(err)
	}
	l.die(ErrUnreachable)
	l.leave()
	d.take()
	b, err := l.makeRoom(new(endpoint), &subsys.Header{Type: wire.TypeData, Len: 20_000, Dst: 1})
	d.give()
	if err == nil {
		b.Release()
	}
	mb.mu.Lock()
	defer mb.mu.Unlock()
	if mb.flows != 0 || mb.promise != 0 {
		t.Errorf("%d flows, %d bytes promised to nobody", mb.flows, mb.promise)
	}
}

// The counts of a link are added once, though the link is unlinked twice.
func TestCountedOnce(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	l, err := d.link(resource.MakeGID(1, 2, 0))
	if err != nil {
		t.Fatal(err)
	}
	l.traffic.sentB = 10
	l.die(ErrUnreachable)
	d.unlink(l)
	if n := d.Stats().SentBytes; n != 10 {
		t.Errorf("%d bytes sent, not 10", n)
	}
}

// A sender's need takes into account what other senders were granted and have not sent yet.
func TestNeedOfTheLargest(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	mb := box(t, d, 1, 0)
	l := newLink(d, linkKey{peer: resource.MakeGID(1, 2, 0)})
	l.d.take()
	defer l.d.give()
	f := subsys.Frame{Header: subsys.Header{Type: wire.TypeNeed, Dst: 1, Tag: FirstCredit + charge(MaxMessage)}}
	if err := l.control(&f); err != nil {
		t.Error(err)
	}
	mb.Close()
}

// Undelivered is called without locks held: two contexts of one process may send messages to each
// other from it.
func TestUndeliveredMaySend(t *testing.T) {
	w := newWorld()
	tr := tcp.New()
	var both, sent sync.WaitGroup
	both.Add(2)
	sent.Add(2)
	var ds [2]*Dispatcher
	tell := func(i int) func(*Config) {
		return func(c *Config) {
			c.Undelivered = func(u Undelivered) {
				if u.Tag != 1 {
					return
				}
				defer sent.Done()
				both.Done()
				both.Wait() // both are here
				f, err := ds[i].Flow(ds[1-i].self, 77)
				if err == nil {
					err = f.SendBytes(context.Background(), 1, 2, []byte("x"))
				}
				if err != nil {
					t.Error(err)
				}
			}
		}
	}
	for i := range ds {
		ds[i] = w.node(t, uint64(1+i), tr, tell(i))
	}
	var boxes [2]*Mailbox
	for i := range ds {
		boxes[i] = box(t, ds[i], 1, 0)
	}
	for i := range ds {
		if err := flow(t, ds[i], boxes[1-i]).try(brief(t), 1, 1); err != nil {
			t.Fatal(err)
		}
	}
	for i := range ds {
		eventually.True(t, "the message", func() bool { n, _ := boxes[i].Len(); return n == 1 })
	}
	within(t, "closing mailboxes", func() {
		var wg sync.WaitGroup
		for i := range boxes {
			wg.Go(boxes[i].Close)
		}
		wg.Wait()
		sent.Wait()
	})
}

// The goodbye is sent, even if another goroutine writes at that moment: senders learn at once that
// the context is gone.
func TestByeIsSaid(t *testing.T) {
	for name, tr := range links() {
		t.Run(name, func(t *testing.T) {
			for round := range 40 {
				w := newWorld()
				a, b := w.node(t, 1, tr), w.node(t, 2, tr)
				ma, mb := box(t, a, 1, 0), box(t, b, 1, 0)
				ctx, cancel := context.WithCancel(soon(t))
				var wg sync.WaitGroup
				f := flow(t, b, ma)
				for range 2 {
					wg.Go(func() {
						var err error
						for err == nil {
							err = f.try(ctx, 1, 10)
						}
						if !errors.Is(err, ErrGone) {
							t.Errorf("round %d: %v", round, err)
						}
					})
					wg.Go(func() {
						for {
							m, err := ma.Recv(ctx)
							if err != nil {
								return
							}
							m.Release()
						}
					})
				}
				_ = flow(t, a, mb).try(ctx, 1, 1)
				time.Sleep(time.Duration(round*10) * time.Microsecond)
				l := f.l
				a.Close(ctx)
				eventually.True(t, fmt.Sprint("goodbye ", round), func() bool {
					l.mu.Lock()
					defer l.mu.Unlock()
					return errors.Is(l.life.Cause(), ErrGone)
				})
				wg.Wait()
				cancel()
				b.Close(context.Background())
			}
		})
	}
}

// A dialler that is refused over a transport that answers at once does not stay busy for ever.
func TestProposedIsTakenBack(t *testing.T) {
	w := newWorld()
	tr := inproc.NewNetwork().Transport()
	a, b := w.node(t, 1, tr), w.node(t, 2, tr)
	la, err := a.link(b.self)
	if err != nil {
		t.Fatal(err)
	}
	lb, err := b.link(a.self)
	if err != nil {
		t.Fatal(err)
	}
	lb.life.Refused(wire.RefusedStale, 5) // a has missed some handshakes
	if err := a.shake(brief(t), la, a.ports[0], b.Addrs()[0], nil); err == nil {
		t.Fatal("not refused")
	}
	if la.life.Proposed() != 0 {
		t.Errorf("%d is proposed still", la.life.Proposed())
	}
}

// slowConn holds the first Send until the test lets it continue.
type slowConn struct {
	fakeConn
	entered, leave chan struct{}
}

func (c *slowConn) Send(fs []subsys.Frame) (int, error) {
	if c.entered != nil {
		close(c.entered)
		c.entered = nil
		<-c.leave
	}
	return c.fakeConn.Send(fs)
}

// The goodbye is written, although another goroutine writes when it is queued.
func TestByeBehindAWriter(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	l := newLink(d, linkKey{peer: resource.MakeGID(1, 2, 0)})
	c := &slowConn{entered: make(chan struct{}), leave: make(chan struct{})}
	entered := c.entered
	l.mu.Lock()
	if err := l.bind(&endpoint{d: d}, c, &wire.Attach{Session: 7, Gen: 1}); err != nil {
		t.Fatal(err)
	}
	l.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { _ = l.flow(9).SendBytes(context.Background(), 1, 0, []byte("x")) })
	<-entered
	wg.Go(l.bye)
	eventually.True(t, "the goodbye queued", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.s.Next() == 2 })
	time.Sleep(5 * time.Millisecond)
	close(c.leave)
	wg.Wait()
	var types []uint8
	for _, f := range c.sent {
		for _, g := range (&subsys.Frame{Data: f.Data}).Split(nil) {
			types = append(types, g.Type)
		}
	}
	if len(types) != 2 || types[1] != wire.TypeBye {
		t.Errorf("sent %v", types)
	}
}

// A context that says goodbye has closed, though the peer ends the link while the goodbye is
// written.
func TestByeAndRefused(t *testing.T) {
	d := newWorld().node(t, 1, inproc.NewNetwork().Transport())
	l := newLink(d, linkKey{peer: resource.MakeGID(1, 2, 0)})
	c := &slowConn{entered: make(chan struct{}), leave: make(chan struct{})}
	entered := c.entered
	l.mu.Lock()
	if err := l.bind(&endpoint{d: d}, c, &wire.Attach{Session: 7, Gen: 1}); err != nil {
		t.Fatal(err)
	}
	l.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(l.bye)
	<-entered
	l.die(ErrUnreachable)
	close(c.leave)
	wg.Wait()
	if err := l.flow(9).SendBytes(context.Background(), 1, 0, []byte("x")); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// Messages are neither lost, doubled nor reordered with more paced links than slots, with senders
// that give up, and with connections over both transports that are cut in turn.
func TestManyStreams(t *testing.T) {
	for name, tr := range transports() {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			// Two dozen handshakes at once take long on a busy machine.
			a := w.node(t, 1000, tr, func(c *Config) { c.GiveUp = time.Minute })
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			var wg sync.WaitGroup
			const peers, each = 24, 3000
			for i := range uint64(peers) {
				b := w.node(t, 1+i, tr)
				mb := box(t, b, 1, 2*FirstCredit)
				f := flow(t, a, mb)
				wg.Go(func() {
					for n := uint64(0); n < each; {
						sctx, cancel := ctx, context.CancelFunc(func() {})
						if n%7 == 0 {
							sctx, cancel = context.WithTimeout(ctx, 50*time.Microsecond)
						}
						err := f.SendBytes(sctx, 1, n, make([]byte, n%300))
						cancel()
						switch {
						case err == nil:
							n++
						case ctx.Err() != nil:
							t.Errorf("send %d to %d: %v", n, i, err)
							return
						}
					}
				})
				wg.Go(func() {
					for n := range uint64(each) {
						m, err := mb.Recv(ctx)
						if err != nil || m.Tag() != n || m.Len() != int(n%300) {
							t.Errorf("recv %d of %d: %v %v", n, i, m, err)
							return
						}
						m.Release()
					}
				})
			}
			wg.Wait()
		})
	}
}

// A link changes between a stream and a transport within the process all the time.
func TestBothTransports(t *testing.T) {
	w := newWorld()
	in := inproc.NewNetwork().Transport()
	a, b := w.node(t, 1, tcp.New()), w.node(t, 2, tcp.New())
	for _, d := range []*Dispatcher{a, b} {
		if err := d.Listen(in, ""); err != nil {
			t.Fatal(err)
		}
	}
	both := [2][]string{a.Addrs(), b.Addrs()}
	ctx := soon(t)
	ma, mb := box(t, a, 1, 4*FirstCredit), box(t, b, 1, 4*FirstCredit)
	const each = 40_000
	var wg sync.WaitGroup
	done := make(chan struct{})
	talk := func(from, to *Mailbox) {
		f := flow(t, from.d, to)
		wg.Go(func() {
			for n := range uint64(each) {
				p := make([]byte, 8+n*37%5000)
				binary.LittleEndian.PutUint64(p[len(p)-8:], n)
				if err := f.SendBytes(ctx, 1, n, p); err != nil {
					t.Errorf("send %d: %v", n, err)
					return
				}
			}
		})
		wg.Go(func() {
			var kept []*Message
			look := func(n uint64) {
				for _, m := range kept {
					if p := m.Bytes(); len(p) != int(8+m.Tag()*37%5000) || binary.LittleEndian.Uint64(p[len(p)-8:]) != m.Tag() {
						t.Errorf("message %d has changed", m.Tag())
					}
					m.Release()
				}
				kept = nil
			}
			for n := range uint64(each) {
				m, err := to.Recv(ctx)
				if err != nil || m.Tag() != n {
					t.Errorf("recv %d: %v %v", n, m, err)
					return
				}
				if kept = append(kept, m); len(kept) == 20 {
					look(n)
				}
			}
			look(each)
		})
	}
	talk(ma, mb)
	talk(mb, ma)
	go func() { wg.Wait(); close(done) }()
	for i := 0; ; i++ {
		select {
		case <-done:
			return
		case <-time.After(5 * time.Millisecond):
		}
		w.mu.Lock()
		w.at[a.self], w.at[b.self] = both[0][i%2:i%2+1], both[1][i%2:i%2+1]
		w.mu.Unlock()
		l := flow(t, a, mb).l
		if i%4 < 2 {
			l = flow(t, b, ma).l
		}
		l.mu.Lock()
		if c := l.conn; c != nil {
			l.lose(c, errors.New("test"))
		}
		l.mu.Unlock()
	}
}
