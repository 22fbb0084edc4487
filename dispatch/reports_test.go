// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// While the function for reports blocks, messages move, mailboxes open and close, and further
// reports wait. The reports come in order, one at a time, while the dispatcher holds no lock.
//
// Promise (Delivery): The function of `WithUndelivered` may block, send, register and close. It is
// called in order, and nothing but `Close` waits for it. See also internal/callqueue: TestBounded.
func TestBlockedReportStallsNothing(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		begun, goOn := make(chan struct{}, 1), make(chan struct{})
		var tags []uint64
		all := make(chan struct{})
		const lost = 100
		a := w.node(t, 1, tr, func(c *Config) {
			c.Undelivered = func(u Undelivered) {
				select {
				case begun <- struct{}{}:
				default:
				}
				<-goOn
				if tags = append(tags, u.Tag); len(tags) == lost {
					close(all)
				}
			}
		})
		b := w.node(t, 2, tr)
		unblock := sync.OnceFunc(func() { close(goOn) })
		defer unblock()
		gone, kept, mine := box(t, b, 1, 0), box(t, b, 2, 0), box(t, a, 1, 0)
		for i := range uint64(lost) {
			try.OK(t, flow(t, a, gone).try(soon(t), i, 10))
		}
		eventually.True(t, "the messages", func() bool { n, _ := gone.Len(); return n == lost })
		gone.Close()
		eventually.Returns(t, "the first report", func() { <-begun })
		eventually.True(t, "the other reports", func() bool { return a.lost.Load() == lost })
		eventually.Returns(t, "messages beside a blocked report", func() {
			for i := range uint64(50) {
				if err := errors.Join(flow(t, a, kept).try(soon(t), i, 3000), flow(t, b, mine).try(soon(t), i, 10)); err != nil {
					t.Error(err)
					return
				}
				take(t, kept, Tag(i))
				take(t, mine, Tag(i))
			}
			box(t, a, 7, 0).Close()
		})
		unblock()
		eventually.Returns(t, "the reports", func() { <-all })
		for i, tag := range tags {
			if tag != uint64(i) {
				t.Fatalf("report %d is of message %d", i, tag)
			}
		}
	})
}

// loseAt sends n messages from a to a resource of b that does not exist.
func loseAt(t *testing.T, a, b *Dispatcher, n int) {
	t.Helper()
	m := box(t, b, 99, 0)
	for i := range n {
		try.OK(t, flow(t, a, m).try(soon(t), uint64(i), 1))
	}
	eventually.True(t, "the messages", func() bool { k, _ := m.Len(); return k == n })
	m.Close()
}

// The function for reports may use the dispatcher: it may send, receive, open a mailbox, and close
// the dispatcher, from several contexts at once.
func TestReportMayClose(t *testing.T) {
	over(t, transports(), func(t *testing.T, w *world, tr subsys.Transport) {
		var a *Dispatcher
		var reported []uint64
		closed := make(chan error, 1)
		b := w.node(t, 2, tr)
		kept := box(t, b, 1, 0)
		ready := make(chan struct{})
		a = w.node(t, 1, tr, func(c *Config) {
			c.Undelivered = func(u Undelivered) {
				<-ready
				reported = append(reported, u.Tag)
				if len(reported) > 1 {
					if len(reported) == 5 {
						closed <- nil
					}
					return
				}
				f, err := a.Flow(b.self, 1)
				if err == nil {
					err = f.SendBytes(context.Background(), 1, 2, []byte("x"))
				}
				m, err2 := a.Mailbox(3, 0)
				if err2 == nil {
					_, err2 = m.TryRecv()
					m.Close()
				}
				if errors.Is(err2, ErrEmpty) {
					err2 = nil
				}
				if err = errors.Join(err, err2, a.Close(soon(t)), a.Close(soon(t))); err != nil {
					closed <- err
				}
			}
		})
		loseAt(t, a, b, 5)
		eventually.True(t, "the reports", func() bool { return a.lost.Load() == 5 })
		close(ready)
		eventually.Returns(t, "closing within a report", func() {
			try.Check(t, <-closed)
		})
		take(t, kept)
		if !slices.Equal(reported, []uint64{0, 1, 2, 3, 4}) {
			t.Errorf("reported %v", reported)
		}
	})
}

// Close waits for the reports that are queued. It does not wait for ever for a function that does
// not return: the error says how many reports it dropped.
func TestCloseWaitsForReports(t *testing.T) {
	w := newWorld()
	tr := transports()["inproc"]
	b := w.node(t, 9, tr)
	done := 0
	a := w.node(t, 1, tr, func(c *Config) { c.Undelivered = func(Undelivered) { runtime.Gosched(); done++ } })
	const lost = 2000
	for n := 1; n <= 4; n++ {
		m := box(t, b, uint32(n), 0)
		for range lost / 4 {
			try.OK(t, flow(t, a, m).try(soon(t), 0, 0))
		}
		eventually.True(t, "the messages", func() bool { k, _ := m.Len(); return k == lost/4 })
		m.Close()
	}
	try.Check(t, a.Close(soon(t)))
	if done != lost {
		t.Errorf("%d reports after Close, want %d", done, lost)
	}

	goOn := make(chan struct{})
	stuck := w.node(t, 2, tr, func(c *Config) { c.Undelivered = func(Undelivered) { <-goOn } })
	loseAt(t, stuck, b, 10)
	eventually.True(t, "the reports", func() bool { return stuck.lost.Load() == 10 })
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	eventually.Returns(t, "closing while a report blocks", func() {
		err := stuck.Close(ended)
		if n := stuck.Stats().Unreported; err == nil || n < 9 {
			t.Errorf("closed with %v, %d unreported", err, n)
		}
	})
	close(goOn)
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
				try.Check(t, err)
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
		try.OK(t, flow(t, ds[i], boxes[1-i]).try(soon(t), 1, 1))
	}
	for i := range ds {
		eventually.True(t, "the message", func() bool { n, _ := boxes[i].Len(); return n == 1 })
	}
	eventually.Returns(t, "closing mailboxes", func() {
		var wg sync.WaitGroup
		for i := range boxes {
			wg.Go(boxes[i].Close)
		}
		wg.Wait()
		sent.Wait()
	})
}
