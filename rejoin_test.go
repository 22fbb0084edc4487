// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/inproc"
)

// servers is a node whose directory is served by one server after another.
type servers struct {
	id  *directory.Identity
	mu  sync.Mutex
	now *directory.Server // nil while none serves: dials wait
	has chan struct{}     // closed when a server serves
}

func newServers(t *testing.T) *servers {
	s := &servers{id: directory.NewIdentity(), has: make(chan struct{})}
	s.begin()
	t.Cleanup(s.end)
	return s
}

func (s *servers) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = directory.NewServer(directory.WithIdentity(s.id))
	close(s.has)
}

func (s *servers) end() {
	s.mu.Lock()
	was := s.now
	s.now, s.has = nil, make(chan struct{})
	s.mu.Unlock()
	was.Close()
}

func (s *servers) dial(ctx context.Context) (net.Conn, error) {
	for {
		s.mu.Lock()
		now, has := s.now, s.has
		s.mu.Unlock()
		if now != nil {
			return now.Dialer()(ctx)
		}
		select {
		case <-has:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// in opens a context of the node.
func (s *servers) in(t *testing.T) *rocl.Context {
	c := try.Get(rocl.Open(bg, icontext.WithDirectory(s.dial), rocl.WithTransports(inproc.NewNetwork().Transport())))(t)
	t.Cleanup(func() {
		try.Check(t, c.Close())
	})
	return c
}

// The next server gets the resources of a context as they are now.
func TestNextServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t)
		c := s.in(t)
		kept, deleted := newResource(t, c, resource.Attrs{"v": "1"}), newResource(t, c, resource.Attrs{"v": "2"})
		try.OK(t, kept.Update(bg, resource.Attrs{"v": "3"}))
		try.OK(t, deleted.Delete(bg))
		rev := kept.Revision()
		s.end()
		synctest.Wait()
		// While no directory serves, messages still arrive.
		send(t, kept, kept.ID(), "hello")
		expect(t, kept, "hello")
		found := make(chan error, 1)
		go func() {
			f, err := c.Find(bg, resource.Match{"v": "3"})
			if err == nil && (f.ID != kept.ID() || f.Revision != rev) {
				t.Errorf("found %v at revision %d, want %v at %d", f.ID, f.Revision, kept.ID(), rev)
			}
			found <- err
		}()
		synctest.Wait() // questions wait
		s.begin()
		try.Check(t, <-found)
		if n := everything(t, c); n != 1 {
			t.Errorf("%d resources, want 1", n)
		}
		if now, err := kept.CompareAndSet(bg, rev, resource.Attrs{}); err != nil || now != rev+1 {
			t.Errorf("revision %d, %v", now, err)
		}
	})
}

// A resource that is registered while no directory serves is registered by the next server, once.
func TestRegisterBetweenServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t)
		c := s.in(t)
		s.end()
		synctest.Wait()
		type result struct {
			r   *rocl.Resource
			err error
		}
		done := make(chan result)
		go func() {
			r, err := c.Register(bg, resource.Attrs{"v": "1"})
			done <- result{r, err}
		}()
		synctest.Wait()
		s.begin()
		d := <-done
		if d.err != nil {
			t.Fatal(d.err)
		}
		if f, err := c.Find(bg, resource.Match{"v": "1"}); err != nil || f.ID != d.r.ID() {
			t.Errorf("found %v, %v; want %v", f.ID, err, d.r.ID())
		}
		try.Check(t, d.r.Update(bg, resource.Attrs{"v": "2"}))
	})
}

// Close does not wait for a directory while none serves, and ends the calls that do.
func TestCloseWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServers(t)
		c := s.in(t)
		r := newResource(t, c, resource.Attrs{})
		s.end()
		synctest.Wait()
		failed := make(chan error, 3)
		go func() { _, err := c.Find(bg, resource.Match{}); failed <- err }()
		go func() { failed <- r.Update(bg, resource.Attrs{}) }()
		go func() { _, err := c.Register(bg, resource.Attrs{}); failed <- err }()
		synctest.Wait() // all wait for the next server
		try.Check(t, c.Close())
		for range 3 {
			try.Fails(<-failed)(t, dispatch.ErrClosed)
		}
		s.begin() // lets the cleanup end the server
	})
}

// Close of a resource gives up if no directory answers. The next directory does not have the
// resource.
func TestCloseWithoutDirectory(t *testing.T) {
	s := newServers(t)
	c := try.Get(rocl.Open(bg, icontext.WithDirectory(s.dial), rocl.WithTransports(inproc.NewNetwork().Transport()), rocl.WithLinger(0)))(t)
	defer c.Close()
	closed, kept := newResource(t, c, resource.Attrs{"is": "closed"}), newResource(t, c, resource.Attrs{"is": "kept"})
	s.end()
	if err := closed.Close(); !errors.Is(err, directory.ErrNoDirectory) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a directory: %v", err)
	}
	s.begin()
	if f, err := c.Await(bg, resource.Match{"is": "kept"}, 1); err != nil || f[0].ID != kept.ID() {
		t.Errorf("%v, %v", f, err)
	}
	if f, err := c.Find(bg, resource.Match{"is": "closed"}); !errors.Is(err, directory.ErrNotFound) {
		t.Errorf("%v, %v", f.ID, err)
	}
}
