// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"math"
	"time"

	"github.com/rocl-go/rocl"
)

// A Handler is a row about what handles messages to a resource: a call of a server, or
// Resource.Handle. Median and P99 are estimates: they are right within a factor of 2.
type Handler struct {
	rocl.HandlerSnapshot
	Whose
	Resource rocl.GID      `json:"resource"`
	Of       string        `json:"of"`     // the name of the resource
	Rate     float64       `json:"rate"`   // handlers that returned, a second
	Failed   float64       `json:"failed"` // of them, with an error, a second
	Median   time.Duration `json:"median"` // of the handlers that were timed lately, mostly in the last 10 s; 0: none
	P99      time.Duration `json:"p99"`    // likewise
}

type handlerKey struct {
	resource rocl.GID
	name     string
}

const (
	halfLife = 10.0 // seconds in which a duration loses half of its weight
	spans    = 24   // of rocl.HandlerSnapshot.Took
	shortest = 1024 // nanoseconds at which the first of them ends; each ends at twice the one before
)

// handlerSeen is what is known of a handler. The zero value has seen nothing.
type handlerSeen struct {
	last         *rocl.HandlerSnapshot // nil: nothing was seen
	rate, failed float64
	recent       [spans]float64 // how many handlers took how long, later ones with more weight
}

// next returns what is known when the handler has told h, so many seconds after it told last.
func (s handlerSeen) next(h *rocl.HandlerSnapshot, past float64) handlerSeen {
	n := handlerSeen{last: h}
	if s.last == nil {
		return n
	}
	n.rate, n.failed = rate(s.last.Ended, h.Ended, past), rate(s.last.Errors, h.Errors, past)
	keep := math.Exp2(-past / halfLife)
	for i := range n.recent {
		n.recent[i] = s.recent[i]*keep + float64(growth(s.last.Took, h.Took, i))
	}
	return n
}

// growth returns how much an element has grown. An element that has decreased began anew.
func growth(before, after []uint64, i int) uint64 {
	switch {
	case i >= len(after):
		return 0
	case i >= len(before):
		return after[i]
	}
	return max(after[i], before[i]) - before[i]
}

// quantile returns the duration that a part q of the handlers did not exceed, or 0 if no handler
// was timed lately.
func (s *handlerSeen) quantile(q float64) time.Duration {
	total := 0.0
	for _, n := range s.recent {
		total += n
	}
	if total < 0.1 { // one handler, half a minute ago
		return 0
	}
	left := q * total
	for i, n := range s.recent {
		if n > 0 && (left <= n || i == spans-1) {
			longest := float64(uint64(shortest) << i)
			least := longest / 2
			if i == 0 {
				least = 0
			}
			if i == spans-1 { // it has no end
				return time.Duration(least)
			}
			return time.Duration(least + (longest-least)*left/n)
		}
		left -= n
	}
	return 0
}

// Handlers returns the rows of all handlers.
func (o *Observer) Handlers() (all []Handler) {
	o.each(func(s *contextSeen, w Whose) {
		for i := range s.last.Resources {
			r := &s.last.Resources[i]
			for _, h := range r.Handlers {
				seen := s.handlers[handlerKey{r.Resource, h.Name}]
				row := Handler{HandlerSnapshot: h, Whose: w, Resource: r.Resource, Of: r.Name, Median: seen.quantile(0.5), P99: seen.quantile(0.99)}
				if w.Silent == 0 {
					row.Rate, row.Failed = seen.rate, seen.failed
				}
				row.Took = nil // the row has what it tells
				all = append(all, row)
			}
		}
	})
	return all
}
