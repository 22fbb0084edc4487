// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

// onEnd returns a channel that receives the end of a flow's resource.
func onEnd(t *testing.T, f *Flow) (ended chan error, cancel func() bool) {
	t.Helper()
	ended = make(chan error, 2)
	cancel, err := f.OnEnd(soon(t), func(err error) { ended <- err })
	try.OK(t, err)
	return ended, cancel
}

// awaitEnd waits for an end that matches want.
func awaitEnd(t *testing.T, ended chan error, want error) {
	t.Helper()
	select {
	case err := <-ended:
		if !errors.Is(err, want) {
			t.Fatalf("%v, want %v", err, want)
		}
	case <-soon(t).Done():
		t.Fatal("the end was not reported")
	}
}

func TestOnEnd(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		a, b := w.node(t, 1, tr), w.node(t, 2, tr)

		t.Run("deleted", func(t *testing.T) {
			m := box(t, b, 1, 0)
			first, _ := onEnd(t, flow(t, a, m))
			second, cancel := onEnd(t, flow(t, a, m))
			third, _ := onEnd(t, flow(t, a, m))
			if !cancel() {
				t.Fatal("the function had been called")
			}
			m.Close()
			awaitEnd(t, first, ErrGone)
			awaitEnd(t, third, ErrGone)
			if cancel() || len(second)+len(first)+len(third) > 0 {
				t.Fatal("a function was called twice, or after cancel")
			}
		})
		t.Run("behind its messages", func(t *testing.T) {
			m, mine := box(t, b, 2, 0), box(t, a, 2, 0)
			ended, _ := onEnd(t, flow(t, a, m))
			f := flow(t, b, mine)
			const count = 1000
			for i := range count {
				try.OK(t, f.SendBytes(soon(t), m.serial, uint64(i), []byte("last words")))
			}
			m.Close()
			wait, cancel := context.WithCancel(soon(t)) // a receiver makes progress until the end
			go func() {
				awaitEnd(t, ended, ErrGone)
				if n, _ := mine.Len(); n != count {
					t.Errorf("%d of %d messages before the end", n, count)
				}
				cancel()
			}()
			if _, err := mine.Recv(wait, Tag(count)); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		})
		t.Run("never there", func(t *testing.T) {
			f, err := a.Flow(b.self, 77)
			if err != nil && tr.Name() == "inproc" {
				return // Flow returns the error at once
			}
			try.OK(t, err)
			ended, _ := onEnd(t, f)
			awaitEnd(t, ended, ErrGone)
		})
		t.Run("already gone", func(t *testing.T) {
			m := box(t, b, 3, 0)
			f := flow(t, a, m)
			try.OK(t, f.SendBytes(soon(t), 1, 0, nil))
			try.OK(t, errOf(m.Recv(soon(t))))
			m.Close()
			ended, _ := onEnd(t, f)
			awaitEnd(t, ended, ErrGone)
		})
		t.Run("with its context", func(t *testing.T) {
			c := w.node(t, 3, tr)
			m := box(t, c, 1, 0)
			f := flow(t, a, m)
			try.OK(t, f.SendBytes(soon(t), 1, 0, nil))
			if _, err := m.Recv(soon(t)); err != nil { // now there is a connection
				t.Fatal(err)
			}
			ended, _ := onEnd(t, f)
			try.OK(t, c.Close(soon(t)))
			awaitEnd(t, ended, ErrGone)
		})
		t.Run("as this context closes", func(t *testing.T) {
			c := w.node(t, 4, tr)
			ended, _ := onEnd(t, flow(t, c, box(t, b, 4, 0)))
			try.OK(t, c.Close(soon(t)))
			awaitEnd(t, ended, ErrClosed)
		})
	})
}

// Endings may be cancelled while they go to the successor of their link.
func TestEndingsPassBesideCancel(t *testing.T) {
	for range 100 {
		from, to := new(link), new(link)
		from.endings = map[uint32]*endings{1: new(endings)}
		var es []*ending
		for range 20 {
			e := &ending{}
			e.at.Store(from)
			from.endings[1].push(e)
			es = append(es, e)
		}
		var cancelling sync.WaitGroup
		for _, e := range es {
			cancelling.Go(func() {
				if !e.cancel(1) {
					t.Error("an ending is in no list")
				}
			})
		}
		from.mu.Lock()
		to.mu.TryLock()
		from.passEndingsLocked(to)
		to.mu.Unlock()
		from.mu.Unlock()
		cancelling.Wait()
		if len(from.endings)+len(to.endings) != 0 {
			t.Fatal("cancelled endings are left")
		}
	}
}
