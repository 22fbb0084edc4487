// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/shm"
)

// deliver sends a buffer from one resource to another, which receives it.
func deliver(t *testing.T, from, to *lib.Resource, b *lib.Buffer) *lib.Message {
	t.Helper()
	try.OK(t, from.Send(bg, to.ID(), 0, b))
	return try.Get(to.Recv(bg))(t)
}

// deliverOwn is deliver with a buffer of the sender's own.
func deliverOwn(t *testing.T, from, to *lib.Resource, size int) *lib.Message {
	t.Helper()
	b := try.Get(from.Context().Buffer(size))(t)
	b.Bytes()[0], b.Bytes()[size-1] = 1, 2
	return deliver(t, from, to, b)
}

// A received message and a slice of it are sent on over shared memory without a copy. So is a
// message that is sent back.
func TestForwardWithoutCopy(t *testing.T) {
	const size = 1 << 20
	cl := rocltest.Cluster(t, 1)
	var rs [3]*lib.Resource
	for i := range rs {
		rs[i] = register(t, cl.Open(0, lib.WithTransports(shm.New())), nil)
	}
	for _, from := range rs {
		for _, to := range rs {
			deliverOwn(t, from, to, 1).Release() // makes the link
		}
	}
	copied := func() (n uint64) {
		for _, r := range rs {
			n += r.Context().Stats().CopiedBytes
		}
		return n
	}
	before := copied()
	for range 50 {
		first := deliverOwn(t, rs[0], rs[1], size)
		second := deliver(t, rs[1], rs[2], first.Buffer())
		whole := first.Buffer()
		part := deliver(t, rs[1], rs[2], whole.Slice(size/2, size/2))
		home := deliver(t, rs[1], rs[0], whole)
		first.Release()
		back := deliver(t, rs[2], rs[1], second.Buffer())
		again := deliver(t, rs[2], rs[0], part.Buffer())
		want := second.Bytes()
		for i, m := range []*lib.Message{second, part, home, back, again} {
			if p := m.Bytes(); !bytes.Equal(p, want[len(want)-len(p):]) || !m.ReadOnly() {
				t.Fatalf("message %d of %d bytes is not as it was sent, or not read-only", i, m.Len())
			}
		}
		for _, m := range []*lib.Message{part, home, back, again, second} {
			m.Release()
		}
	}
	if n := copied() - before; n >= size/2 {
		t.Errorf("%d bytes were copied", n)
	}
}

// Contexts that have linked read large messages in place, even if all messages are held and lie in
// more arenas than a stranger may have mapped.
func TestManyArenas(t *testing.T) {
	const count, size = 40, 2 << 20 // each message is an arena
	cl := rocltest.Cluster(t, 1)
	transport := lib.WithTransports(shm.New())
	from, to := register(t, cl.Open(0, transport), nil), register(t, cl.Open(0, transport, lib.WithMailbox(count*(size+1024))), nil)
	deliverOwn(t, from, to, 1).Release() // makes the link
	before := from.Context().Stats().CopiedBytes
	for range count {
		defer deliverOwn(t, from, to, size).Release()
	}
	if n := from.Context().Stats().CopiedBytes - before; n >= size {
		t.Errorf("%d bytes of %d messages of %d were copied", n, count, size)
	}
}
