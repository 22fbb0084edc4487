// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"iter"
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

// Operations of rpc, bulk and tpvm on a resource whose context cannot be dialled end after
// WithGiveUp, although their ctx has no deadline. The error has the reason and the address.
func TestUpperPackagesUnreachable(t *testing.T) {
	const giveUp = 300 * time.Millisecond
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	ctx, end := context.WithCancel(context.Background()) // without a deadline, as in a program
	t.Cleanup(end)
	go func() {
		<-eventually.Context(t).Done()
		end()
	}()
	sock := socket(t)
	far, err := lib.Open(ctx, lib.WithSocket(sock), lib.WithTransports(refuser{"tcp://" + addr}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	server, err := rpc.NewServer(ctx, far, lib.Attrs{"type": "far"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close(ctx) })
	origin, err := bulk.Open(ctx, far)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { origin.Close(ctx) })
	memory, err := origin.Expose(bulk.ReadWrite, bulk.Bytes(make([]byte, 4<<20)))
	if err != nil {
		t.Fatal(err)
	}
	farTask, err := tpvm.Enrol(ctx, tpvm.WithContext(far), tpvm.WithVM("far"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { farTask.Exit(ctx) })
	last := func(results iter.Seq2[int, error]) (err error) {
		for _, err = range results {
		}
		return err
	}
	type near struct {
		c      *lib.Context
		client *rpc.Client
		ep     *bulk.Endpoint
		task   *tpvm.Task
	}
	for what, f := range map[string]func(near) error{
		"call": func(n near) error { _, err := rpc.Call[int, int](ctx, n.client, server.ID(), "x", 1); return err },
		"future": func(n near) error {
			_, err := rpc.Go[int, int](ctx, n.client, server.ID(), "x", 1).Wait(ctx)
			return err
		},
		"stream": func(n near) error { return last(rpc.Stream[int, int](ctx, n.client, server.ID(), "x", 1)) },
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
			_, err := rpc.Call[[]byte, int](ctx, n.client, server.ID(), "x", make([]byte, 4<<20))
			return err
		},
		"large send": func(n near) error { return rpc.Send(ctx, n.client, server.ID(), "x", make([]byte, 4<<20)) },
		"pull":       func(n near) error { _, err := n.ep.Pull(ctx, memory.Handle(), 0, make([]byte, 100)); return err },
		"large pull": func(n near) error { _, err := n.ep.Pull(ctx, memory.Handle(), 0, make([]byte, 4<<20)); return err },
		"push":       func(n near) error { _, err := n.ep.Push(ctx, memory.Handle(), 0, make([]byte, 100)); return err },
		"large push": func(n near) error { _, err := n.ep.Push(ctx, memory.Handle(), 0, make([]byte, 4<<20)); return err },
		"view":       func(n near) error { _, err := n.ep.View(ctx, memory.Handle(), 0, 100); return err },
		"send to a task, and exit": func(n near) error {
			if err := n.task.SendPacked(ctx, farTask.ID(), 1, "hello"); err != nil {
				return err
			}
			return n.task.Exit(ctx)
		},
		"routes":      func(n near) error { _, err := roclctx.RoutesOf(ctx, n.c, far.ID()); return err },
		"kill a task": func(n near) error { return n.task.Kill(ctx, farTask.ID()) },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			c, err := lib.Open(ctx, lib.WithSocket(sock), lib.WithGiveUp(giveUp))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() }) // its error is that of the messages that are lost
			n := near{c: c}
			if n.client, err = rpc.NewClient(ctx, c); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { n.client.Close() })
			if n.ep, err = bulk.Open(ctx, c); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { n.ep.Close(ctx) })
			if n.task, err = tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithVM("far")); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { n.task.Exit(ctx) })
			err = f(n)
			var none *lib.NoConnectionError
			if !errors.Is(err, lib.ErrUnreachable) || !errors.As(err, &none) || !strings.Contains(err.Error(), addr) ||
				errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
	}
}

