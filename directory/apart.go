// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// membership decides from the server's settings and the member file: the server becomes a member,
// or ends the node's membership, or answers as a node that cannot reach its cluster. It is called
// when the server knows its node and does not serve yet.
//
// PATH.member says that the node belongs to a cluster. A server with the settings of a member writes
// it. A server that takes leave of the cluster removes it, and so does a daemon that has no settings
// of a member.
func (s *Server) membership() (err error) {
	switch {
	case s.begin != nil:
		if s.leave, err = s.begin(s, s.late); err != nil {
			return err
		}
		if err := s.node.WriteMember(func() string { return s.terms().Cluster }); err != nil { // serving goes on
			s.log.Warn("directory: the next server may not know that the node belongs to a cluster", "err", err)
		}
	case s.daemon:
		if err := s.node.RemoveMember(); err != nil {
			s.log.Warn("directory: the node belongs to no cluster, and the next server may not know that", "err", err)
		}
	default:
		name, isMember, err := s.node.Member()
		if err != nil {
			s.log.Warn("directory: it is not known whether the node belongs to a cluster", "err", err)
		}
		if isMember {
			s.log.Warn("directory: the node belongs to a cluster and is served without the settings of a member: other nodes are not asked", "cluster", name)
			s.Attach(Unreachable(fmt.Errorf("this node belongs to the cluster %q and is served without the settings of a member", name)))
		}
	}
	return nil
}

// ends takes leave of the cluster, unless another server of the node goes on as the member
// (handOver). It is called when all connections have ended.
func (s *Server) ends(handOver bool) {
	if s.leave == nil {
		return
	}
	s.leave(handOver)
	if handOver {
		return
	}
	if err := s.node.RemoveMember(); err != nil {
		s.log.Warn("directory: the node has left its cluster, and the next server may not know that", "err", err)
	}
}

// Unreachable returns the Remote of a node that belongs to a cluster and is not a member at
// present. It answers every question with an error that matches ErrPartial and has the cause why.
func Unreachable(why error) Remote { return unreachable{why} }

// unreachable is the Remote that Unreachable returns.
type unreachable struct{ why error }

// err returns the error of every question.
func (u unreachable) err() error { return fmt.Errorf("%w: %w", ErrPartial, u.why) }

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
