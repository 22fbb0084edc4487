// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/pool"
	"github.com/rocl-go/rocl/rpc"
)

// load returns a set that is closed at the end of the test, after the server.
func load(t *testing.T, s *rpc.Server, config string) *pool.Set {
	t.Helper()
	set := try.Get(pool.Load([]byte(config)))(t)
	t.Cleanup(func() {
		_ = s.Close(deadline(t))
		try.Check(t, set.Close(deadline(t)))
	})
	return set
}

// A pool in which a call runs cannot be removed, and the error names the call, until the call is
// moved or withdrawn, or its server is closed.
func TestPoolInUse(t *testing.T) {
	s, _ := pair(t)
	set := load(t, s, `{"pools": [{"name": "main"}, {"name": "a"}, {"name": "b"}, {"name": "c"}]}`)
	for _, name := range []string{"a", "b", "c"} {
		p, _ := set.Pool(name)
		try.OK(t, rpc.Register(s, "in "+name, add, rpc.InPool(p)))
		try.Fails(rpc.Register(s, "in "+name, add, rpc.InPool(p)))(t, rpc.ErrExists)
		err := set.RemovePool(name)
		if !errors.Is(err, pool.ErrInUse) || !strings.Contains(err.Error(), fmt.Sprintf(`"call in %s of server %v" uses it`, name, s.ID())) {
			t.Error(err)
		}
	}
	try.Check(t, s.Place("in a", rpc.InPool(set.Default())))
	if !s.Deregister("in b") {
		t.Error("not registered")
	}
	try.Check(t, s.Close(deadline(t)))
	for _, name := range []string{"a", "b", "c"} {
		try.Check(t, set.RemovePool(name))
	}
}

// A closed server uses no pool, and a call moves by an option that sets a place only.
func TestPlaceRefused(t *testing.T) {
	s, c := pair(t)
	set := load(t, s, `{"pools": [{"name": "main"}, {"name": "a"}]}`)
	a, _ := set.Pool("a")
	try.OK(t, rpc.Register(s, "add", add, rpc.InPool(set.Default())))
	try.Fails(s.Place("add", rpc.WithChecksum()))(t, errors.ErrUnsupported)
	try.Works(rpc.Call[addends, int64](deadline(t), c, s.ID(), "add", addends{1, 2}))(t)
	eventually.True(t, "the call has stayed in its pool", func() bool { return set.Default().Stats().Done == 1 }) // the reply goes first
	try.OK(t, s.Close(deadline(t)))
	try.Fails(s.Place("add", rpc.InPool(a)))(t, rpc.ErrClosed)
	try.Fails(rpc.Register(s, "late", add, rpc.InPool(a)))(t, rpc.ErrClosed)
	try.Check(t, set.RemovePool("a"))
}

// No call fails while the handlers are moved from pool to pool and the pools are removed.
//
// Calls move between pools, and pools are removed, without a failed call.
// See also TestFullPoolReplaced.
func TestPoolsReplaced(t *testing.T) {
	s, c := pair(t)
	set := load(t, s, `{}`)
	try.OK(t, rpc.Register(s, "add", add, rpc.InPool(set.Default())))
	ctx, end := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for ctx.Err() == nil {
				if sum, err := rpc.Call[addends, int64](deadline(t), c, s.ID(), "add", addends{1, 2}); sum != 3 || err != nil {
					t.Error(sum, err)
					return
				}
			}
		})
	}
	last := ""
	for i := range 200 {
		name := fmt.Sprint("p", i)
		p := try.Get(set.AddPool(pool.PoolConfig{Name: name, Workers: 1}))(t)
		try.OK(t, s.Place("add", rpc.InPool(p)))
		eventually.True(t, "a call runs in the pool", func() bool { return p.Stats().Done > 0 })
		if last == "" {
			last = name
			continue
		}
		if i%2 == 0 {
			try.OK(t, set.ReplacePool(last, name))
		} else {
			eventually.True(t, "the pool is empty", func() bool { return set.RemovePool(last) == nil })
		}
		last = name
	}
	end()
	callers.Wait()
}