// A receive from a resource whose context cannot be dialled, and a Dial of netrocl, end with the
// cause of their ctx. The error has the reason and the address too.
func TestReceiveSaysWhyNoConnection(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	bg, sock := eventually.Context(t), socket(t)
	open := func(opts ...lib.Option) (*lib.Context, *lib.Resource) {
		c, err := lib.Open(bg, append(opts, lib.WithSocket(sock), lib.WithUndelivered(func(lib.Undelivered) {}))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		r, err := c.Register(bg, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c, r
	}
	far, to := open(lib.WithTransports(refuser{"tcp://" + addr}))
	near, me := open(lib.WithLinger(0))
	server, err := netrocl.Listen(bg, far, lib.Attrs{"name": "far"})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	origin, err := bulk.Open(bg, far)
	if err != nil {
		t.Fatal(err)
	}
	defer origin.Close(bg)
	memory, err := origin.Expose(bulk.ReadOnly, bulk.Bytes(make([]byte, 1)))
	if err != nil {
		t.Fatal(err)
	}
	farTask, err := tpvm.Enrol(bg, tpvm.WithContext(far))
	if err != nil {
		t.Fatal(err)
	}
	defer farTask.Exit(bg)
	client, err := rpc.NewClient(bg, near)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ep, err := bulk.Open(bg, near)
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close(bg)
	task, err := tpvm.Enrol(bg, tpvm.WithContext(near))
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()                                        // before the rest, which would wait for far
	if err := me.SendBytes(bg, to.ID(), 1, nil); err != nil { // dials
		t.Fatal(err)
	}
	for what, f := range map[string]func(context.Context) error{
		"receive": func(ctx context.Context) error { _, err := me.Recv(ctx, lib.From(to.ID())); return err },
		"receive at any": func(ctx context.Context) error {
			_, _, err := lib.RecvAny(ctx, []*lib.Resource{me}, lib.From(to.ID()))
			return err
		},
		"dial": func(ctx context.Context) error {
			_, err := netrocl.Dial(ctx, near, lib.Attrs{"name": "far"})
			return err
		},
		"routes": func(ctx context.Context) error { _, err := roclctx.RoutesOf(ctx, near, far.ID()); return err },
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
			_, err := rpc.Go[int, int](ctx, client, to.ID(), "x", 1).Wait(bg)
			return err
		},
		"wait for a future": func(ctx context.Context) error {
			_, err := rpc.Go[int, int](bg, client, to.ID(), "x", 1).Wait(ctx)
			return err
		},
		"wait for any future": func(ctx context.Context) error {
			_, err := rpc.WaitAny(ctx, rpc.Go[int, int](bg, client, to.ID(), "x", 1))
			return err
		},
		"wait for a transfer": func(ctx context.Context) error {
			t := ep.StartPull(bg, memory.Handle(), 0, make([]byte, 1))
			defer t.Cancel()
			_, err := t.Wait(ctx)
			return err
		},
		"end of a program": func(ctx context.Context) error { _, err := task.Wait(ctx, to.ID()); return err },
	} {
		for _, want := range []error{context.DeadlineExceeded, context.Canceled} {
			ctx, cancel := context.WithTimeout(bg, 100*time.Millisecond)
			if want == context.Canceled {
				ctx, cancel = context.WithCancel(bg)
				time.AfterFunc(100*time.Millisecond, cancel)
			}
			err := f(ctx)
			cancel()
			var none *lib.NoConnectionError
			if !errors.Is(err, want) || !errors.As(err, &none) || !strings.Contains(err.Error(), addr) || errors.Is(err, lib.ErrUnreachable) {
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
		c, err := lib.Open(ctx, lib.WithSocket(sock), lib.WithTransports(wire.transport()), lib.WithLinger(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = c
	}
	ln, err := netrocl.Listen(ctx, ends[0], lib.Attrs{"name": "far"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go ln.Accept()
	conn, err := netrocl.Dial(ctx, ends[1], lib.Attrs{"name": "far"})
	if err != nil {
		t.Fatal(err)
	}
	wire.cut()
	awaitDialling(t, ends[1])
	for what, f := range map[string]func([]byte) (int, error){"read": conn.Read, "write": conn.Write} {
		if err := conn.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, err := f(make([]byte, 4<<20))
		var none *lib.NoConnectionError
		var late net.Error
		if !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &none) || !errors.As(err, &late) || !late.Timeout() || !strings.Contains(err.Error(), "127.0.0.1:") {
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
