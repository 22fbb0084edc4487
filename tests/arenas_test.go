// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/shm"
)

// Contexts that have linked read large messages in place, even if all messages are held and lie in
// more arenas than a stranger may have mapped.
func TestManyArenas(t *testing.T) {
	const count, size = 40, 2 << 20 // each message is an arena
	ctx := context.Background()
	cl := rocltest.Cluster(t, 1)
	transport := lib.WithTransports(shm.New())
	a, b := cl.Open(0, transport), cl.Open(0, transport, lib.WithMailbox(count*(size+1024)))
	from := got(a.Register(ctx, nil))(t)
	to := got(b.Register(ctx, nil))(t)
	send := func(size int) *lib.Message {
		p := got(a.Buffer(size))(t)
		p.Bytes()[0] = 1
		must(t, from.Send(ctx, to.ID(), 0, p))
		m := got(to.Recv(ctx))(t)
		return m
	}
	send(1).Release() // this makes the link
	before := a.Stats().CopiedBytes
	for range count {
		defer send(size).Release()
	}
	if n := a.Stats().CopiedBytes - before; n >= size {
		t.Errorf("%d bytes of %d messages of %d were copied", n, count, size)
	}
}
