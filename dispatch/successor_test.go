// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A cut is two contexts whose connection is cut while both are idle. One has given up the session,
// and the other knows nothing of it.
type cut struct {
	w        *world
	away, me *Dispatcher // away has given up
	h        *relay      // between them
	its      *Mailbox    // of away
	mine     *Mailbox    // of me
}

// newCut makes a cut. The mailbox of away has the given serial.
func newCut(t *testing.T, serial uint32, change ...func(*Config)) *cut {
	t.Helper()
	c := &cut{w: newWorld()}
	c.away, c.me = c.w.node(t, 1, tcp.New(), append(change, unreported(t))...), c.w.node(t, 2, tcp.New(), unreported(t))
	c.h = newRelay(t, c.away.Addrs()[0], 1<<62, 0)
	c.w.setAddrs(c.away.self, "tcp://"+c.h.ln.Addr().String())
	if serial&Bounded != 0 {
		m := try.Get(c.away.BoundedMailbox(serial, 1<<20, 0))(t)
		c.its = m
	} else {
		c.its = box(t, c.away, serial, 0)
	}
	c.mine = box(t, c.me, 1, 0)
	talk(t, c.me, c.away, c.its, 1)
	eventually.True(t, "the link is idle", func() bool {
		idle := true
		c.me.eachLink(func(l *link) { l.mu.Lock(); idle = idle && l.s.IsIdle(); l.mu.Unlock() })
		return idle
	})
	return c
}

// part cuts the connection, and makes away give up the session because of err.
func (c *cut) part(t *testing.T, err error) {
	t.Helper()
	c.h.swallows.Store(true)
	key := linkKey{peer: c.me.self}
	c.away.eachLink(func(l *link) { l.endLink(err) })
	eventually.True(t, "the end of the session is noted", func() bool { return c.away.formerOf(key) != wire.Past{} })
}

// heal ends the cut: the kernel tells me that the connection is gone.
func (c *cut) heal() {
	c.w.setAddrs(c.away.self, c.away.Addrs()...)
	c.h.end()
}

// isWritten waits until all that me has accepted was written to the connection.
func (c *cut) isWritten(t *testing.T) {
	eventually.True(t, "all is written", func() bool {
		quiet := true
		c.me.eachLink(func(l *link) { l.mu.Lock(); quiet = quiet && l.s.IsQuiet(); l.mu.Unlock() })
		return quiet
	})
}

// A context that was idle while its peer gave up the session loses nothing: what it sends before it
// learns of that reaches the peer once, in order, over the next session. The first call succeeds.
// Nothing is reported as undelivered, and monitors go on.
//
// Promise (Ends): A context that was idle while its peer gave it up loses nothing: what it sends
// next arrives once and in order. Only what the peer may have received is reported. See also
// TestFirstOperationAfterGivingUp.
func TestGivenUpWhileIdle(t *testing.T) {
	for _, first := range []string{"the idle context dials", "the other context dials"} {
		for name, sizes := range map[string][]int{
			"one":                   {10},
			"many":                  make([]int, 500),
			"large":                 {10, 3 << 20, 20, 2 << 20, 30},
			"beyond the new credit": {60 << 10, 60 << 10, 60 << 10, 10, 60 << 10, 1},
		} {
			for _, serial := range []uint32{7, 7 | Bounded} {
				if serial&Bounded != 0 && name == "large" {
					continue
				}
				t.Run(fmt.Sprint(first, ", ", name, ", ", serial), func(t *testing.T) {
					c := newCut(t, serial)
					f := flow(t, c.me, c.its)
					if name == "beyond the new credit" { // makes the credit of the former session larger
						for range 20 {
							talkSize(t, c.me, c.its, 100<<10)
						}
					}
					stop := try.Get(c.mine.Monitor(soon(t), monitored(c.its), 99))(t)
					defer stop()
					eventually.True(t, "idle again", f.idle)
					c.part(t, ErrUnreachable)
					for i, n := range sizes {
						try.OK(t, f.try(soon(t), uint64(i), n))
					}
					if first != "the idle context dials" {
						b := try.Get(c.away.Flow(c.me.self, c.mine.serial))(t)
						try.OK(t, b.try(soon(t), 5, 1))
						take(t, c.mine, Tag(5))
					}
					c.heal()
					for i, n := range sizes {
						m, err := c.its.Recv(soon(t))
						if err != nil || m.Tag() != uint64(i) || m.Len() != n {
							t.Fatalf("message %d: %v", i, err)
						}
						m.Release()
					}
					try.Check(t, c.me.Flush(soon(t)), "flush")
					isEmpty(t, c.its)
					isEmpty(t, c.mine)
					c.its.Close()
					awaitGone(t, c.mine, monitored(c.its), 99)
				})
			}
		}
	}
}

