// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	roclctx "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/netrocl"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/tpvm"
)

// refuser is a TCP transport with a port at which no process listens.
type refuser struct{ addr string }

func (r refuser) Name() string                                      { return "tcp" }
func (r refuser) Listen(string, subsys.Config) (subsys.Port, error) { return r, nil }
func (r refuser) Addr() string                                      { return r.addr }
func (r refuser) Reaches(string) bool                               { return false }
func (r refuser) Close() error                                      { return nil }
func (r refuser) Dial(context.Context, string, subsys.Sink) (subsys.Conn, error) {
	return nil, subsys.ErrNoPeer
}

// unreachable returns a transport that no context can dial, and its address.
func unreachable(t *testing.T) (tr subsys.Transport, addr string) {
	t.Helper()
	ln := got(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr = ln.Addr().String()
	must(t, ln.Close())
	return refuser{"tcp://" + addr}, addr
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

// newUpper opens a context with a server {type=name}. It is closed when the test ends. Errors of
// the end are those of messages that are lost.
func newUpper(ctx context.Context, t *testing.T, name string, opts ...lib.Option) *upper {
	t.Helper()
	c := got(lib.Open(ctx, opts...))(t)
	u := &upper{Context: c, client: got(rpc.NewClient(ctx, c))(t), server: got(rpc.NewServer(ctx, c, lib.Attrs{"type": name}))(t),
		ep: got(bulk.Open(ctx, c))(t), task: got(tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithVM("test")))(t)}
	u.memory = got(u.ep.Expose(bulk.ReadWrite, bulk.Bytes(make([]byte, 4<<20))))(t).Handle()
	t.Cleanup(func() {
		_ = errors.Join(c.Close(), u.client.Close(), u.server.Close(ctx), u.ep.Close(ctx), u.task.Exit(ctx))
	})
	return u
}

// isUnexplained reports whether an error does not say why there is no connection to the address.
func isUnexplained(err error, addr string) bool {
	var none *lib.NoConnectionError
	return !errors.As(err, &none) || !strings.Contains(err.Error(), addr)
}

// Operations of rpc, bulk and tpvm on a resource whose context cannot be dialled end after
// WithGiveUp, although their ctx has no deadline. The error has the reason and the address.
func TestUpperPackagesUnreachable(t *testing.T) {
	ctx, end := context.WithCancel(bg) // without a deadline, as in a program
	context.AfterFunc(eventually.Context(t), end)
	tr, addr := unreachable(t)
	sock := socket(t)
	far := newUpper(ctx, t, "far", lib.WithSocket(sock), lib.WithTransports(tr))
	server, large := far.server.ID(), make([]byte, 4<<20)
	type near = *upper
	for what, f := range map[string]func(near) error{
		"call": func(n near) error { _, err := rpc.Call[int, int](ctx, n.client, server, "x", 1); return err },
		"future": func(n near) error {
			_, err := rpc.Go[int, int](ctx, n.client, server, "x", 1).Wait(ctx)
			return err
		},
		"stream": func(n near) (err error) {
			for _, err = range rpc.Stream[int, int](ctx, n.client, server, "x", 1) {
			}
			return err
		},
		"call any": func(n near) error {
			_, err := rpc.CallAny[int, int](ctx, n.client, lib.Attrs{"type": "far"}, "x", 1)
			return err
		},
		"call all": func(n near) (err error) {
			for _, err = range rpc.CallAll[int, int](ctx, n.client, lib.Attrs{"type": "far"}, "x", 1) {
			}
			return err
		},
		"large call": func(n near) error {
			_, err := rpc.Call[[]byte, int](ctx, n.client, server, "x", large)
			return err
		},
		"large send": func(n near) error { return rpc.Send(ctx, n.client, server, "x", large) },
		"pull":       func(n near) error { _, err := n.ep.Pull(ctx, far.memory, 0, make([]byte, 100)); return err },
		"large pull": func(n near) error { _, err := n.ep.Pull(ctx, far.memory, 0, large); return err },
		"push":       func(n near) error { _, err := n.ep.Push(ctx, far.memory, 0, make([]byte, 100)); return err },
		"large push": func(n near) error { _, err := n.ep.Push(ctx, far.memory, 0, large); return err },
		"view":       func(n near) error { _, err := n.ep.View(ctx, far.memory, 0, 100); return err },
		"send to a task, and exit": func(n near) error {
			if err := n.task.SendPacked(ctx, far.task.ID(), 1, "hello"); err != nil {
				return err
			}
			return n.task.Exit(ctx)
		},
		"routes":      func(n near) error { _, err := roclctx.RoutesOf(ctx, n.Context, far.ID()); return err },
		"kill a task": func(n near) error { return n.task.Kill(ctx, far.task.ID()) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			err := f(newUpper(ctx, t, "near", lib.WithSocket(sock), lib.WithGiveUp(300*time.Millisecond)))
			if isUnexplained(err, addr) || !errors.Is(err, lib.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
	}
}

// A receive from a resource whose context cannot be dialled, and a Dial of netrocl, end with the
// cause of their ctx. The error has the reason and the address too.
func TestReceiveSaysWhyNoConnection(t *testing.T) {
	bg, sock := eventually.Context(t), socket(t)
	tr, addr := unreachable(t)
	unheard := lib.WithUndelivered(func(lib.Undelivered) {})
	far := newUpper(bg, t, "far", lib.WithSocket(sock), lib.WithTransports(tr), unheard)
	near := newUpper(bg, t, "near", lib.WithSocket(sock), lib.WithLinger(0), unheard)
	to, me := register(t, far.Context, nil), register(t, near.Context, nil)
	server := got(netrocl.Listen(bg, far.Context, lib.Attrs{"name": "far"}))(t)
	defer server.Close()
	must(t, me.SendBytes(bg, to.ID(), 1, nil)) // dials
	for what, f := range map[string]func(context.Context) error{
		"receive": func(ctx context.Context) error { _, err := me.Recv(ctx, lib.From(to.ID())); return err },
		"receive at any": func(ctx context.Context) error {
			_, _, err := lib.RecvAny(ctx, []*lib.Resource{me}, lib.From(to.ID()))
			return err
		},
		"dial": func(ctx context.Context) error {
			_, err := netrocl.Dial(ctx, near.Context, lib.Attrs{"name": "far"})
			return err
		},
		"routes": func(ctx context.Context) error { _, err := roclctx.RoutesOf(ctx, near.Context, far.ID()); return err },
		"call that is cancelled": func(ctx context.Context) error {
			p, err := me.StartCallBytes(bg, to.ID(), 1, nil)
			if err != nil {
				return err
			}
			defer context.AfterFunc(ctx, func() { p.Cancel(context.Cause(ctx)) })()
			_, err = p.Wait(bg)
			return err
		},
		"future": func(ctx context.Context) error {
			_, err := rpc.Go[int, int](ctx, near.client, to.ID(), "x", 1).Wait(bg)
			return err
		},
		"wait for a future": func(ctx context.Context) error {
			_, err := rpc.Go[int, int](bg, near.client, to.ID(), "x", 1).Wait(ctx)
			return err
		},
		"wait for any future": func(ctx context.Context) error {
			_, err := rpc.WaitAny(ctx, rpc.Go[int, int](bg, near.client, to.ID(), "x", 1))
			return err
		},
		"wait for a transfer": func(ctx context.Context) error {
			t := near.ep.StartPull(bg, far.memory, 0, make([]byte, 1))
			defer t.Cancel()
			_, err := t.Wait(ctx)
			return err
		},
		"end of a program": func(ctx context.Context) error { _, err := near.task.Wait(ctx, to.ID()); return err },
	} {
		for _, want := range []error{context.DeadlineExceeded, context.Canceled} {
			ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
			if want == context.Canceled {
				ctx, cancel = context.WithCancel(bg)
				time.AfterFunc(100*time.Millisecond, cancel)
			}
			err := f(ctx)
			cancel()
			if isUnexplained(err, addr) || !errors.Is(err, want) || errors.Is(err, lib.ErrUnreachable) {
				t.Errorf("%s, %v: %v", what, want, err)
			}
		}
	}
}

// A connection of netrocl whose peer is out of reach says why when a deadline passes.
func TestConnDeadlineSaysWhyNoConnection(t *testing.T) {
	ctx, sock, wire := eventually.Context(t), socket(t), &cable{conns: map[net.Conn]bool{}}
	var ends [2]*lib.Context
	for i := range ends {
		c := got(lib.Open(ctx, lib.WithSocket(sock), lib.WithTransports(wire.transport()), lib.WithLinger(0)))(t)
		t.Cleanup(func() { c.Close() })
		ends[i] = c
	}
	ln := got(netrocl.Listen(ctx, ends[0], lib.Attrs{"name": "far"}))(t)
	defer ln.Close()
	go ln.Accept()
	conn := got(netrocl.Dial(ctx, ends[1], lib.Attrs{"name": "far"}))(t)
	wire.cut()
	awaitDialling(t, ends[1])
	for what, f := range map[string]func([]byte) (int, error){"read": conn.Read, "write": conn.Write} {
		must(t, conn.SetDeadline(time.Now().Add(100*time.Millisecond)))
		_, err := f(make([]byte, 4<<20))
		var late net.Error
		if isUnexplained(err, "127.0.0.1:") || !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &late) || !late.Timeout() {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// awaitDialling waits until a context has noticed that its link is cut, and has tried to dial.
func awaitDialling(t *testing.T, c *lib.Context) {
	t.Helper()
	eventually.True(t, "a link dials", func() bool {
		return slices.ContainsFunc(c.Routes(), func(r lib.Route) bool { return strings.Contains(r.Dialling, "127.0.0.1:") })
	})
}
