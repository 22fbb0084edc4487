// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
)

// This file tells snapshots of the context what servers and clients do: see rocl.Activity.

// activity returns what the handlers of the server do, in the order of their names. The age of a
// handler counts from the arrival of its request, as in MethodStats. Handlers of requests that can
// neither be cancelled nor time out, and Inline ones that are not timed, have no age.
func (s *Server) activity() (all []rocl.HandlerSnapshot) {
	oldest := s.callers.oldest(time.Now())
	for _, m := range *s.names.Load() {
		if !m.isOwn() {
			ended := m.stats.ran.Load() // before begun: the difference is never negative
			h := rocl.HandlerSnapshot{Name: m.name, Running: int(m.stats.begun.Load() - ended), Ended: ended, Errors: m.stats.errors.Load()}
			if h.Running > 0 {
				h.Oldest = oldest[m.stats]
			}
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b rocl.HandlerSnapshot) int {
		return cmp.Or(cmp.Compare(b.Running, a.Running), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// oldest returns the age of the oldest handler of each call, as far as it is known.
func (c *callers) oldest(now time.Time) map[*methodStats]time.Duration {
	ages := map[*methodStats]time.Duration{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, from := range c.all {
		for _, r := range from.requests {
			if m := r.running.Load(); m != nil && !r.came.IsZero() {
				ages[m.stats] = max(ages[m.stats], now.Sub(r.came))
			}
		}
	}
	return ages
}

// begin notes that the handler of the request runs.
func (r *request) begin() {
	r.method.stats.begun.Add(1)
	if r.h.number != 0 {
		r.running.Store(r.method)
	}
}

// ended counts the handler, which has returned err.
func (r *request) ended(err error) {
	if r.h.number != 0 {
		r.running.Store(nil)
	}
	r.method.stats.ended(r.came, err)
}

// mostNames is how many names of calls a client keeps.
const mostNames = 1024

// callNames has the names of the calls that a client has made, by identifier, as far as there are
// not too many.
type callNames struct {
	mu  sync.Mutex                        // held to replace all
	all atomic.Pointer[map[uint64]string] // a stored map does not change; nil: none
}

// id returns the identifier of a name, and keeps the name.
func (n *callNames) id(name string) uint64 {
	id := callID(name)
	old, isKept := n.all.Load(), false
	if old != nil {
		_, isKept = (*old)[id]
		isKept = isKept || len(*old) >= mostNames
	}
	if !isKept {
		n.mu.Lock()
		defer n.mu.Unlock()
		all := map[uint64]string{id: name}
		if old = n.all.Load(); old != nil {
			maps.Copy(all, *old)
		}
		n.all.Store(&all)
	}
	return id
}

// of returns the name of an identifier, or "" if it is not known.
func (n *callNames) of(id uint64) string {
	if all := n.all.Load(); all != nil {
		return (*all)[id]
	}
	return ""
}
