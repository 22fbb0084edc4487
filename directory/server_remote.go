// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// A Remote asks the other members of a cluster for what the node does not hold. Errors match
// ErrNotFound where it is certain that nothing matches, else ErrPartial.
type Remote interface {
	// Find returns one resource of another member that matches.
	Find(ctx context.Context, pattern *resource.List) (resource.Record, error)
	// Lookup returns the resource of another member that has an identifier. pattern has the wanted
	// attributes.
	Lookup(ctx context.Context, id resource.GID, pattern *resource.List) (resource.Record, error)
	// All yields what matches and reports in cov which nodes were asked.
	All(ctx context.Context, pattern *resource.List, cov *Coverage) iter.Seq2[resource.Record, error]
	// Trace searches as Find does, or by another search strategy, and returns how the search went.
	Trace(ctx context.Context, by strategy.Strategy, pattern *resource.List) (Trace, error)
	// Summary returns the summary of another member's node: see WithSummary.
	Summary(ctx context.Context, node resource.NodeID) ([]byte, error)
	// Watch reports to w the matching resources of the other members, and what happens to them,
	// until end is called. It holds back Synced of w until it has reported what exists now. After
	// end has returned, it reports nothing more.
	Watch(pattern *resource.List, w *database.Watch) (end func())
	// Addr returns the address of this node in the cluster, HOST:PORT.
	Addr() string
}

// Attach lets the server ask r for what it does not hold. A Remote that was attached before must
// have been closed.
func (s *Server) Attach(r Remote) {
	s.remote.Store(&r)
	s.mu.Lock()
	s.db.SetIndexAlone(false)
	s.mu.Unlock()
	s.registerNode(r.Addr())
	s.reattach(r)
}

// attachedRemote returns the Remote that is attached, nil if there is none.
func (s *Server) attachedRemote() Remote {
	if r := s.remote.Load(); r != nil {
		return *r
	}
	return nil
}

// Unreachable returns the Remote of a node that belongs to a cluster and is not a member at
// present. It answers every question with an error that matches ErrPartial and has the cause why.
func Unreachable(why error) Remote { return unreachable{why} }

// unreachable is the Remote that Unreachable returns.
type unreachable struct{ why error }

// err returns the error of every question.
// err does not wrap the cause, which may come of a timer of this process.
func (u unreachable) err() error { return fmt.Errorf("%w: %v", ErrPartial, u.why) }

func (u unreachable) Find(context.Context, *resource.List) (resource.Record, error) {
	return resource.Record{}, u.err()
}

func (u unreachable) Lookup(context.Context, resource.GID, *resource.List) (resource.Record, error) {
	return resource.Record{}, u.err()
}

// Addr returns "": no other node reaches this one as a member.
func (u unreachable) Addr() string { return "" }

func (u unreachable) Trace(context.Context, strategy.Strategy, *resource.List) (Trace, error) {
	return Trace{}, u.err()
}

func (u unreachable) Summary(context.Context, resource.NodeID) ([]byte, error) { return nil, u.err() }

// unreachableTime is how long a watch delays Synced in case the node becomes a member.
const unreachableTime = 3 * time.Second

// Watch delays Synced on w for unreachableTime, because the node may become a member again soon.
func (u unreachable) Watch(_ *resource.List, w *database.Watch) (end func()) {
	w.Hold()
	t := time.AfterFunc(unreachableTime, w.Release)
	return func() {
		if t.Stop() {
			w.Release()
		}
	}
}

func (u unreachable) All(context.Context, *resource.List, *Coverage) iter.Seq2[resource.Record, error] {
	return func(yield func(resource.Record, error) bool) { yield(resource.Record{}, u.err()) }
}
