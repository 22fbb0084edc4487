// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A large buffer that needs new memory is not made once ctx has ended, and the pool stays usable. A
// small one is made: a caller whose ctx has ended does not want to wait, and need not.
func TestGetWithin(t *testing.T) {
	p := shared(t, New())
	ended := errors.New("ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ended)
	for _, n := range []int{1 << 10, 1 << 20, 4 << 20} {
		for _, get := range []func(context.Context, int) (*Buffer, error){p.GetWithin, p.GetWait} {
			b := try.Get(get(ctx, n))(t, "%d bytes of new memory", n)
			defer b.Release()
		}
	}
	for _, n := range []int{5 << 20, 64 << 20} {
		try.Fails(p.GetWithin(ctx, n))(t, ended, "%d bytes", n)
		try.Fails(p.GetWait(ctx, n))(t, ended, "%d bytes", n)
		b := try.Get(p.Get(n))(t)
		b.Release()
		try.Get(p.GetWithin(ctx, n))(t).Release() // the memory is mapped
	}
}

// shared makes p map memory that other processes can read, and closes it at the end.
func shared(t *testing.T, p *Pool) *Pool {
	if err := p.Share(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		try.Check(t, p.Close())
	})
	return p
}

// asked is a context that calls a function when it is asked whether it has ended.
type asked struct {
	context.Context
	f func()
}

func (a asked) Err() error {
	a.f()
	return a.Context.Err()
}

// While a goroutine maps a large buffer, the pool serves others, each with its own limit of time.
func TestGetWhileMapping(t *testing.T) {
	p := shared(t, New(WithLimit(64<<20)))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	asks := 0
	use := func() {
		if asks++; asks > 1 {
			return
		}
		b, err := p.GetWithin(t.Context(), 100)
		if err != nil {
			t.Error(err)
			return
		}
		b.Release()
		if _, err := p.GetWait(ended, 40<<20); !errors.Is(err, context.Canceled) { // the mapping counts already
			t.Error(err)
		}
	}
	b, err := p.GetWithin(asked{t.Context(), use}, 32<<20)
	if err != nil || asks == 0 {
		t.Fatal(asks, err)
	}
	b.Release()
}

// A getter that waits for the limit goes on when a mapping fails that has counted against it.
func TestMappingFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := shared(t, New(WithLimit(64<<20)))
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		use := sync.OnceFunc(func() {
			go func() {
				b, err := p.GetWait(t.Context(), 40<<20)
				if err == nil {
					b.Release()
				}
				got <- err
			}()
			synctest.Wait()
			cancel()
		})
		try.Fails(p.GetWithin(asked{ctx, use}, 32<<20))(t, context.Canceled)
		try.Check(t, <-got)
	})
}

// A pool that is closed while a goroutine maps memory keeps nothing of it.
func TestCloseWhileMapping(t *testing.T) {
	p := shared(t, New())
	use := sync.OnceFunc(func() {
		try.Check(t, p.Close())
	})
	try.Fails(p.GetWithin(asked{t.Context(), use}, 32<<20))(t, ErrClosed)
	if s := p.Stats(); s.Mapped != 0 || s.Arenas != 0 || s.InUse != 0 {
		t.Errorf("%+v", s)
	}
}
