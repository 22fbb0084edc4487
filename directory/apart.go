// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"strings"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// The file PATH.member says that the node belongs to a cluster. A server with
// the settings of a member writes it. It outlives a server that is killed or
// replaced, so that the next server knows that other nodes exist, even if that
// server has no settings of a member. A server that takes leave of the cluster
// removes it, and so does a daemon that has no settings of a member.
const memberSuffix = ".member"

// memberMark is the text that a file PATH.member begins with. The node's number follows, so a
// server ignores the mark of the node that this machine was before it was restarted.
const memberMark = "rocl member node "

// memberHead returns what the member file of this node contains before the name of the cluster.
func (s *Server) memberHead() string {
	return fmt.Sprintf(memberMark+"%012x cluster ", uint64(s.id.Node))
}

// readMember returns the content of the member file at path, nil if there is no file. ErrOccupied
// says that no directory wrote the file.
func readMember(path string) ([]byte, error) {
	b, err := readSide(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && !bytes.HasPrefix(b, []byte(memberMark)) {
		err = fmt.Errorf("directory: reading %s: %w: no directory wrote it", path, ErrOccupied)
	}
	return b, err
}

// memberOf returns the name of the cluster that the node at path belongs to. member reports whether
// it belongs to one. A file that cannot be read counts as membership; a foreign file does not.
func (s *Server) memberOf(path string) (name string, member bool) {
	b, err := readMember(path + memberSuffix)
	if err != nil {
		s.log.Warn("directory: it is not known whether the node belongs to a cluster", "err", err)
		return "", !errors.Is(err, ErrOccupied)
	}
	name, member = strings.CutPrefix(string(b), s.memberHead())
	return strings.TrimSuffix(name, "\n"), member
}

// markMember writes to the member file that the node at path belongs to the cluster of its terms.
func (s *Server) markMember(path string) error {
	now := s.memberHead() + s.terms().Cluster + "\n"
	was, err := readMember(path + memberSuffix)
	if err != nil || string(was) == now {
		return err
	}
	return writeSide(path+memberSuffix, []byte(now))
}

// unmarkMember removes the member file of the node at path.
func unmarkMember(path string) error {
	was, err := readMember(path + memberSuffix)
	if err != nil || was == nil {
		return err
	}
	if err := os.Remove(path + memberSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("directory: noting that %s left its cluster: %w", path, err)
	}
	return nil
}

// membership decides from the server's settings and the member file: the server becomes a member,
// or ends the node's membership, or answers as a node that cannot reach its cluster. It is called
// when the server knows its node and does not serve yet.
func (s *Server) membership(path string) (err error) {
	switch {
	case s.begin != nil:
		if s.leave, err = s.begin(s, s.late); err != nil {
			return err
		}
		s.marked = path
		if err := s.markMember(path); err != nil { // a failed mark does not prevent serving
			s.log.Warn("directory: the next server may not know that the node belongs to a cluster", "err", err)
		}
	case s.daemon:
		if err := unmarkMember(path); err != nil {
			s.log.Warn("directory: the node belongs to no cluster, and the next server may not know that", "err", err)
		}
	default:
		if name, member := s.memberOf(path); member {
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
	if s.marked == "" || handOver {
		return
	}
	select {
	case <-s.displaced: // the files are now those of another server
		return
	default:
	}
	if err := unmarkMember(s.marked); err != nil {
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
