// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"iter"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/resource"
)

// summaries has the summaries of this member and of the other members.
type summaries struct {
	*core
	members *memberTable

	mu      sync.Mutex // guards filters; no other lock is taken with it held
	filters *search.Filters
}

// candidates returns some members whose summary has all attributes that the pattern names.
func (s *summaries) candidates(pattern *resource.List) []resource.NodeID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.filters.May(pattern)
}

// met notes that a member has come (alive), or has gone.
func (s *summaries) met(id resource.NodeID, alive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filters.Met(id, alive)
}

// maintain keeps this member's summary and tells the other members of it, in batches. A resource
// that is too new for the summary is found by asking all members.
func (s *summaries) maintain() {
	var everything resource.List
	w := s.cfg.DB.Watch(&everything)
	defer w.Close()
	s.renew()
	interval := func() time.Duration { return search.Interval(s.cfg.Spread, len(s.members.list())) }
	due := time.NewTimer(interval())
	defer due.Stop()
	added := make(chan resource.List)
	s.life.begin(func() { s.forwardAdded(w, added) })
	for {
		select {
		case l := <-added:
			s.mu.Lock()
			s.filters.Add(&l)
			s.mu.Unlock()
		case <-due.C:
			s.mu.Lock()
			stale := s.filters.Stale(len(s.members.list()))
			s.mu.Unlock()
			if stale {
				s.renew()
			}
			s.spread()
			due.Reset(interval())
		case <-s.life.Done():
			return
		}
	}
}

// forwardAdded sends the attributes of resources that appear or change to added, until s.life ends.
func (s *summaries) forwardAdded(w *database.Watch, added chan<- resource.List) {
	for {
		ev, err := w.Next(s.life)
		if err != nil {
			return
		}
		if ev.Kind != database.Appeared && ev.Kind != database.Changed {
			continue
		}
		select {
		case added <- ev.Attrs:
		case <-s.life.Done():
			return
		}
	}
}

// renew makes a new summary of what the node holds. Events that come meanwhile wait in the watch of
// maintain.
func (s *summaries) renew() {
	own := search.NewSummary(s.everything(), len(s.members.list()))
	s.mu.Lock()
	s.filters.Renew(own)
	s.mu.Unlock()
}

// everything yields the attributes of all resources of the node.
func (s *summaries) everything() iter.Seq[*resource.List] {
	return func(yield func(*resource.List) bool) {
		var everything resource.List
		for cur := s.cfg.DB.Cursor(&everything); ; {
			r, ok := cur.Next()
			if !ok || !yield(&r.Attrs) {
				return
			}
		}
	}
}

// spread tells the members what is new in the summary.
func (s *summaries) spread() {
	var out []mux.Out
	s.mu.Lock()
	s.filters.Spread(s.members.list(), s.cfg.Node, func(to resource.NodeID, message []byte) {
		out = append(out, mux.Out{To: to, Payload: message})
	})
	s.mu.Unlock()
	for i := range out {
		s.count.filterSent.add(len(out[i].Payload))
	}
	s.mux.Send(out...)
}

// receive handles a message about summaries.
func (s *summaries) receive(from resource.NodeID, message []byte) {
	s.count.filterGot.add(len(message))
	if !s.members.has(from) {
		return
	}
	s.mu.Lock()
	reply, err := s.filters.Hear(from, message)
	s.mu.Unlock()
	if err != nil {
		s.log.Debug("cluster: ignoring a malformed summary", "from", from, "err", err)
	}
	if reply != nil {
		s.mux.Send(mux.Out{To: from, Payload: reply})
	}
}

// stats fills in the numbers of summaries.
func (s *summaries) stats(to *FilterStats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members.otherMembers() {
		if s.filters.Of(m) != nil {
			to.Known++
		}
	}
	to.Held = s.filters.Bytes()
}
