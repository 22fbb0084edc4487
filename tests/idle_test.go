// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"syscall"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/netrocl"
	"github.com/rocl-go/rocl/rpc"
)

// After a cut one context has given the other up, which was idle and knows nothing of it. The first
// operation of either one succeeds. A stream and a connection end with an error that says so,
// because the context that gave up has ended its half.
func TestFirstOperationAfterGivingUp(t *testing.T) {
	for what, c := range map[string]struct {
		prepare func(ctx context.Context, t *testing.T, near, far *upper) (first func() error) // uses the link, and leaves it idle
		mayEnd  bool                                                                           // what prepare began
	}{
		"call": {prepare: func(ctx context.Context, t *testing.T, near, far *upper) func() error {
			try.OK(t, rpc.Register(far.server, "twice", func(_ context.Context, n int) (int, error) { return 2 * n, nil }))
			return func() error { _, err := rpc.Call[int, int](ctx, near.client, far.server.ID(), "twice", 1); return err }
		}},
		"stream": {mayEnd: true, prepare: func(ctx context.Context, t *testing.T, near, far *upper) func() error {
			try.OK(t, rpc.RegisterStream(far.server, "count", func(_ context.Context, n int) iter.Seq2[[]byte, error] {
				return func(yield func([]byte, error) bool) {
					for i := range n {
						p := make([]byte, 64<<10) // some batches
						p[0] = byte(i)
						if !yield(p, nil) {
							return
						}
					}
				}
			}))
			const n = 100
			next, stop := iter.Pull2(rpc.Stream[int, []byte](ctx, near.client, far.server.ID(), "count", n))
			t.Cleanup(stop)
			got, last := 0, 1
			return func() error { // first one result, then the rest
				for ; got < last; got++ {
					p, err, ok := next()
					if err != nil || !ok || p[0] != byte(got) {
						return errors.Join(err, fmt.Errorf("result %d is not there: %v", got, ok))
					}
				}
				last = n
				return nil
			}
		}},
		"region": {prepare: func(ctx context.Context, _ *testing.T, near, far *upper) func() error {
			return func() error {
				_, err := near.ep.Push(ctx, far.memory, 0, make([]byte, 4<<20))
				_, err2 := near.ep.Pull(ctx, far.memory, 0, make([]byte, 4<<20))
				return errors.Join(err, err2)
			}
		}},
		"connection": {mayEnd: true, prepare: func(ctx context.Context, t *testing.T, near, far *upper) func() error {
			l := try.Get(netrocl.Listen(ctx, far.Context, lib.Attrs{"name": "far"}))(t)
			t.Cleanup(func() { l.Close() })
			go func() {
				if conn, err := l.Accept(); err == nil {
					_, _ = io.Copy(conn, conn)
					conn.Close()
				}
			}()
			conn := try.Get(netrocl.Dial(ctx, near.Context, lib.Attrs{"name": "far"}))(t)
			t.Cleanup(func() { conn.Close() })
			return func() error {
				_, err := conn.Write([]byte("hello"))
				if err == nil {
					_, err = io.ReadFull(conn, make([]byte, 5))
				}
				return err
			}
		}},
		"task": {prepare: func(ctx context.Context, _ *testing.T, near, far *upper) func() error {
			return func() error {
				if err := near.task.SendPacked(ctx, far.task.ID(), 1, "hello"); err != nil {
					return err
				}
				m, err := far.task.Recv(ctx, near.task.ID(), 1)
				if err == nil {
					m.Release()
				}
				return err
			}
		}},
	} {
		for i, givesUp := range []string{"near", "far"} {
			bubble(t, what+", given up by the "+givesUp, func(t *testing.T) {
				ctx, wire := eventually.Context(t), newWire(t)
				var ends [2]*upper
				for end, name := range []string{"near", "far"} {
					opts := []lib.Option{lib.WithLinger(0)}
					if end == i {
						opts = append(opts, lib.WithGiveUp(200*time.Millisecond))
					}
					ends[end] = newUpper(ctx, t, name, wire.open(t, end, opts...))
				}
				from, to := register(t, ends[i].Context, nil), register(t, ends[1-i].Context, nil)
				operation := c.prepare(ctx, t, ends[0], ends[1])
				try.OK(t, operation())
				wire.cut()
				if _, err := from.CallBytes(ctx, to.ID(), 1, nil); !errors.Is(err, lib.ErrUnreachable) {
					t.Fatal(err)
				}
				wire.Heal()
				err := operation()
				isReported := errors.Is(err, lib.ErrGone) || errors.Is(err, lib.ErrUnreachable) || errors.Is(err, syscall.ECONNRESET)
				if err != nil && !(c.mayEnd && isReported) || errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
	}
}