// talkSize sends a message of n bytes and receives it.
func talkSize(t *testing.T, from *Dispatcher, to *Mailbox, n int) {
	t.Helper()
	try.OK(t, flow(t, from, to).try(soon(t), 0, n))
	take(t, to)
}

// The first call to a resource that is back succeeds, though the other side has given up the
// session meanwhile, and the request was written to the connection that is dead. A call whose reply
// is lost fails.
func TestCallGivenUpWhileIdle(t *testing.T) {
	for i, size := range []int{10, 100 << 10, 2 << 20, 10} {
		t.Run(fmt.Sprint(i, ", ", size), func(t *testing.T) {
			why := ErrUnreachable
			if i == 3 { // in a cluster of three nodes or more
				why = ErrNodeDead
			}
			c := newCut(t, 7)
			f := flow(t, c.me, c.its)
			lost := try.Get(c.mine.RequestBytes(soon(t), f, 1, nil))(t)
			m := try.Get(c.its.Recv(soon(t)))(t)
			defer m.Release()
			eventually.True(t, "the request is acknowledged", f.idle)
			c.part(t, why)
			p := try.Get(c.mine.RequestBytes(soon(t), f, 2, make([]byte, size)))(t)
			c.isWritten(t)
			c.heal()
			try.Fails(lost.Wait(soon(t)))(t, ErrUnreachable, "the call whose reply is lost")
			q, err := c.its.Recv(soon(t), Tag(2))
			if err != nil || q.Len() != size {
				t.Fatal(q, err)
			}
			try.OK(t, c.its.ReplyBytes(soon(t), q, []byte("yes")))
			q.Release()
			got, err := p.Wait(soon(t))
			if err != nil || string(got.Bytes()) != "yes" {
				t.Fatalf("the first call: %v", err)
			}
			got.Release()
			p, err = c.mine.RequestBytes(soon(t), flow(t, c.me, c.its), 3, nil)
			try.OK(t, err)
			c.its.Close() // the calls over the successor end with the target
			try.Fails(p.Wait(soon(t)))(t, ErrGone, "the target has ended")
		})
	}
}

// A context that has given up a session by its timer, while its peer was idle, gets the first
// message of the peer afterwards, although that was written to a connection that was dead.
func TestGivenUpByTimer(t *testing.T) {
	c := newCut(t, 7, func(c *Config) { c.GiveUp = 200 * time.Millisecond })
	c.w.setAddrs(c.me.self, "tcp://"+try.Get(freeaddr.Loopback())(t)) // nothing listens there
	c.h.swallows.Store(true)
	c.away.eachLink(func(l *link) {
		l.mu.Lock()
		l.dropFailedLocked(l.conn, errors.New("cut by a test"))
		l.mu.Unlock()
	})
	eventually.True(t, "the session is given up", func() bool { return c.away.formerOf(linkKey{peer: c.me.self}) != wire.Past{} })
	p := try.Get(c.mine.RequestBytes(soon(t), flow(t, c.me, c.its), 1, []byte("hello")))(t)
	c.isWritten(t)
	c.heal()
	m := try.Get(c.its.Recv(soon(t)))(t)
	try.OK(t, c.its.ReplyBytes(soon(t), m, []byte("yes")))
	m.Release()
	awaitReply(t, p)
}

