// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/relay"
	"github.com/rocl-go/rocl/netrocl"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tcp"
	"github.com/rocl-go/rocl/tpvm"
)

// A cable passes TCP connections on while it is whole.
type cable struct {
	mu    sync.Mutex
	isCut bool
	conns map[net.Conn]bool
}

func (c *cable) transport() subsys.Transport {
	return relay.New(tcp.New(), func(net.Conn) func(to, from net.Conn) {
		return func(to, from net.Conn) {
			c.mu.Lock()
			isCut := c.isCut
			c.conns[from] = true
			c.mu.Unlock()
			if !isCut {
				_, _ = io.Copy(to, from)
			}
			c.mu.Lock()
			delete(c.conns, from)
			c.mu.Unlock()
		}
	})
}

// cut breaks all connections, and each later one until mend.
func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isCut = true
	for conn := range c.conns {
		conn.Close()
	}
}

func (c *cable) mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isCut = false
}

// After a cut one context has given the other up, which was idle and knows nothing of it. The first
// operation of either one succeeds. A stream and a connection end with an error that says so,
// because the context that gave up has ended its half.
func TestFirstOperationAfterGivingUp(t *testing.T) {
	ctx := eventually.Context(t)
	type ends struct{ near, far *lib.Context }
	client := func(t *testing.T, e ends) (*rpc.Client, *rpc.Server) {
		s := got(rpc.NewServer(ctx, e.far, lib.Attrs{"type": "far"}))(t)
		t.Cleanup(func() { s.Close(ctx) })
		must(t, rpc.Register(s, "twice", func(_ context.Context, n int) (int, error) { return 2 * n, nil }))
		must(t, rpc.RegisterStream(s, "count", func(_ context.Context, n int) iter.Seq2[[]byte, error] {
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
		c := got(rpc.NewClient(ctx, e.near))(t)
		t.Cleanup(func() { c.Close() })
		return c, s
	}
	for what, c := range map[string]struct {
		prepare func(t *testing.T, e ends) (first func() error) // uses the link, and leaves it idle
		mayEnd  bool                                            // what prepare began
	}{
		"call": {prepare: func(t *testing.T, e ends) func() error {
			c, s := client(t, e)
			call := func() error { _, err := rpc.Call[int, int](ctx, c, s.ID(), "twice", 1); return err }
			must(t, call())
			return call
		}},
		"stream": {mayEnd: true, prepare: func(t *testing.T, e ends) func() error {
			c, s := client(t, e)
			const n = 100
			next, stop := iter.Pull2(rpc.Stream[int, []byte](ctx, c, s.ID(), "count", n))
			t.Cleanup(stop)
			_, err, _ := next()
			must(t, err)
			return func() error {
				for i := 1; ; i++ {
					p, err, ok := next()
					switch {
					case err != nil:
						return err
					case !ok && i != n, ok && p[0] != byte(i):
						return fmt.Errorf("%d results, more: %v", i, ok)
					case !ok:
						return nil
					}
				}
			}
		}},
		"region": {prepare: func(t *testing.T, e ends) func() error {
			origin := got(bulk.Open(ctx, e.far))(t)
			t.Cleanup(func() { origin.Close(ctx) })
			ep := got(bulk.Open(ctx, e.near))(t)
			t.Cleanup(func() { ep.Close(ctx) })
			r := got(origin.Expose(bulk.ReadWrite, bulk.Bytes(make([]byte, 4<<20))))(t)
			move := func() error {
				_, err := ep.Push(ctx, r.Handle(), 0, make([]byte, 4<<20))
				_, err2 := ep.Pull(ctx, r.Handle(), 0, make([]byte, 4<<20))
				return errors.Join(err, err2)
			}
			must(t, move())
			return move
		}},
		"connection": {mayEnd: true, prepare: func(t *testing.T, e ends) func() error {
			l := got(netrocl.Listen(ctx, e.far, lib.Attrs{"name": "far"}))(t)
			t.Cleanup(func() { l.Close() })
			go func() {
				if conn, err := l.Accept(); err == nil {
					_, _ = io.Copy(conn, conn)
					conn.Close()
				}
			}()
			conn := got(netrocl.Dial(ctx, e.near, lib.Attrs{"name": "far"}))(t)
			t.Cleanup(func() { conn.Close() })
			echo := func() error {
				_, err := conn.Write([]byte("hello"))
				if err == nil {
					_, err = io.ReadFull(conn, make([]byte, 5))
				}
				return err
			}
			must(t, echo())
			return echo
		}},
		"task": {prepare: func(t *testing.T, e ends) func() error {
			var tasks []*tpvm.Task
			for _, c := range []*lib.Context{e.near, e.far} {
				task := got(tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithVM(t.Name())))(t)
				t.Cleanup(func() { task.Exit(ctx) })
				tasks = append(tasks, task)
			}
			send := func() error {
				if err := tasks[0].SendPacked(ctx, tasks[1].ID(), 1, "hello"); err != nil {
					return err
				}
				m, err := tasks[1].Recv(ctx, tasks[0].ID(), 1)
				if err == nil {
					m.Release()
				}
				return err
			}
			must(t, send())
			return send
		}},
	} {
		for _, isNear := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, near gives up: %v", what, isNear), func(t *testing.T) {
				t.Parallel()
				wire, sock := &cable{conns: map[net.Conn]bool{}}, socket(t)
				open := func(isShort bool) *lib.Context {
					opts := []lib.Option{lib.WithSocket(sock), lib.WithTransports(wire.transport()), lib.WithUndelivered(func(lib.Undelivered) {})}
					if isShort {
						opts = append(opts, lib.WithGiveUp(200*time.Millisecond))
					}
					c := got(lib.Open(ctx, opts...))(t)
					t.Cleanup(func() { c.Close() })
					return c
				}
				e := ends{far: open(!isNear), near: open(isNear)}
				gives, idle := e.near, e.far
				if !isNear {
					gives, idle = idle, gives
				}
				from := got(gives.Register(ctx, nil))(t)
				to := got(idle.Register(ctx, nil))(t)
				first := c.prepare(t, e)
				wire.cut()
				if _, err := from.CallBytes(ctx, to.ID(), 1, nil); !errors.Is(err, lib.ErrUnreachable) {
					t.Fatal(err)
				}
				wire.mend()
				err := first()
				isReported := errors.Is(err, lib.ErrGone) || errors.Is(err, lib.ErrUnreachable) || errors.Is(err, syscall.ECONNRESET)
				if err != nil && !(c.mayEnd && isReported) || errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
	}
}
