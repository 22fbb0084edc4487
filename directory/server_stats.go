// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/internal/histogram"
)

// Stats describe a server: what it has now, and what has happened since it began.
type Stats struct {
	database.Stats
	Contexts, Connections int

	Joined, Ended                uint64 // contexts; one that joins again counts again
	Registered, Changed, Deleted uint64 // resources; one that is offered again counts as registered
	Lapsed                       uint64 // resources deleted because their context had ended
	Refused                      uint64 // registrations, changes and deletions that failed
	Watched                      uint64 // watches begun
	Questions                    []QuestionStats
}

// QuestionStats describe the questions of one kind.
type QuestionStats struct {
	// Kind is find, lookup, all (the first answers of several) or next (further answers).
	Kind string
	// Partial counts questions without a result of which some members could not be asked.
	Found, None, Partial, Failed uint64
	Took                         histogram.Snapshot // how long the questions took
}

// counts has the counters of a server.
type counts struct {
	joined, ended                                        atomic.Uint64
	registered, changed, deleted, lapsed, refused, watch atomic.Uint64
	find, lookup, all, next                              questions
}

// questions has the counters of the questions of one kind.
type questions struct {
	found, none, partial, failed atomic.Uint64
	took                         *histogram.Histogram
}

func newCounts() *counts {
	n := &counts{}
	for _, q := range []*questions{&n.find, &n.lookup, &n.all, &n.next} {
		q.took = histogram.Durations()
	}
	return n
}

// change counts a context's request to change one of its resources.
func (n *counts) change(typ byte, err error) {
	switch {
	case err != nil:
		n.refused.Add(1)
	case typ == wire.MsgRegister:
		n.registered.Add(1)
	case typ == wire.MsgUpdate:
		n.changed.Add(1)
	case typ == wire.MsgDelete:
		n.deleted.Add(1)
	}
}

// question counts a question, by how it ended.
func (n *counts) question(typ byte, ok bool, err error, took time.Duration) {
	var q *questions
	switch typ {
	case wire.MsgFind:
		q = &n.find
	case wire.MsgLookup:
		q = &n.lookup
	case wire.MsgList:
		q = &n.all
	case wire.MsgMore:
		q = &n.next
	default:
		return
	}
	switch {
	case errors.Is(err, ErrPartial):
		q.partial.Add(1)
	case err != nil:
		q.failed.Add(1)
	case ok:
		q.found.Add(1)
	default:
		q.none.Add(1)
	}
	q.took.Observe(uint64(max(took, 0)))
}

// Stats returns the present figures of the server.
func (s *Server) Stats() Stats {
	n := s.count
	out := Stats{
		Stats:  s.db.Stats(),
		Joined: n.joined.Load(), Ended: n.ended.Load(),
		Registered: n.registered.Load(), Changed: n.changed.Load(), Deleted: n.deleted.Load(),
		Lapsed: n.lapsed.Load(), Refused: n.refused.Load(), Watched: n.watch.Load(),
	}
	for _, q := range []struct {
		kind string
		*questions
	}{{"find", &n.find}, {"lookup", &n.lookup}, {"all", &n.all}, {"next", &n.next}} {
		out.Questions = append(out.Questions, QuestionStats{
			q.kind, q.found.Load(), q.none.Load(), q.partial.Load(), q.failed.Load(), q.took.Snapshot(),
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Contexts, out.Connections = len(s.lives), len(s.conns)
	return out
}
