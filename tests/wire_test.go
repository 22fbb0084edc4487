// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/subsys/simnet"
	"github.com/rocl-go/rocl/tpvm"
)

// bubble runs a subtest in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// A wire joins two contexts of one node over a network in memory. It belongs to a bubble.
type wire struct {
	*simnet.Network
	ends [2]*simnet.Process
	node *directory.Server
}

// reach is the beginning of addresses of a wire.
const reach = "sim://10.0.0."

func newWire(t *testing.T) *wire {
	w := &wire{Network: simnet.New(1), node: server(t)}
	for i := range w.ends {
		w.ends[i] = w.AddHost(fmt.Sprint("end", i)).Start()
	}
	return w
}

// open opens a context at one end of the wire.
func (w *wire) open(t *testing.T, end int, opts ...lib.Option) *lib.Context {
	t.Helper()
	return openAt(t, w.node.Dialer(), append(opts, lib.WithTransports(w.ends[end].Transport()), lib.WithUndelivered(func(lib.Undelivered) {}))...)
}

// cut breaks all connections, and lets nothing pass until Heal.
func (w *wire) cut() {
	a, b := w.ends[0].Host(), w.ends[1].Host()
	w.Cut(a, b)
	w.Cut(b, a)
	w.Break(a, b, 0)
	w.Break(b, a, 0)
}

// An upper has what the packages above the library make of a context.
type upper struct {
	*lib.Context
	client *rpc.Client
	server *rpc.Server
	ep     *bulk.Endpoint
	memory bulk.Handle // of ep
	task   *tpvm.Task
}

// newUpper makes them of a context, with a server {type=name}. They are closed when the test ends,
// after the context: what is on its way to a peer out of reach is not awaited.
func newUpper(ctx context.Context, t *testing.T, name string, c *lib.Context) *upper {
	t.Helper()
	u := &upper{Context: c, client: try.Get(rpc.NewClient(ctx, c))(t), server: try.Get(rpc.NewServer(ctx, c, lib.Attrs{"type": name}))(t),
		ep: try.Get(bulk.Open(ctx, c))(t), task: try.Get(tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithVM("test")))(t)}
	u.memory = try.Get(u.ep.Expose(bulk.ReadWrite, bulk.Bytes(make([]byte, 4<<20))))(t).Handle()
	t.Cleanup(func() { _ = errors.Join(c.Close(), u.end(ctx)) })
	return u
}

// end ends what newUpper has made.
func (u *upper) end(ctx context.Context) error {
	return errors.Join(u.client.Close(), u.server.Close(ctx), u.ep.Close(ctx), u.task.Exit(ctx))
}
