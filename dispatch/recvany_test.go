// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys/inproc"
)

// boxes returns n mailboxes of a context, and flows of another context to them.
func boxes(t *testing.T, n int) (ms []*Mailbox, fs []*Flow) {
	w := newWorld()
	tr := inproc.NewNetwork().Transport()
	a, b := w.node(t, 1, tr), w.node(t, 2, tr)
	for i := range n {
		m := box(t, b, uint32(i+1), 0)
		ms, fs = append(ms, m), append(fs, flow(t, a, m))
	}
	return ms, fs
}

// waiting reports whether a receiver waits at m.
func waiting(m *Mailbox) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waiters.First() != nil
}

// RecvAny fails for arguments that no message can satisfy.
func TestRecvAnyRefuses(t *testing.T) {
	ms, _ := boxes(t, 2)
	others, _ := boxes(t, 1)
	for name, f := range map[string]func() (int, *Message, error){
		"none":     func() (int, *Message, error) { return RecvAny(t.Context(), nil) },
		"foreign":  func() (int, *Message, error) { return RecvAny(t.Context(), append(ms, others...)) },
		"conflict": func() (int, *Message, error) { return RecvAny(t.Context(), ms, Tag(1), Tag(2)) },
	} {
		if i, _, err := f(); !errors.Is(err, ErrSelect) || i >= 0 {
			t.Errorf("%s: %d, %v", name, i, err)
		}
	}
	ctx := ended()
	if i, _, err := RecvAny(ctx, ms); !errors.Is(err, context.Canceled) || i >= 0 {
		t.Errorf("cancelled: %d, %v", i, err)
	}
}

// Mailboxes that always have a message are all received from.
func TestRecvAnyFair(t *testing.T) {
	ms, fs := boxes(t, 3)
	for _, f := range fs[:2] { // the last mailbox stays empty
		try.OK(t, f.SendBytes(t.Context(), 1, 2, nil))
	}
	var got [3]int
	for range 1000 {
		i, msg, err := RecvAny(t.Context(), ms)
		try.OK(t, err)
		got[i]++
		msg.Release()
		try.OK(t, fs[i].SendBytes(t.Context(), 1, 2, nil))
	}
	if got[0] < 100 || got[1] < 100 { // 2 : 1 is expected
		t.Errorf("received %v", got)
	}
}

// RecvAny ends when one of its mailboxes is closed, and returns its index.
func TestRecvAnyClosed(t *testing.T) {
	for round := range 200 {
		ms, fs := boxes(t, 3)
		if round%2 == 0 {
			ms[1].Close()
		} else {
			go func() {
				for !waiting(ms[2]) {
					if ms[2].isClosed() {
						return
					}
				}
				ms[1].Close()
			}()
		}
		if i, _, err := RecvAny(soon(t), ms); i != 1 || !errors.Is(err, ErrClosed) {
			t.Fatalf("%d, %v", i, err)
		}
		for _, m := range ms {
			if waiting(m) {
				t.Fatal("a receiver is left behind")
			}
		}
		// A stored message comes before the error of a closed mailbox.
		try.OK(t, fs[2].SendBytes(t.Context(), 1, 2, nil))
		i, msg, err := RecvAny(soon(t), ms)
		if i != 2 || err != nil {
			t.Fatalf("%d, %v", i, err)
		}
		msg.Release()
	}
}

// Each message is received once, by RecvAny or Recv, while receives are cancelled and messages put
// back.
//
// Promise (Receiving): `RecvAny` returns one message, loses none, and starves no resource. Closing
// one of its resources ends it with `ErrClosed`, which names the resource. See also TestRecvAny.
func TestRecvAnyLosesNothing(t *testing.T) {
	const n, each, receivers = 4, 2000, 4
	ms, fs := boxes(t, n)
	var got [n][each]atomic.Int32
	var left atomic.Int64
	left.Store(n * each)
	all, done := context.WithCancel(t.Context())
	defer done()
	var running sync.WaitGroup
	for _, f := range fs {
		running.Go(func() {
			for tag := range uint64(each) {
				try.Check(t, f.SendBytes(context.Background(), 1, tag, nil))
			}
		})
	}
	for r := range receivers {
		running.Go(func() {
			some := ms
			if r%2 == 1 {
				some = ms[1:]
			}
			for all.Err() == nil {
				ctx, cancel := context.WithCancel(all)
				kind := rand.IntN(3)
				sel := [][]Select{nil, {Tags(0, each)}, {TagMask(1, 1)}}[kind]
				if kind == 2 || rand.IntN(2) == 0 { // no message may match the mask
					running.Go(cancel)
				}
				var i int
				var msg *Message
				var err error
				if r == 0 {
					i = 0
					msg, err = ms[0].Recv(ctx, sel...)
				} else {
					i, msg, err = RecvAny(ctx, some, sel...)
				}
				cancel()
				if err != nil {
					if !errors.Is(err, context.Canceled) || msg != nil {
						t.Errorf("%v, %v", msg, err)
					}
					continue
				}
				m := ms[0]
				if r != 0 {
					m = some[i]
				}
				if rand.IntN(4) == 0 {
					try.Check(t, m.PutBack(msg))
					continue
				}
				got[m.serial-1][msg.Tag()].Add(1)
				msg.Release()
				if left.Add(-1) == 0 {
					done()
				}
			}
		})
	}
	running.Wait()
	for i := range got {
		for tag := range got[i] {
			if n := got[i][tag].Load(); n != 1 {
				t.Fatalf("message %d to mailbox %d was received %d times", tag, i, n)
			}
		}
		if ms[i].credit.Stored() != 0 || waiting(ms[i]) {
			t.Errorf("%d bytes are left in mailbox %d", ms[i].credit.Stored(), i)
		}
	}
}
