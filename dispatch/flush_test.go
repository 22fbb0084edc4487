// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// After Flush every message that was accepted before is in its mailbox: small messages, large ones,
// messages that travel in pieces, and messages behind these.
//
// Promise (Delivery): `Flush` returns when each message accepted before was delivered or reported.
// Its error says how many were not delivered, to which targets, and why. See also
// TestFlushTellsUndelivered.
func TestFlush(t *testing.T) {
	over(t, allTransports(t), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		me, mb := box(t, a, 1, 0), box(t, b, 1, 0)
		f := flow(t, a, mb)
		total := 0
		for round := range 20 {
			for _, n := range []int{0, 100, 3_000, 300_000, 10, 100_000} {
				try.OK(t, f.try(soon(t), uint64(round), n))
				total++
			}
			flush := me.Flush
			if round%2 == 0 {
				flush = a.Flush
			}
			try.OK(t, flush(soon(t)))
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

// Flush says exactly how many of the accepted messages were not delivered because their resource
// was gone, while the receiver's context sends acknowledgements all the time. It tells each of them
// once.
func TestFlushTellsUndelivered(t *testing.T) {
	over(t, links(), func(t *testing.T, w *world, tr subsys.Transport) {
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
			try.OK(t, f.try(soon(t), 0, 10))
			try.OK(t, me.Flush(soon(t)))
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
			try.OK(t, me.Flush(soon(t)), "they are reported twice")
		}
		close(stop)
		<-ended
		try.Fails(a.Flush(soon(t)))(t, ErrGone, "the context's Flush")
		try.Check(t, other.Flush(soon(t)), "another resource's messages are reported")
		other.Close()
	})
}

// Flush fails when the peer is out of reach for too long, with the number of messages that were
// under way.
func TestFlushUnreachable(t *testing.T) {
	inSimulation(t, func(t *testing.T, n *simulated) {
		a := newWorld().node(t, 1, n.transport()) // knows no address of the peer: the search for it goes on
		me := box(t, a, 1, 0)
		f := try.Get(a.Flow(resource.MakeGID(1, 2, 0), 1))(t)
		for _, n := range []int{10, 10_000, 10} {
			try.OK(t, f.try(soon(t), 0, n))
		}
		var fe *FlushError
		if err := me.Flush(ended()); !errors.As(err, &fe) || fe.Waiting != 3 || fe.Undelivered != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("while the peer is looked for: %v", err)
		}
		if err := me.Flush(soon(t)); !errors.As(err, &fe) || fe.Waiting != 0 || fe.Undelivered != 3 || !errors.Is(err, ErrUnreachable) {
			t.Errorf("when it was given up: %v", err)
		}
	})
}

// Flush of a resource does not wait for messages of other resources, and Flush of the
// context does.
//
// Promise (Delivery): `Flush` of a resource waits for its own messages only; with identifiers, only
// for messages to these targets. See also TestFlushOfTargets.
func TestFlushOfOneResource(t *testing.T) {
	w := newWorld()
	tr := transports()["tcp"]
	a, b := w.node(t, 1, tr, func(c *Config) { c.GiveUp = time.Hour }), w.node(t, 2, tr)
	me, other := box(t, a, 1, 0), box(t, a, 2, 0)
	nobody := resource.MakeGID(1, 3, 0) // has no address
	defer w.setGone(nobody, true)       // then a can close
	f, err := a.Flow(nobody, 1)
	try.OK(t, err)
	try.OK(t, f.SendBytes(soon(t), other.serial, 0, []byte("stuck")))
	mb := box(t, b, 1, 0)
	try.OK(t, flow(t, a, mb).try(soon(t), 0, 10))
	try.Check(t, me.Flush(soon(t)))
	if n, _ := mb.Len(); n != 1 {
		t.Errorf("%d messages are in the mailbox", n)
	}
	ctx := ended()
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
	try.OK(t, err)
	try.OK(t, f.try(soon(t), 0, 10))
	got := make(chan error, 2)
	go func() { got <- me.Flush(soon(t)) }()
	go func() { got <- a.Flush(soon(t)) }()
	ctx := ended()
	a.Close(ctx)
	eventually.Returns(t, "Flush", func() {
		for range 2 {
			try.Fails(<-got)(t, ErrClosed, "Flush as the context closed")
		}
	})
	try.Fails(me.Flush(soon(t)))(t, ErrClosed, "Flush of a closed resource")
}

// Wait returns when the library no longer needs a buffer: when its message was delivered over the
// last of its links, or was given up.
//
// Promise (Delivery): `Buffer.Wait` returns when each send of the buffer was delivered or given up.
// See also buffers: TestWait.
func TestWaitForBuffer(t *testing.T) {
	over(t, links(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr, func(c *Config) { c.GiveUp = time.Hour }), w.node(t, 2, tr)
		mb := box(t, b, 1, 0)
		nobody := resource.MakeGID(1, 3, 0) // the context has no address
		lost, err := a.Flow(nobody, 1)
		try.OK(t, err)
		p := noise(t, a, 10_000, 1)
		try.Check(t, p.Wait(soon(t)), "a buffer that was not sent")
		for range 20 {
			p.Retain()
			try.OK(t, flow(t, a, mb).Send(soon(t), 1, 0, p))
			try.OK(t, p.Wait(soon(t)))
			if n, _ := mb.Len(); n != 1 {
				t.Fatalf("%d messages are in the mailbox", n)
			}
			take(t, mb)
		}
		p.Retain()
		try.OK(t, lost.Send(soon(t), 1, 0, p))
		p.Retain()
		try.OK(t, flow(t, a, mb).Send(soon(t), 1, 0, p))
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
		try.OK(t, lost.Send(soon(t), 1, 0, p))
		p.Retain()
		try.OK(t, flow(t, a, mb).Send(soon(t), 1, 0, p))
		take(t, mb)
		ctx := ended()
		try.Fails(p.Wait(ctx))(t, context.Canceled, "one of two sends is under way")
		w.setGone(nobody, true)
		if err := p.Wait(soon(t)); err != nil || p.State() != buffers.Delivered {
			t.Errorf("when the link was given up: %v, the buffer is %v", err, p.State())
		}
		p.Release()
	})
}