// Only what may have been delivered is reported: the peer received the first messages, and its
// acknowledgement was lost. What it does not know any more counts as received once it was written.
func TestGivenUpReports(t *testing.T) {
	for _, isKnown := range []bool{true, false} {
		t.Run(fmt.Sprint(isKnown), func(t *testing.T) {
			h := newHeirWorld(t)
			b, reported, its := h.b, h.reports, box(t, h.a, 7, 0)
			l := h.flow(t, its).l
			h.leads(h.a.Addrs()...)
			l.mu.Lock()
			l.awaitPenLocked()
			for i := range 4 { // as if two of them had been written, and the first had arrived
				h := subsys.Header{Type: wire.TypeData, Dst: 7, Src: 1, Tag: uint64(i)}
				l.s.Push(&subsys.Frame{Header: h})
				if i == 1 {
					l.s.Take()
				}
			}
			past := wire.Past{Session: l.life.PeerID(), Have: l.s.Head() + 1}
			if !isKnown {
				past = wire.Past{}
			}
			l.actLocked(l.life.GivenUp(fmt.Errorf("%w: of a test", ErrUnreachable), past)) // before any is written
			l.mu.Unlock()
			lost := 1
			if !isKnown {
				lost = 2
			}
			for i := range lost {
				if u := <-reported; u.Tag != uint64(i) || !errors.Is(u.Err, ErrUnreachable) {
					t.Errorf("reported: %+v", u)
				}
			}
			for i := lost; i < 4; i++ {
				takeTag(t, its, uint64(i))
			}
			var fe *FlushError
			if err := b.Flush(soon(t)); !errors.As(err, &fe) || fe.Undelivered != lost || fe.Waiting != 0 {
				t.Errorf("flush: %v", err)
			}
			if len(reported) > 0 {
				t.Errorf("reported too: %+v", <-reported)
			}
		})
	}
}

// A session that is given up while messages wait for credit that the new one does not give: they
// are counted by Flush, and reported when their target, the link or the context ends.
func TestHeldMessages(t *testing.T) {
	for _, end := range []string{"gone", "given up", "closed"} {
		t.Run(end, func(t *testing.T) {
			h := newHeirWorld(t)
			a, b, reported, its := h.a, h.b, h.reports, box(t, h.a, 7, FirstCredit)
			f := h.flow(t, its)
			h.leads(h.a.Addrs()...)
			l := f.l
			l.mu.Lock()
			f.push(40<<10, purpose{}, 0, 1, 2)
			l.mu.Unlock()
			a.eachLink(func(l *link) { l.endLink(ErrUnreachable) })
			l.giveUp(fmt.Errorf("%w: of a test", ErrUnreachable), wire.Past{})
			next := flow(t, b, its).l
			eventually.True(t, "the first message", func() bool { n, _ := its.Len(); return n == 1 })
			short, cancel := context.WithTimeout(soon(t), 20*time.Millisecond)
			defer cancel()
			var fe *FlushError
			if err := b.Flush(short); !errors.As(err, &fe) || fe.Waiting == 0 || fe.Undelivered != 0 {
				t.Errorf("flush: %v", err)
			}
			want := ErrGone
			switch end {
			case "gone":
				its.Close()
			case "given up":
				next.endLink(ErrUnreachable)
				want = ErrUnreachable
			case "closed":
				ended, cancel := context.WithCancel(soon(t))
				cancel()
				if err := b.Close(ended); err == nil {
					t.Error("Close reports nothing")
				}
				want = ErrClosed
			}
			tags := map[uint64]bool{}
			for len(tags) < 2 {
				u := <-reported
				if !errors.Is(u.Err, want) || u.Bytes != 40<<10 {
					t.Errorf("reported: %+v", u)
				}
				if u.Tag > 0 || end == "given up" {
					tags[u.Tag] = true
				}
			}
			_ = a.Close(ended()) // without waiting for b
		})
	}
}
