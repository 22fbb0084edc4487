// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// A receive from resources that have ended, and have left nothing that it selects, fails with
// ErrGone. It does so whether they end while it waits, or had ended before.
//
// Promise (Receiving): A receive from resources that have ended and left no message fails with
// `ErrGone`. See also TestDoubtRaces.
func TestRecvFromGone(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mine, one, two := box(t, a, 1, 0), box(t, b, 1, 0), box(t, b, 2, 0)
		first, second := monitored(one), monitored(two)
		recv := func(sel ...Select) chan error {
			got := make(chan error, 1)
			go func() {
				msg, err := mine.Recv(soon(t), sel...)
				if err == nil {
					msg.Release()
				}
				got <- err
			}()
			return got
		}
		isGone := func(what string, got chan error) {
			t.Helper()
			if err := <-got; !errors.Is(err, ErrGone) {
				t.Fatalf("%s: %v", what, err)
			}
		}
		alone, either := recv(From(first)), recv(From(first, second), Tag(5))
		alternatives := recv(Any(All(From(first), Tag(1)), From(second)))
		f := flow(t, b, mine)
		try.OK(t, f.SendBytes(soon(t), one.serial, 3, nil))
		try.OK(t, <-alone)
		alone = recv(From(first))
		try.OK(t, f.SendBytes(soon(t), one.serial, 3, nil))
		try.OK(t, <-alone)
		unread := recv(From(first), Tag(9))
		if err := f.SendBytes(soon(t), one.serial, 3, nil); err != nil { // it is not selected, and stays
			t.Fatal(err)
		}
		one.Close()
		isGone("while it waited", unread)
		take(t, mine, From(first))
		isGone("before", recv(From(first)))
		select {
		case err := <-either:
			t.Fatal("one of two lives:", err)
		case err := <-alternatives:
			t.Fatal("one of two lives:", err)
		default:
		}
		try.OK(t, f.SendBytes(soon(t), two.serial, 4, nil))
		try.OK(t, <-alternatives)
		two.Close()
		isGone("both", either)
		isGone("of several mailboxes", func() chan error {
			got := make(chan error, 1)
			go func() {
				of, _, err := RecvAny(soon(t), []*Mailbox{mine, box(t, a, 9, 0)}, From(first))
				if of != -1 {
					t.Errorf("the end is reported of mailbox %d", of)
				}
				got <- err
			}()
			return got
		}())
		isGone("a context of which nothing is known", func() chan error {
			id := resource.MakeGID(1, 77, 1)
			w.setGone(id.Context(), true)
			return recv(From(id))
		}())
	})
}

// A receive with an originWatch ends with its message, with its context, or with its mailbox, and
// nothing of the watch remains.
func TestDoubtIsForgotten(t *testing.T) {
	over(t, links(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mine, its := box(t, a, 1, 0), box(t, b, 1, 0)
		f := flow(t, b, mine)
		ended := func() int {
			l := try.Get(a.link(b.self))(t)
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.endings)
		}
		for i := range 3 {
			ctx, cancel := context.WithCancel(soon(t))
			got := make(chan error, 1)
			go func() {
				msg, err := mine.Recv(ctx, From(monitored(its)))
				if err == nil {
					msg.Release()
				}
				got <- err
			}()
			eventually.True(t, "the receive has an originWatch", func() bool { return ended() == 1 })
			var want error
			switch i {
			case 0:
				try.OK(t, f.SendBytes(soon(t), its.serial, 1, nil))
			case 1:
				cancel()
				want = context.Canceled
			case 2:
				mine.Close()
				want = ErrClosed
			}
			if err := <-got; !errors.Is(err, want) {
				t.Fatalf("%v, want %v", err, want)
			}
			eventually.True(t, "nothing waits for the end", func() bool { return ended() == 0 }) // at once, or when the watch has been registered
			cancel()
		}
	})
}

// Messages, ends of resources, and ends of receives race.
func TestDoubtRaces(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)
		mine := box(t, a, 1, 0)
		f := flow(t, b, mine)
		for i := range uint32(30) {
			its := box(t, b, 1+i, 0)
			got := make(chan int, 1)
			go func() {
				n := 0
				for {
					msg, err := mine.Recv(soon(t), From(monitored(its)))
					if err != nil {
						if !errors.Is(err, ErrGone) {
							t.Error(err)
						}
						got <- n
						return
					}
					n++
					msg.Release()
				}
			}()
			for range i * 20 {
				runtime.Gosched()
			}
			const count = 5
			for range count {
				try.OK(t, f.SendBytes(soon(t), its.serial, 1, nil))
			}
			its.Close()
			if n := <-got; n != count {
				t.Fatalf("%d of %d messages before the end", n, count)
			}
		}
	})
}
