// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// crowd returns a context with more connections than are polled directly.
func crowd(t *testing.T) (b *Dispatcher, mb *Mailbox, peers []*Dispatcher, flows []*Flow) {
	w := newWorld()
	b = w.node(t, 100, tcp.New())
	mb = box(t, b, 1, 0)
	for i := range uint64(5) {
		p := w.node(t, 1+i, tcp.New())
		f := flow(t, p, mb)
		if err := f.try(soon(t), 0, 1); err != nil {
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
	b, mb, _, flows := crowd(t)
	for i := range 20 {
		eventually.True(t, "the keeper rests", b.keeperParked.Load)
		if err := flows[0].try(soon(t), 1, 100); err != nil {
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
	b, mb, _, flows := crowd(t)
	for round := range 5 {
		eventually.True(t, "the keeper rests", b.keeperParked.Load)
		const n = 1000
		sent := make(chan error, 1)
		go func() {
			for range n {
				if err := flows[0].try(soon(t), 1, 7000); err != nil {
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
