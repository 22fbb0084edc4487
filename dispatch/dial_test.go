// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// A directory that does not answer keeps no link alive. A peer that was never reached, and a peer
// that has gone, are given up in time, and accepted messages are reported.
//
// Promise (Ends): A context that is out of reach is given up after `WithGiveUp`, also while no
// directory answers. Until then its link resumes. See also TestResumesWithoutDirectory.
func TestGiveUpWithoutDirectory(t *testing.T) {
	for _, everLinked := range []bool{false, true} {
		inSimulation(t, func(t *testing.T, n *simulated) {
			w, silent := newWorld(), make(chan struct{})
			reported := make(chan Undelivered, 10)
			a := w.node(t, 1, n.transport(), w.answersUntil(silent), func(c *Config) { c.Undelivered = func(u Undelivered) { reported <- u } })
			b := w.node(t, 2, n.transport(), givesUp)
			mb := box(t, b, 1, 0)
			if everLinked {
				talk(t, a, b, mb, 1)
				try.OK(t, a.Flush(soon(t))) // else that message may be reported
			}
			close(silent)
			n.processes[1].Kill()
			b.eachLink(func(l *link) { l.endLink(ErrUnreachable) })
			f := flow(t, a, mb)
			if err := f.try(soon(t), 7, 10); err != nil && !errors.Is(err, ErrUnreachable) {
				t.Fatal(err)
			}
			if u := <-reported; u.Tag != 7 || !errors.Is(u.Err, ErrUnreachable) || errors.Is(u.Err, context.DeadlineExceeded) {
				t.Errorf("reported %+v", u)
			}
			try.Fails(f.try(soon(t), 8, 10))(t, ErrUnreachable, "a send afterwards")
		})
	}
}

// answersUntil makes the directory of a context answer until silent is closed.
func (w *world) answersUntil(silent <-chan struct{}) func(*Config) {
	return func(c *Config) {
		c.Resolve = func(ctx context.Context, id resource.GID) ([]string, error) {
			select {
			case <-silent:
				<-ctx.Done()
				return nil, context.Cause(ctx)
			default:
				return w.resolve(ctx, id)
			}
		}
	}
}

// doesNotDial is for a context that is only dialled.
func doesNotDial(c *Config) {
	c.Resolve = func(context.Context, resource.GID) ([]string, error) { return nil, nil }
}

// While the directory does not answer, a link resumes over the addresses at which its peer was
// reached last.
func TestResumesWithoutDirectory(t *testing.T) {
	w, silent := newWorld(), make(chan struct{})
	a, b := w.node(t, 1, tcp.New(), w.answersUntil(silent)), w.node(t, 2, tcp.New(), doesNotDial)
	mb := box(t, b, 1, 0)
	talk(t, a, b, mb, 1)
	close(silent)
	breakLink(a, b, errors.New("cut"))
	talk(t, a, b, mb, 2)
}

// Messages that had been delivered to a receiver that is killed are not reported, whether received
// or not. Messages that had been accepted and not delivered are, once the directory knows its end.
func TestDeliveredIsNotReported(t *testing.T) {
	over(t, links(), func(t *testing.T, w *world, tr subsys.Transport) {
		reported := make(chan Undelivered, 100)
		a := w.node(t, 1, tr, func(c *Config) { c.Undelivered = func(u Undelivered) { reported <- u } })
		b := w.node(t, 2, tr, givesUp)
		mb := box(t, b, 1, 0)
		f := flow(t, a, mb)
		for range 10 {
			try.OK(t, f.try(soon(t), 0, 10))
		}
		eventually.True(t, "all is acknowledged", f.idle)
		for _, p := range b.ports { // as if its process were killed
			p.Close()
		}
		b.eachLink(func(l *link) { l.endLink(ErrUnreachable) })
		try.OK(t, f.try(soon(t), 1, 10))
		w.setGone(b.self, true)
		eventually.Returns(t, "the report", func() {
			if u := <-reported; u.Tag != 1 || !errors.Is(u.Err, ErrGone) {
				t.Errorf("reported %+v", u)
			}
		})
		if err := a.Close(soon(t)); err != nil || len(reported) > 0 {
			t.Errorf("closed with %v, %d more reports", err, len(reported))
		}
	})
}

// A dialler whose handshake was refused admits the peer's connection with the number that it had
// proposed itself.
func TestProposedIsTakenBack(t *testing.T) {
	w := newWorld()
	a, b := w.node(t, 2, tcp.New()), w.node(t, 1, tcp.New())
	la := try.Get(a.link(b.self))(t)
	lb := try.Get(b.link(a.self))(t)
	gen := lb.life.Propose() // b dials too, and goes first
	if err := a.shake(soon(t), la, a.ports[0], b.Addrs()[0], nil); !errors.Is(err, ErrRefused) {
		t.Fatalf("the handshake ended with %v, not with a refusal", err)
	}
	if v := la.life.Admits(&wire.Attach{Session: 7, Gen: gen}, true, false); !v.IsAdmitted() {
		t.Errorf("refused: %+v", v)
	}
}

// A very long GiveUp is not taken for none.
func TestVeryLongGiveUp(t *testing.T) {
	for _, giveUp := range []time.Duration{time.Hour, 1 << 62, math.MaxInt64} {
		d := &Dispatcher{cfg: Config{GiveUp: giveUp}}
		if got := d.oversizeTimeout(); got < giveUp-2 { // a third of the longest is rounded
			t.Errorf("with %v a large message is waited for %v", giveUp, got)
		}
	}
}
