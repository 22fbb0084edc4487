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
	"testing/synctest"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/netrocl"
	"github.com/rocl-go/rocl/rpc"
)

// isUnexplained reports whether an error does not say why there is no connection over a wire.
func isUnexplained(err error) bool {
	var none *lib.NoConnectionError
	return !errors.As(err, &none) || !strings.Contains(err.Error(), reach)
}

// Operations of rpc, bulk and tpvm on a resource whose context cannot be dialled end after
// WithGiveUp, although their ctx has no deadline. The error has the reason and the address.
func TestUpperPackagesUnreachable(t *testing.T) {
	ctx, large := bg, make([]byte, 4<<20) // ctx has no deadline, as in a program
	for what, f := range map[string]func(n, far *upper) error{
		"call": func(n, far *upper) error {
			_, err := rpc.Call[int, int](ctx, n.client, far.server.ID(), "x", 1)
			return err
		},
		"future": func(n, far *upper) error {
			_, err := rpc.Go[int, int](ctx, n.client, far.server.ID(), "x", 1).Wait(ctx)
			return err
		},
		"stream": func(n, far *upper) (err error) {
			for _, err = range rpc.Stream[int, int](ctx, n.client, far.server.ID(), "x", 1) {
			}
			return err
		},
		"call any": func(n, far *upper) error {
			_, err := rpc.CallAny[int, int](ctx, n.client, lib.Attrs{"type": "far"}, "x", 1)
			return err
		},
		"call all": func(n, far *upper) (err error) {
			for _, err = range rpc.CallAll[int, int](ctx, n.client, lib.Attrs{"type": "far"}, "x", 1) {
			}
			return err
		},
		"large call": func(n, far *upper) error {
			_, err := rpc.Call[[]byte, int](ctx, n.client, far.server.ID(), "x", large)
			return err
		},
		"large send": func(n, far *upper) error { return rpc.Send(ctx, n.client, far.server.ID(), "x", large) },
		"pull":       func(n, far *upper) error { _, err := n.ep.Pull(ctx, far.memory, 0, make([]byte, 100)); return err },
		"large pull": func(n, far *upper) error { _, err := n.ep.Pull(ctx, far.memory, 0, large); return err },
		"push":       func(n, far *upper) error { _, err := n.ep.Push(ctx, far.memory, 0, make([]byte, 100)); return err },
		"large push": func(n, far *upper) error { _, err := n.ep.Push(ctx, far.memory, 0, large); return err },
		"view":       func(n, far *upper) error { _, err := n.ep.View(ctx, far.memory, 0, 100); return err },
		"send to a task, and exit": func(n, far *upper) error {
			if err := n.task.SendPacked(ctx, far.task.ID(), 1, "hello"); err != nil {
				return err
			}
			return n.task.Exit(ctx)
		},
		"routes":      func(n, far *upper) error { _, err := n.Context.RoutesOf(ctx, far.ID()); return err },
		"kill a task": func(n, far *upper) error { return n.task.Kill(ctx, far.task.ID()) },
	} {
		bubble(t, what, func(t *testing.T) {
			w := newWire(t)
			far := newUpper(ctx, t, "far", w.open(t, 0, lib.WithLinger(0)))
			near := newUpper(ctx, t, "near", w.open(t, 1, lib.WithGiveUp(300*time.Millisecond)))
			w.ends[0].Kill() // no process listens there
			err := f(near, far)
			if isUnexplained(err) || !errors.Is(err, lib.ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
	}
}

// A receive from a resource whose context cannot be dialled, and a Dial of netrocl, end with the
// cause of their ctx. The error has the reason and the address too.
func TestReceiveSaysWhyNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bg, w := eventually.Context(t), newWire(t)
		far, near := newUpper(bg, t, "far", w.open(t, 0, lib.WithLinger(0))), newUpper(bg, t, "near", w.open(t, 1, lib.WithLinger(0)))
		to, me := register(t, far.Context, nil), register(t, near.Context, nil)
		server := try.Get(netrocl.Listen(bg, far.Context, lib.Attrs{"name": "far"}))(t)
		defer server.Close()
		w.ends[0].Kill()                             // no process listens there
		try.OK(t, me.SendBytes(bg, to.ID(), 1, nil)) // dials
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
			"routes": func(ctx context.Context) error { _, err := near.Context.RoutesOf(ctx, far.ID()); return err },
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
				if isUnexplained(err) || !errors.Is(err, want) || errors.Is(err, lib.ErrUnreachable) {
					t.Errorf("%s, %v: %v", what, want, err)
				}
			}
		}
	})
}

// A connection of netrocl whose peer is out of reach says why when a deadline passes.
func TestConnDeadlineSaysWhyNoConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, w := eventually.Context(t), newWire(t)
		far, near := w.open(t, 0, lib.WithLinger(0)), w.open(t, 1, lib.WithLinger(0))
		ln := try.Get(netrocl.Listen(ctx, far, lib.Attrs{"name": "far"}))(t)
		defer ln.Close()
		go ln.Accept()
		conn := try.Get(netrocl.Dial(ctx, near, lib.Attrs{"name": "far"}))(t)
		defer conn.Close()
		w.cut()
		awaitDialling(t, near)
		for what, f := range map[string]func([]byte) (int, error){"read": conn.Read, "write": conn.Write} {
			try.OK(t, conn.SetDeadline(time.Now().Add(100*time.Millisecond)))
			_, err := f(make([]byte, 4<<20))
			var late net.Error
			if isUnexplained(err) || !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &late) || !late.Timeout() {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// awaitDialling waits until a context has noticed that its link is cut, and has tried to dial.
func awaitDialling(t *testing.T, c *lib.Context) {
	t.Helper()
	eventually.True(t, "a link dials", func() bool {
		return slices.ContainsFunc(c.Routes(), func(r lib.Route) bool { return strings.Contains(r.Dialling, reach) })
	})
}
