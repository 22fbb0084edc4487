// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/pool"
	"github.com/rocl-go/rocl/rpc"
)

// A meeting is a number of handlers that go on when all of them have begun.
type meeting struct {
	count atomic.Int64
	met   chan struct{}
}

func newMeeting(n int64) *meeting {
	m := &meeting{met: make(chan struct{})}
	m.count.Store(n)
	return m
}

func (m *meeting) wait(ctx context.Context) {
	if m.count.Add(-1) == 0 {
		close(m.met)
	}
	select {
	case <-m.met:
	case <-ctx.Done():
	}
}

// poolsOf returns n pools of a configuration. Each server has a pool of a set of its own, unless
// the configuration has n pools.
func poolsOf(t *testing.T, servers []*rpc.Server, config string) []*pool.Pool {
	t.Helper()
	all := load(t, servers[0], config).Pools()
	for _, s := range servers[len(all):] {
		all = append(all, load(t, s, config).Pools()...)
	}
	return all
}

// ringOf returns n servers of one process, and a client in another context.
func ringOf(t *testing.T, n int) ([]*rpc.Server, *rpc.Client) {
	t.Helper()
	s, c := pair(t)
	all := []*rpc.Server{s}
	for len(all) < n {
		all = append(all, besides(t, s))
	}
	return all, c
}

// In each pool all workers run handlers that call the next pool, and those of the last one call the
// first. All calls end.
//
// Promise (Package rpc): Handlers of several pools of a process may call each other while all
// workers are busy. See also TestNestedAmongPools, TestNestedNeedsNoWorker.
func TestNestedInRing(t *testing.T) {
	for what, test := range map[string]struct {
		pools, workers int
		isAwaitedLater bool
		config         string
	}{
		"two pools of one worker":    {pools: 2, workers: 1, config: `{"pools": [{"workers": 1}]}`},
		"three pools of one worker":  {pools: 3, workers: 1, config: `{"pools": [{"workers": 1}]}`},
		"two pools of three workers": {pools: 2, workers: 3, config: `{"pools": [{"workers": 3}]}`},
		"pools served by streams":    {pools: 2, workers: 1, config: `{"pools": [{"name": "p"}], "streams": [{"pools": ["p"]}]}`},
		"futures":                    {pools: 2, workers: 1, config: `{"pools": [{"workers": 1}]}`, isAwaitedLater: true},
		"futures and full pools":     {pools: 2, workers: 1, config: waiting, isAwaitedLater: true},
	} {
		t.Run(what, func(t *testing.T) {
			servers, c := ringOf(t, test.pools)
			own := clientOf(t, servers[0])
			pools := poolsOf(t, servers, test.config)
			begun, called := newMeeting(int64(test.pools*test.workers)), newMeeting(int64(test.pools*test.workers))
			for i, s := range servers {
				next := servers[(i+1)%len(servers)].ID()
				try.OK(t,
					errors.Join(rpc.Register(s, "inner", add, rpc.InPool(pools[i])),
						rpc.Register(s, "outer", func(ctx context.Context, _ struct{}) (int64, error) {
							begun.wait(ctx)
							if !test.isAwaitedLater {
								return rpc.Call[addends, int64](ctx, own, next, "inner", addends{1, 2})
							}
							first, second := rpc.Go[addends, int64](ctx, own, next, "inner", addends{1, 1}), rpc.Go[addends, int64](ctx, own, next, "inner", addends{1, 0})
							called.wait(ctx)
							sum, err := first.Wait(ctx)
							more, e := second.Wait(ctx)
							return sum + more, errors.Join(err, e)
						}, rpc.InPool(pools[i])),
					))
			}
			var calls []*rpc.Future[int64]
			for _, s := range servers {
				for range test.workers {
					calls = append(calls, rpc.Go[struct{}, int64](deadline(t), c, s.ID(), "outer", struct{}{}))
				}
			}
			for _, f := range calls {
				try.Gives(f.Wait(deadline(t)))(t, 3)
			}
		})
	}
}

// Many callers of three servers whose handlers call each other at random: all calls end, in pools
// of any kind.
func TestNestedAmongPools(t *testing.T) {
	for _, config := range []string{
		`{"pools": [{"workers": 1}]}`,
		`{"pools": [{"workers": 2, "policy": "priority"}]}`,
		`{"pools": [{"policy": "keyed"}]}`,
		`{"pools": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "streams": [{"pools": ["a", "b", "c"]}]}`,
		`{"pools": [{"name": "a"}, {"name": "b"}, {"name": "c", "workers": 1}], "streams": [{"pools": ["a", "b"]}]}`,
		waiting,
	} {
		t.Run(config, func(t *testing.T) {
			servers, c := ringOf(t, 3)
			own := clientOf(t, servers[0])
			anywhere := func() rocl.GID { return servers[rand.N(len(servers))].ID() }
			for i, p := range poolsOf(t, servers, config) {
				try.OK(t, rpc.Register(servers[i], "down", sums(func(ctx context.Context, n int64) (int64, error) {
					return rpc.Call[int64, int64](ctx, own, anywhere(), "down", n)
				}), rpc.InPool(p)))
			}
			var callers sync.WaitGroup
			for range 16 {
				callers.Go(func() {
					for range 10 {
						if sum, err := rpc.Call[int64, int64](deadline(t), c, anywhere(), "down", 4); err != nil || sum != 10 {
							t.Error(sum, err)
							return
						}
					}
				})
			}
			callers.Wait()
		})
	}
}

// A nested call to a pool runs in the calling goroutine, while the worker of the pool is busy.
func TestNestedNeedsNoWorker(t *testing.T) {
	servers, c := ringOf(t, 2)
	own := clientOf(t, servers[0])
	pools := poolsOf(t, servers, `{"pools": [{"workers": 1}]}`)
	release := occupy(t, pools[1])
	defer release()
	try.OK(t,
		errors.Join(rpc.Register(servers[1], "inner", func(context.Context, struct{}) (bool, error) {
			return strings.Contains(string(debug.Stack()), "TestNestedNeedsNoWorker.func2("), nil
		}, rpc.InPool(pools[1])),
			rpc.Register(servers[0], "outer", func(ctx context.Context, _ struct{}) (bool, error) {
				return rpc.Call[struct{}, bool](ctx, own, servers[1].ID(), "inner", struct{}{})
			}, rpc.InPool(pools[0])),
		))
	if isSame, err := rpc.Call[struct{}, bool](deadline(t), c, servers[0].ID(), "outer", struct{}{}); !isSame || err != nil {
		t.Error("the inner handler has another goroutine than the outer one:", err)
	}
}