// Each loss is taken together with its reason and its target, even if losses are counted while
// others are taken. Flush returns nil without a reason, so a count without one would be a report
// that is lost.
func TestLossesHaveReasons(t *testing.T) {
	const each = 50_000
	var l losses
	var adding sync.WaitGroup
	for i, err := range lossErrs {
		adding.Go(func() {
			for range each {
				l.add(resource.MakeGID(1, uint64(i+1), 1), err)
			}
		})
	}
	total := 0
	take := func() {
		by, sum := l.take(nil)
		n := 0
		for to, o := range by {
			if i := slices.IndexFunc(lossErrs[:], func(err error) bool { return errors.Is(errors.Join(o.errs()...), err) }); o.n == 0 || to != resource.MakeGID(1, uint64(i+1), 1) {
				t.Fatalf("%d losses of %v with the reasons %v", o.n, to, o.errs())
			}
			n += o.n
		}
		if n != sum.n || (sum.n > 0) != (len(sum.errs()) > 0) {
			t.Fatalf("%d losses, %d of them with targets, with %d reasons", sum.n, n, len(sum.errs()))
		}
		total += sum.n
	}
	for total < each*len(lossErrs) {
		take()
	}
	adding.Wait()
	if take(); total != each*len(lossErrs) {
		t.Errorf("%d losses were taken", total)
	}
}

// A context remembers a bounded number of targets, and counts the losses of all.
func TestLossesAreBounded(t *testing.T) {
	const most = MaxFlushTargets + 10
	var l losses
	for i := range most {
		l.add(resource.MakeGID(1, 2, uint32(i+1)), ErrGone)
	}
	last := resource.MakeGID(1, 2, most)
	try.Check(t, l.flushError([]resource.GID{last}, nil, nil), "a target that is not remembered")
	var fe *FlushError
	if err := l.flushError(nil, nil, nil); !errors.As(err, &fe) || fe.Undelivered != most || len(fe.Targets) != MaxFlushTargets {
		t.Fatalf("%v", err)
	}
	if text := fe.Error(); len(text) > 300 || !strings.Contains(text, fmt.Sprintf("%d to other targets", most-3)) {
		t.Errorf("the text is %q", text)
	}
	if !slices.IsSortedFunc(fe.Targets, func(a, b FlushTarget) int { return a.To.Compare(b.To) }) {
		t.Error("the targets have no order")
	}
	try.Check(t, l.flushError(nil, nil, nil), "the losses are reported twice")
}

