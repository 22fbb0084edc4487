// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// The caller keeps a buffer whose Send failed, for whatever reason, and sends it again.
func TestSendFailsKeepsBuffer(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...rocl.Option) *rocl.Context) {
		a, b := open(), open()
		me, deleted := newResource(t, a, nil), newResource(t, a, nil)
		full, err := b.Register(bg, nil, rocl.MailboxLimit(1))
		try.OK(t, err)
		for err == nil { // until the senders wait
			ctx, cancel := context.WithCancel(bg)
			cancel()
			err = me.SendBytes(ctx, full.ID(), 0, make([]byte, 10<<10))
		}
		try.OK(t, deleted.Close())
		ended, cancel := context.WithCancel(bg)
		cancel()
		p := try.Get(a.Buffer(20 << 10))(t)
		for _, c := range []struct {
			name string
			from *rocl.Resource
			to   resource.GID
			want error
		}{
			{"no identifier", me, resource.GID{}, dispatch.ErrGone},
			{"no such context", me, resource.MakeGID(1, 2, 3), dispatch.ErrGone},
			{"a sender that is deleted", deleted, full.ID(), dispatch.ErrClosed},
			{"a mailbox that is full", me, full.ID(), context.Canceled},
		} {
			ctx := bg
			if c.want == context.Canceled {
				ctx = ended
			}
			try.Fails(c.from.Send(ctx, c.to, 0, p))(t, c.want, c.name)
			if p.State() != buffers.Owned || p.Refs() != 1 {
				t.Fatalf("%s: the buffer is %v, with %d references", c.name, p.State(), p.Refs())
			}
		}
		you := newResource(t, b, nil)
		try.OK(t, me.Send(bg, you.ID(), 0, p))
		m := recv(t, you)
		m.Release()
		for {
			m, err := full.TryRecv()
			if err != nil {
				break
			}
			m.Release()
		}
	})
}
