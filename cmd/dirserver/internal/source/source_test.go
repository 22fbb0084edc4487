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

// Questions at about the same time share one view. A later one has a view of its own.
func TestView(t *testing.T) {
	other, open, opened := node(t)
	client := NewClient(open)
	defer client.Close()
	s := New(client)
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
	s = New(client)
	s.fresh = 0
	if first := try.Get(s.View(t.Context()))(t); try.Get(s.View(t.Context()))(t) == first {
		t.Error("the view is an old one")
	}
	try.Equal(t, opened.Load(), 1, "contexts opened")
}

// A question fails when its caller gives up, and when there is no context.
func TestViewFails(t *testing.T) {
	client := NewClient(func(ctx context.Context) (*rocl.Context, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	s := New(client)
	cause := errors.New("cause")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	try.Fails(s.View(ctx))(t, cause)
	var waits sync.WaitGroup
	waits.Go(func() {
		if _, err := s.View(t.Context()); err == nil {
			t.Error("a view of no context")
		}
	})
	waits.Go(client.Close)
	waits.Wait()
	try.Fails(s.View(t.Context()))(t, rocl.ErrClosed)
}

// A client has one context for all uses at the same time, and none when nobody has used it for a
// while. After an error the next use opens another context, and the old one stays open as long as
// it is used.
func TestClient(t *testing.T) {
	_, open, opened := node(t)
	c := NewClient(open)
	cause := errors.New("cause")
	isOpen := func(ctx context.Context, r *rocl.Context) error { _, err := r.Lookup(ctx, r.ID()); return err }
	try.OK(t, c.Use(t.Context(), func(ctx context.Context, first *rocl.Context) error {
		try.OK(t, c.Use(ctx, func(_ context.Context, second *rocl.Context) error {
			try.Equal(t, second, first)
			return nil
		}))
		try.Equal(t, c.Use(ctx, func(context.Context, *rocl.Context) error { return cause }), cause)
		try.OK(t, c.Use(ctx, isOpen))
		try.Equal(t, opened.Load(), 2, "contexts opened")
		return isOpen(ctx, first)
	}))
	c.idle = time.Millisecond
	try.OK(t, c.Use(t.Context(), isOpen))
	eventually.True(t, "the context is closed", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.current == nil })
	c.idle = time.Hour
	try.OK(t, c.Use(t.Context(), isOpen))
	try.Equal(t, opened.Load(), 3, "contexts opened")
	c.Close()
	try.Equal(t, c.Use(t.Context(), isOpen), rocl.ErrClosed)
}

// Close ends the uses under way and waits for them.
func TestCloseInUse(t *testing.T) {
	_, open, _ := node(t)
	c := NewClient(open)
	began, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.Use(t.Context(), func(ctx context.Context, _ *rocl.Context) error {
			close(began)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	<-began
	c.Close()
	try.Fails(0, <-ended)(t, rocl.ErrClosed)
	c.Close()
}