// FlushError names each target with its messages. Flush with identifiers waits for the messages to
// these targets, counts their losses, and leaves the others to a later Flush.
func TestFlushOfTargets(t *testing.T) {
	over(t, links(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr, func(c *Config) { c.GiveUp = time.Hour }), w.node(t, 2, tr)
		me, mb := box(t, a, 1, 0), box(t, b, 1, 0)
		good := b.self.WithSerial(1)
		gone, gone2 := b.self.WithSerial(8), b.self.WithSerial(9)
		nobody := resource.MakeGID(1, 3, 0) // has no address
		defer w.setGone(nobody, true)       // then a can close
		stuck := nobody.WithSerial(5)
		send := func(to resource.GID, sizes ...int) {
			f := try.Get(a.Flow(to.Context(), to.Serial()))(t)
			for _, n := range sizes {
				try.OK(t, f.try(soon(t), 7, n))
			}
		}
		send(stuck, 10, 10_000, 10)
		send(good, 10, 10_000, 300_000)
		try.Check(t, me.Flush(soon(t), good), "a target that has its messages")
		if n, _ := mb.Len(); n != 3 {
			t.Errorf("%d messages are in the mailbox", n)
		}
		send(gone2, 10)
		try.Check(t, me.Flush(soon(t), gone), "a target without messages")
		send(gone, 10)
		for _, flush := range []func(context.Context, ...resource.GID) error{me.Flush, a.Flush} {
			var fe *FlushError
			if err := flush(soon(t), gone, good); !errors.As(err, &fe) || !errors.Is(err, ErrGone) || !slices.Equal(fe.Targets, []FlushTarget{{gone, 1, 0}}) {
				t.Fatalf("of two targets: %+v", err)
			}
			try.Check(t, flush(soon(t), gone), "told twice")
			ctx := ended()
			err := flush(ctx)
			if !errors.As(err, &fe) || !slices.Equal(fe.Targets, []FlushTarget{{gone2, 1, 0}, {stuck, 0, 3}}) || fe.Undelivered != 1 || fe.Waiting != 3 {
				t.Fatalf("of all targets: %+v", err)
			}
			if !strings.Contains(err.Error(), fmt.Sprintf("1 message undelivered, 3 messages not acknowledged yet (1 to %v, 3 to %v): ", gone2, stuck)) {
				t.Errorf("the text is %q", err)
			}
		}
	})
}

// The error of Close names the targets of the messages that were lost.
func TestCloseNamesTargets(t *testing.T) {
	w := newWorld()
	a := w.node(t, 1, transports()["tcp"])
	nobody := resource.MakeGID(1, 3, 0) // has no address
	for serial := range uint32(5) {
		f := try.Get(a.Flow(nobody, serial+1))(t)
		for range serial + 1 {
			try.OK(t, f.try(soon(t), 0, 10))
		}
	}
	ctx := ended()
	err := a.Close(ctx)
	var fe *FlushError
	if !errors.As(err, &fe) || fe.Undelivered != 15 || len(fe.Targets) != 5 || fe.Targets[4] != (FlushTarget{nobody.WithSerial(5), 5, 0}) || !errors.Is(err, ErrClosed) {
		t.Fatalf("%+v", err)
	}
	if !strings.Contains(err.Error(), fmt.Sprintf("15 messages undelivered (1 to %v, 2 to %v, 3 to %v, 9 to other targets): ", nobody.WithSerial(1), nobody.WithSerial(2), nobody.WithSerial(3))) {
		t.Errorf("the text is %q", err)
	}
}

