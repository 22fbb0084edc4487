// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node returns a function that opens a context of a node with one other context, and the number of
// contexts that it has opened.
func node(t *testing.T) (other *rocl.Context, open func(context.Context) (*rocl.Context, error), opened *atomic.Int64) {
	sock := rocl.WithSocket(filepath.Join(t.TempDir(), "s"))
	other = try.Get(rocl.Open(t.Context(), sock))(t)
	t.Cleanup(func() { other.Close() })
	opened = new(atomic.Int64)
	return other, func(ctx context.Context) (*rocl.Context, error) {
		opened.Add(1)
		return rocl.Open(ctx, sock, rocl.JoinOnly(), rocl.WithLinger(0))
	}, opened
}

// Questions at about the same time share one view. A later one has a view of its own, by the same
// context, which is closed when nobody asks and opened when somebody asks again.
func TestView(t *testing.T) {
	other, open, opened := node(t)
	s := New(open)
	defer s.Close()
	s.fresh = time.Hour
	var all sync.WaitGroup
	var views [8]*observe.View
	for i := range views {
		all.Go(func() {
			var err error
			views[i], err = s.View(t.Context())
			try.Check(t, err)
		})
	}
	all.Wait()
	for _, v := range views {
		if v == nil || v != views[0] || len(v.Contexts) != 1 || v.Contexts[0].Context != other.ID() {
			t.Errorf("%v", v)
		}
	}
	s.fresh = 0
	if v := try.Get(s.View(t.Context()))(t); v == views[0] {
		t.Error("the view is an old one")
	}
	try.Equal(t, opened.Load(), 1, "contexts opened")
	s.idle = time.Millisecond
	try.Get(s.View(t.Context()))(t)
	eventually.True(t, "the context is closed", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.c == nil && s.close == nil })
	s.idle = time.Hour
	try.Get(s.View(t.Context()))(t)
	if n := opened.Load(); n < 2 {
		t.Errorf("%d contexts opened", n)
	}
}

// A question fails when its caller gives up, when there is no context, and after Close, which ends
// what is under way. Another question may succeed.
func TestViewFails(t *testing.T) {
	_, open, _ := node(t)
	var fails atomic.Bool
	cause := errors.New("cause")
	began := make(chan struct{}, 2)
	s := New(func(ctx context.Context) (*rocl.Context, error) {
		if fails.Load() {
			began <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return open(ctx)
	})
	s.fresh = 0
	fails.Store(true)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	try.Fails(s.View(ctx))(t, cause)
	<-began
	s.mu.Lock()
	try.Equal(t, s.last.isDone(), false, "the question is answered")
	s.mu.Unlock()
	var waits sync.WaitGroup
	waits.Go(func() {
		if _, err := s.View(t.Context()); err == nil {
			t.Error("a view of no context")
		}
	})
	waits.Go(s.Close)
	waits.Wait()
	try.Fails(s.View(t.Context()))(t, rocl.ErrClosed)
	s.Close()

	s = New(open)
	defer s.Close()
	s.fresh = 0
	try.Get(s.View(t.Context()))(t)
	s.c.Close() // as if the directory had ended
	if _, err := s.View(t.Context()); err == nil {
		t.Error("a closed context gave a view")
	}
	try.Get(s.View(t.Context()))(t)
}