// Of the calls that wait in a pool, those with the higher priority run first.
func TestPriorities(t *testing.T) {
	s, c := pair(t)
	set := load(t, s, `{"pools": [{"name": "one", "policy": "priority", "workers": 1}]}`)
	p := set.Default()
	release := occupy(t, p)
	var order []string
	var futures []*rpc.Future[struct{}]
	for i, name := range []string{"scan", "ping"} {
		f := func(context.Context, struct{}) (struct{}, error) { order = append(order, name); return struct{}{}, nil }
		try.OK(t, rpc.Register(s, name, f, rpc.InPoolAt(p, i)))
		for range 2 {
			futures = append(futures, rpc.Go[struct{}, struct{}](deadline(t), c, s.ID(), name, struct{}{}))
		}
	}
	eventually.True(t, "all calls are queued", func() bool { return p.Stats().Queued == 4 })
	release()
	done(t, futures...)
	try.Equal(t, strings.Join(order, " "), "ping ping scan scan", "order")
}

// Running, queued and waiting calls end without an error when their pool is removed.
func TestFullPoolReplaced(t *testing.T) {
	s, c := pair(t)
	set := load(t, s, `{"pools": [{"name": "main"}, {"name": "old", "workers": 1, "queue": 1, "when_full": "wait"}]}`)
	old, _ := set.Pool("old")
	release := make(chan struct{})
	wait := func(context.Context, struct{}) (struct{}, error) {
		<-release
		return struct{}{}, nil
	}
	try.OK(t, rpc.Register(s, "wait", wait, rpc.InPool(old)))
	var futures []*rpc.Future[struct{}]
	for range 3 {
		futures = append(futures, rpc.Go[struct{}, struct{}](deadline(t), c, s.ID(), "wait", struct{}{}))
	}
	eventually.True(t, "a call waits for room", func() bool { return old.Stats().Waiting == 1 })
	try.OK(t, s.Place("wait", rpc.InPool(set.Default())))
	try.OK(t, set.ReplacePool("old", "main"))
	close(release)
	done(t, futures...)
	eventually.True(t, "two units have run in the new pool", func() bool { return set.Default().Stats().Done == 2 })
	if f := set.Default().Stats(); f.MovedIn != 1 {
		t.Errorf("figures %+v", f)
	}
}

// A call is made Inline while a request of it waits for room in its old pool, which is removed: no
// other Inline handler runs beside its handler.
func TestFullPoolToInline(t *testing.T) {
	s, c := pair(t)
	set := load(t, s, `{"pools": [{"name": "main"}, {"name": "old", "workers": 1, "queue": 1, "when_full": "wait"}]}`)
	old, _ := set.Pool("old")
	release := occupy(t, old)
	defer release()
	ran := 0 // the race detector sees handlers that run at once
	began, free := make(chan []byte, 1), make(chan struct{})
	try.OK(t,
		errors.Join(rpc.Register(s, "moved", func(_ context.Context, isInline bool) (int, error) {
			if !isInline {
				return 0, nil
			}
			ran++
			began <- debug.Stack()
			<-free
			ran++
			return ran, nil
		}, rpc.InPool(old)),
			rpc.Register(s, "inline", func(context.Context, bool) (int, error) { ran++; return ran, nil }, rpc.Inline()),
		))
	call := func(name string, in bool) *rpc.Future[int] {
		return rpc.Go[bool, int](deadline(t), c, s.ID(), name, in)
	}
	queued := call("moved", false)
	eventually.True(t, "a call is queued", func() bool { return old.Stats().Queued == 1 })
	waits := call("moved", true)
	eventually.True(t, "a call waits for room", func() bool { return old.Stats().Waiting == 1 })
	try.OK(t, errors.Join(s.Place("moved", rpc.Inline()), set.ReplacePool("old", "main")))
	stack := <-began
	other := call("inline", true)
	// If the receiving goroutine had yet to find that the pool would wait, it runs the handler, and
	// receives nothing meanwhile.
	if !bytes.Contains(stack, []byte("(*Server).receive(")) {
		eventually.True(t, "the other request has come", func() bool { n, _ := s.Resource().Waiting(); return n == 0 })
	}
	close(free)
	for f, want := range map[*rpc.Future[int]]int{queued: 0, waits: 2, other: 3} {
		try.Gives(f.Wait(deadline(t)))(t, want)
	}
}
