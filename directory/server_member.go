// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"fmt"

	"github.com/rocl-go/rocl/directory/internal/node"
	"github.com/rocl-go/rocl/resource"
)

// WithMembership lets a server made by Listen be a member of a cluster.
//
// Listen calls begin when the server knows its node, before it serves any context. late says that
// the server takes over from another one, for contexts that exist already. Then begin should return
// an error only for what makes serving the node impossible.
//
// end is called when the server has ended. handOver says that another process of the node goes on
// as the same member.
func WithMembership(begin func(s *Server, late bool) (end func(handOver bool), err error)) Option {
	return func(s *Server) { s.beginMember = begin }
}

// Met returns the addresses of other members of the cluster with the given name that the previous
// server of the node has met, by node. begin of WithMembership may call it.
func (s *Server) Met(cluster string) map[resource.NodeID]string {
	m, _, err := s.node.Member()
	if err != nil || m.Cluster != cluster {
		return nil
	}
	return m.Met
}

// KeepMet lets the next server of the node know the addresses of other members, which met returns
// by node. begin of WithMembership may call it. met is called now and then with a mutex held, and
// may call no method of the Server. changed must be called when met returns something else. It does
// not block.
func (s *Server) KeepMet(met func() map[resource.NodeID]string) (changed func()) {
	s.met = met
	return s.node.MemberChanged
}

// asMember returns what PATH.member should say.
func (s *Server) asMember() node.Member {
	m := node.Member{Cluster: s.currentTerms().Cluster}
	if s.met != nil {
		m.Met = s.met()
	}
	return m
}

// Opening returns the context that limits Listen. A membership that begins after the end of that
// context fails.
func (s *Server) Opening() context.Context {
	if s.opening == nil {
		return context.Background()
	}
	return s.opening
}

// within ends Listen when ctx ends.
func within(ctx context.Context) Option { return func(s *Server) { s.opening = ctx } }

// takeover says that the server follows another one, for contexts that exist already.
func takeover(late bool) Option { return func(s *Server) { s.isTakeover = late } }

// membership decides from the server's settings and the member file: the server becomes a member,
// or ends the node's membership, or answers as a node that cannot reach its cluster. It is called
// when the server knows its node and does not serve yet.
//
// PATH.member says that the node belongs to a cluster. A server with the settings of a member
// writes it. A server that takes leave of the cluster leaves only the addresses of other members
// there. A daemon that has no settings of a member removes the file.
func (s *Server) membership() (err error) {
	switch {
	case s.beginMember != nil:
		if s.endMember, err = s.beginMember(s, s.isTakeover); err != nil {
			return err
		}
		if err := s.node.WriteMember(s.asMember); err != nil { // serving goes on
			// Cause: `PATH.member` cannot be written. Remedy: free space, correct rights.
			s.log.Warn("directory: the next server may not know that the node belongs to a cluster", "err", err)
		}
	case s.daemon:
		if err := s.node.RemoveMember(); err != nil {
			// Cause: `PATH.member` cannot be removed. Remedy: remove it.
			s.log.Warn("directory: the node belongs to no cluster, and the next server may not know that", "err", err)
		}
	default:
		m, isMember, err := s.node.Member()
		if err != nil {
			// Cause: `PATH.member` cannot be read. Remedy: correct its rights, or remove it.
			s.log.Warn("directory: it is not known whether the node belongs to a cluster", "err", err)
		}
		if isMember {
			// Cause: the process that serves has no `ROCL_BIND`. Remedy: start the daemon, or
			// [leave the cluster](CLUSTER.md#how-a-node-leaves).
			s.log.Warn("directory: the node belongs to a cluster and is served without the settings of a member: other nodes are not asked", "cluster", m.Cluster)
			// Cause: the daemon died, and a program without `ROCL_BIND` serves. Remedy: start the
			// daemon again.
			s.Attach(Unreachable(fmt.Errorf("this node belongs to the cluster %q and is served without the settings of a member", m.Cluster)))
		}
	}
	return nil
}

// leaveCluster takes leave of the cluster, unless another server of the node goes on as the member
// (handOver). It is called when all connections have ended.
func (s *Server) leaveCluster(handOver bool) {
	if s.endMember == nil {
		return
	}
	m := s.asMember()
	s.endMember(handOver)
	if handOver {
		return
	}
	if err := s.node.LeaveMember(m); err != nil {
		// Cause: `PATH.member` cannot be removed. Remedy: remove it.
		s.log.Warn("directory: the node has left its cluster, and the next server may not know that", "err", err)
	}
}
