// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"iter"
	"sync/atomic"
	"testing"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// A remote is a Remote whose answers a test chooses.
type remote struct {
	find   func(context.Context) (resource.Record, error) // also of All, and of Lookup and Trace that have no other
	lookup func() (resource.Record, error)
	trace  func(strategy.Strategy) (Trace, error)
	watch  func()            // called by Watch; may be nil
	failed []resource.NodeID // All reports these, and two nodes that answered
	addr   string
}

// nothing is a remote whose members have nothing.
func nothing() *remote { return holding(resource.Record{}, ErrNotFound) }

// holding is a remote that answers each question at once.
func holding(r resource.Record, err error) *remote {
	return &remote{find: func(context.Context) (resource.Record, error) { return r, err }}
}

// unasked is a remote that must not be asked.
func unasked(t *testing.T) *remote {
	return &remote{
		find: func(context.Context) (resource.Record, error) {
			t.Error("asked of the cluster")
			return resource.Record{}, ErrPartial
		},
		watch: func() { t.Error("watched in the cluster") },
	}
}

// silent is a remote that does not answer. If asked is not nil, it gets a value for each question.
func silent(asked chan<- struct{}) *remote {
	return &remote{find: func(ctx context.Context) (r resource.Record, err error) {
		if asked != nil {
			asked <- struct{}{}
		}
		<-ctx.Done()
		return r, context.Cause(ctx)
	}}
}

func (r *remote) Find(ctx context.Context, _ *resource.List) (resource.Record, error) {
	return r.find(ctx)
}

func (r *remote) Lookup(ctx context.Context, _ resource.GID, _ *resource.List) (resource.Record, error) {
	if r.lookup != nil {
		return r.lookup()
	}
	return r.find(ctx)
}

func (r *remote) All(ctx context.Context, _ *resource.List, cov *Coverage) iter.Seq2[resource.Record, error] {
	return func(yield func(resource.Record, error) bool) {
		if rec, err := r.find(ctx); !errors.Is(err, ErrNotFound) && !yield(rec, err) {
			return
		}
		cov.Covered, cov.Failed = cov.Covered+2, r.failed
	}
}

func (r *remote) Trace(ctx context.Context, by strategy.Strategy, _ *resource.List) (Trace, error) {
	if r.trace != nil {
		return r.trace(by)
	}
	_, err := r.find(ctx)
	return Trace{}, err
}

func (r *remote) Summary(context.Context, resource.NodeID) ([]byte, error) { return nil, ErrPartial }

func (r *remote) Watch(*resource.List, *database.Watch) func() {
	if r.watch != nil {
		r.watch()
	}
	return func() {}
}

func (r *remote) Addr() string { return r.addr }

// withRemote lets a server made by Listen ask r from the beginning.
func withRemote(r Remote) Option {
	return WithMembership(func(s *Server, _ bool) (func(bool), error) {
		s.Attach(r)
		return func(bool) {}, nil
	})
}

// A watch that has ended is forgotten: the next Remote is not asked to watch for it.
func TestEndedWatchIsForgotten(t *testing.T) {
	s, c := in(t, nil)
	var goesOn atomic.Int64 // watches that the next Remote begins
	begin := func() (stop func()) {
		next, stop := iter.Pull2(c.Watch(t.Context(), list(t, resource.Match{"type": "lamp"})))
		event, err, _ := next()
		try.OK(t, err)
		try.Equal(t, event.Kind, Synced)
		return stop
	}
	defer begin()()
	begin()()
	eventually.True(t, "the end of one watch", func() bool { return s.db.Stats().Watches == 1 })
	next := nothing()
	next.watch = func() { goesOn.Add(1) }
	s.Attach(next)
	try.Equal(t, goesOn.Load(), 1, "watches begun again")
}
