// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Lent memory arrives as a message, is not copied within the process, and is given back once, when
// nothing reads it any more.
//
// Promise (Package bulk): Memory that was lent is given back once.
func TestLend(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		from, to := newResource(t, a, nil), newResource(t, b, nil)
		for _, n := range []int{0, 1, 3000, 100_000, 1 << 20} {
			mem := bytes.Repeat([]byte{5}, n)
			back := make(chan struct{})
			var times atomic.Int32
			lent := a.Lend(mem, func() {
				if times.Add(1) == 1 {
					close(back)
				}
			})
			if lent.Len() != n || !lent.ReadOnly() {
				t.Errorf("a buffer of %d bytes, read-only: %t", lent.Len(), lent.ReadOnly())
			}
			lent.Retain()
			try.OK(t, from.Send(bg, to.ID(), 1, lent))
			m := recv(t, to)
			if !bytes.Equal(m.Bytes(), mem) || t.Name() == "TestLend/inproc" && n > 0 && &m.Bytes()[0] != &mem[0] {
				t.Errorf("%d bytes: another message, or a copy", n)
			}
			select {
			case <-back:
				t.Errorf("%d bytes are given back while the sender has the buffer", n)
			default:
			}
			lent.Release()
			m.Release()
			<-back
			if got := times.Load(); got != 1 {
				t.Errorf("given back %d times", got)
			}
		}
	})
}
