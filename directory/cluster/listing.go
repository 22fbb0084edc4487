// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/resource"
)

// errForgotten is returned when the asked member does not have the cursor of a listing: its
// directory was replaced, or it kept too many cursors.
var errForgotten = fmt.Errorf("%w: a member has forgotten the cursor", directory.ErrPartial)

// errDied is returned when a node stopped being a member before it had told all that it had.
var errDied = fmt.Errorf("%w: the member has died", directory.ErrNotFound)

// mostListings limits how often the listing of one member is begun without a further resource.
const mostListings = 5

// all implements Cluster.All.
func (a *asker) all(ctx context.Context, pattern *resource.List, cov *directory.Coverage) iter.Seq2[database.Record, error] {
	return func(yield func(database.Record, error) bool) {
		if err := a.joiner.await(ctx); err != nil {
			yield(database.Record{}, err)
			return
		}
		unknown := a.joiner.incomplete()
		asked := a.members.roll.Load()
		targets := a.members.otherMembers()
		_, _, ordered := pattern.Order()
		var firsts []first // of the first members in targets
		for len(targets) > 0 {
			m := targets[0]
			var more bool
			var err error
			if ordered {
				if len(firsts) == 0 {
					firsts = a.firsts(ctx, targets[:min(len(targets), firstsEach)], pattern)
				}
				f := &firsts[0]
				more, err = !f.ok || yield(f.Record, nil), f.err
				firsts = firsts[1:]
			} else {
				l := listing{a: a, of: m, pattern: pattern}
				more, err = l.all(ctx, func(r database.Record) bool { return yield(r, nil) })
			}
			switch {
			case !more:
				return
			case err == nil:
				cov.Covered++
			case errors.Is(err, errDied): // its resources are gone with it
			case errors.Is(err, directory.ErrPartial):
				cov.Failed = append(cov.Failed, m)
			default:
				yield(database.Record{}, err)
				return
			}
			if targets = targets[1:]; len(targets) == 0 {
				targets = a.members.newcomers(&asked)
			}
		}
		if unknown == nil {
			unknown = a.joiner.incomplete()
		}
		if unknown != nil {
			yield(database.Record{}, unknown)
		}
	}
}

// firstsEach is how many members are asked at once for their first resource in an order.
const firstsEach = 64

// A first is the resource of one member that comes first in an order, if ok is set.
type first struct {
	database.Record
	ok  bool
	err error
}

// firsts asks each member in targets, at once, for its first resource in the pattern's order.
func (a *asker) firsts(ctx context.Context, targets []resource.NodeID, pattern *resource.List) []first {
	all := make([]first, len(targets))
	atOnce(targets, firstsEach, func(i int, m resource.NodeID) {
		f, l := &all[i], listing{a: a, of: m, pattern: pattern}
		_, f.err = l.all(ctx, func(r database.Record) bool {
			f.Record, f.ok = r, true
			return false
		})
	})
	return all
}

// A listing lists the resources of one member.
type listing struct {
	a       *asker
	of      resource.NodeID
	pattern *resource.List
	yielded []resource.GID
	seen    map[resource.GID]bool // identifiers yielded before the cursor was lost
}

// all yields every resource. When the member loses the cursor, all begins again and skips what was
// yielded. A member forgets the cursor of a caller that takes longer than the lease for a resource,
// so a listing may begin again as often as it has yielded something. more is false if yield
// returned false.
func (l *listing) all(ctx context.Context, yield func(database.Record) bool) (more bool, err error) {
	for tries := 0; tries < mostListings; tries++ {
		if more, err = l.once(ctx, yield); !errors.Is(err, errForgotten) {
			break
		}
		if len(l.yielded) > 0 {
			tries = -1
		}
		if l.seen == nil {
			l.seen = map[resource.GID]bool{}
		}
		for _, id := range l.yielded {
			l.seen[id] = true
		}
		l.yielded = nil
	}
	return more, err
}

// once yields the resources from the beginning. At its end the member is told to forget the cursor.
func (l *listing) once(ctx context.Context, yield func(database.Record) bool) (more bool, err error) {
	var cursor [8]byte
	_, _ = rand.Read(cursor[:]) // no other listing has this number
	defer func() {
		if l.a.life.Err() == nil {
			l.a.mux.Send(mux.Out{To: l.of, Payload: append([]byte{msgStop}, cursor[:]...)})
		}
	}()
	for step := uint64(1); ; step++ {
		q := question(kindNext, resource.GID{}, l.pattern)
		copy(q[1:], cursor[:])
		binary.BigEndian.PutUint64(q[9:], step)
		r, err := l.a.ask(ctx, q, []resource.NodeID{l.of})
		switch {
		case errors.Is(err, directory.ErrNotFound) && !errors.Is(err, errDied):
			return true, nil
		case err != nil:
			return true, err
		case l.seen[r.ID]:
			continue
		}
		l.yielded = append(l.yielded, r.ID)
		if !yield(r) {
			return false, nil
		}
	}
}
