// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"
	"slices"
	"sync"
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

// counts has what a server counts: the fields of Stats from Joined on.
type counts struct {
	mu   sync.Mutex // guards the Stats
	took []*histogram.Histogram
	Stats
}

// kinds has the messages that are questions, in the order of Stats.Questions.
var kinds = []byte{wire.MsgFind, wire.MsgLookup, wire.MsgList, wire.MsgMore}

func newCounts() *counts {
	n := &counts{}
	for _, kind := range []string{"find", "lookup", "all", "next"} {
		n.Questions = append(n.Questions, QuestionStats{Kind: kind})
		n.took = append(n.took, histogram.Durations())
	}
	return n
}

// add adds to a counter of n.
func (n *counts) add(counter *uint64, by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*counter += uint64(by)
}

// change counts a context's request to change one of its resources.
func (n *counts) change(typ byte, err error) {
	switch {
	case err != nil:
		n.add(&n.Refused, 1)
	case typ == wire.MsgRegister:
		n.add(&n.Registered, 1)
	case typ == wire.MsgUpdate:
		n.add(&n.Changed, 1)
	case typ == wire.MsgDelete:
		n.add(&n.Deleted, 1)
	}
}

// question counts a question, by how it ended.
func (n *counts) question(typ byte, ok bool, err error, took time.Duration) {
	i := slices.Index(kinds, typ)
	if i < 0 {
		return
	}
	q := &n.Questions[i]
	switch {
	case errors.Is(err, ErrPartial):
		n.add(&q.Partial, 1)
	case err != nil:
		n.add(&q.Failed, 1)
	case ok:
		n.add(&q.Found, 1)
	default:
		n.add(&q.None, 1)
	}
	n.took[i].Observe(uint64(max(took, 0)))
}

// Stats returns the present figures of the server.
func (s *Server) Stats() Stats {
	s.count.mu.Lock()
	out := s.count.Stats
	out.Questions = slices.Clone(out.Questions)
	s.count.mu.Unlock()
	out.Stats = s.db.Stats()
	for i := range out.Questions {
		out.Questions[i].Took = s.count.took[i].Snapshot()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Contexts, out.Connections = len(s.contexts), len(s.conns)
	return out
}