// A message of SendAndForget is delivered as any other, and its loss is never told: whether its
// resource is gone or goes, within the process and over links, in one piece and in several. Other
// losses are told meanwhile.
//
// Promise (Delivery): A message of `SendAndForget` is delivered as any other, but nothing waits for
// it and its loss is not reported. See also TestSessionModel.
func TestSendAndForget(t *testing.T) {
	over(t, allTransports(t), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr, func(c *Config) {
			c.Undelivered = func(u Undelivered) {
				if u.Tag != 1 {
					t.Errorf("reported: %+v", u)
				}
			}
		}), w.node(t, 2, tr)
		me, mb := box(t, a, 1, 0), box(t, b, 1, 0)
		f := flow(t, a, mb)
		forget := func(sizes ...int) {
			for _, n := range sizes {
				if err := f.SendAndForget(soon(t), 1, 2, make([]byte, n)); err != nil && !errors.Is(err, ErrGone) {
					t.Fatal(err)
				}
			}
		}
		sizes := []int{0, 100, 3_000, 300_000, 10}
		forget(sizes...)
		for _, want := range sizes {
			m, err := mb.Recv(soon(t))
			if err != nil || m.Len() != want || m.Tag() != 2 {
				t.Fatalf("received %v, want %d bytes: %v", m, want, err)
			}
			m.Release()
		}
		forget(sizes...) // unread as the resource ends
		try.OK(t, f.try(soon(t), 1, 10))
		try.OK(t, me.Flush(soon(t)))
		mb.Close()
		forget(sizes...) // perhaps under way as the resource ends
		eventually.True(t, "the other message is reported", func() bool { return a.Stats().Undelivered == 1 })
		var fe *FlushError
		if err := me.Flush(soon(t)); !errors.As(err, &fe) || fe.Undelivered != 1 || len(fe.Targets) != 1 {
			t.Errorf("Flush: %v", err)
		}
		try.Check(t, a.Close(soon(t)), "Close")
		if n := a.Stats().Undelivered; n != 1 {
			t.Errorf("%d messages are counted as undelivered", n)
		}
	})
}

// Neither Flush nor Close waits for messages of SendAndForget, and neither fails for them, though
// their target is out of reach: 25 sources end without an error.
func TestForgottenIsNotAwaited(t *testing.T) {
	over(t, links(), func(t *testing.T, w *world, tr subsys.Transport) {
		nobody := resource.MakeGID(1, 100, 0) // has no address
		for i := range 25 {
			a := w.node(t, uint64(i+1), tr, func(c *Config) {
				c.GiveUp = time.Hour
				c.Undelivered = func(u Undelivered) { t.Errorf("reported: %+v", u) }
			})
			me := box(t, a, 1, 0)
			f := try.Get(a.Flow(nobody, 1))(t)
			for _, n := range []int{10, 3_000, 30_000, 10} {
				try.OK(t, f.SendAndForget(soon(t), 1, 2, make([]byte, n)))
			}
			for _, err := range []error{me.Flush(soon(t)), a.Flush(soon(t), nobody.WithSerial(1)), a.Close(soon(t))} {
				try.Check(t, err)
			}
		}
	})
}

// Close waits for a message that was sent behind forgotten ones, and before them.
func TestCloseWaitsBesideForgotten(t *testing.T) {
	over(t, links(), func(t *testing.T, _ *world, tr subsys.Transport) {
		for _, sizes := range [][]int{{10}, {300_000}} {
			w := newWorld()
			a, b := w.node(t, 1, tr), w.node(t, 2, tr)
			mb := box(t, b, 1, 0)
			f := flow(t, a, mb)
			for _, n := range sizes {
				for _, err := range []error{f.SendAndForget(soon(t), 1, 2, make([]byte, n)), f.try(soon(t), 1, n), f.SendAndForget(soon(t), 1, 2, make([]byte, n))} {
					try.OK(t, err)
				}
			}
			try.Check(t, a.Close(soon(t)))
			if n, _ := mb.Len(); n < 2 {
				t.Errorf("%d messages have arrived", n)
			}
		}
	})
}
