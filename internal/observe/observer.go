// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// An Observer compares successive views. The zero value has seen none. It is not for concurrent
// use. The slices that its methods return belong to the caller; what their elements refer to must
// not be changed.
//
// A context that is silent keeps the rows that it had when it last told them.
type Observer struct {
	contexts map[rocl.GID]*contextSeen
	view     *View // the last one
}

// A Whose says of which context a row is.
type Whose struct {
	Context rocl.GID      `json:"context"`
	Program string        `json:"program"`
	PID     int           `json:"pid"`
	Node    string        `json:"node"`             // the name of the node, or its number if it has none
	Silent  time.Duration `json:"silent,omitempty"` // how long the context has been silent, as far as was seen; 0: it told this row
}

// A Resource is a row about a resource.
type Resource struct {
	rocl.ResourceSnapshot
	Whose
	In       float64       `json:"in"`       // bytes that arrived, a second
	Out      float64       `json:"out"`      // bytes that were received, a second
	Standing time.Duration `json:"standing"` // how long messages have waited while none was received, as far as was seen
	Running  int           `json:"running"`  // handlers that run
	Oldest   time.Duration `json:"oldest"`   // how long the first of them has run; 0: none runs, or it is not timed
}

// A Link is a row about a link, as the context at one end tells it.
type Link struct {
	dispatch.LinkSnapshot
	Whose
	In  float64 `json:"in"`  // bytes received, a second
	Out float64 `json:"out"` // bytes sent, a second
}

// A Call is a row about a call that waits for its reply.
type Call struct {
	dispatch.CallSnapshot
	Whose
	Age time.Duration `json:"age"` // how long it has waited, as far as was seen
}

// A ContextRow is a row about a context. The figures of a silent context are those that it told
// last.
type ContextRow struct {
	Whose
	SilentSince time.Time `json:"silent_since,omitzero"` // when the first question had no answer; zero: it answers
	Reason      string    `json:"reason,omitempty"`      // why there is no answer
	Started     time.Time `json:"started,omitzero"`
	Version     string    `json:"version"`   // of rocl in its program
	Resources   int       `json:"resources"` // how many
	Messages    int       `json:"messages"`  // that wait in their mailboxes
	Calls       int       `json:"calls"`     // that wait for replies
	Links       int       `json:"links"`
	Memory      uint64    `json:"memory"` // bytes
	In          float64   `json:"in"`     // bytes received over its links, a second
	Out         float64   `json:"out"`    // bytes sent over its links, a second
}

// contextSeen is what an Observer knows of a context.
type contextSeen struct {
	last   Context   // what it told last
	told   time.Time // when that was
	silent time.Time // since when it has been silent; zero: it answers

	resources map[rocl.GID]resourceSeen
	links     map[linkKey]linkSeen
	handlers  map[handlerKey]handlerSeen
	calls     map[uint64]time.Time // when each wait was seen first, by Number
	sends     map[uint64]time.Time
	receives  map[uint64]time.Time
}

type resourceSeen struct {
	received, arrived uint64
	since             time.Time // since when messages have waited with none received
	in, out           float64
}

type linkKey struct {
	peer    rocl.GID
	lane    dispatch.Lane
	isLocal bool
}

type linkSeen struct {
	received, sent uint64
	in, out        float64
}

// Add adds a view, which the Observer keeps and which must not be changed afterwards. The view must
// have been taken after the one before: Add ignores another one. Contexts and resources that the
// view has not are forgotten.
func (o *Observer) Add(v *View) {
	if o.view != nil && !v.Taken.After(o.view.Taken) {
		return
	}
	contexts := make(map[rocl.GID]*contextSeen, len(v.Contexts))
	for i := range v.Contexts {
		c := &v.Contexts[i]
		seen := o.contexts[c.Context]
		if seen == nil {
			seen = &contextSeen{last: *c}
		}
		contexts[c.Context] = seen
		if c.Silent == "" {
			*seen = seen.next(c, v.Taken)
			continue
		}
		seen.last.Silent = c.Silent
		if seen.silent.IsZero() {
			seen.silent = v.Taken
		}
	}
	o.contexts, o.view = contexts, v
}

// next returns what is known of a context when it has told c at the time now.
func (s *contextSeen) next(c *Context, now time.Time) contextSeen {
	n := contextSeen{
		last: *c, told: now, resources: make(map[rocl.GID]resourceSeen, len(c.Resources)), links: make(map[linkKey]linkSeen, len(c.Links)), handlers: map[handlerKey]handlerSeen{},
		calls: map[uint64]time.Time{}, sends: map[uint64]time.Time{}, receives: map[uint64]time.Time{},
	}
	past := now.Sub(s.told).Seconds() // much too long for the first time, when there is nothing to compare
	for i := range c.Resources {
		r := &c.Resources[i]
		seen := resourceSeen{received: r.Received, arrived: r.Arrived, since: now}
		if old, ok := s.resources[r.Resource]; ok {
			seen.in, seen.out = rate(old.arrived, r.Arrived, past), rate(old.received, r.Received, past)
			if r.Messages > 0 && old.received == r.Received {
				seen.since = old.since
			}
		}
		n.resources[r.Resource] = seen
		for _, w := range r.Waits {
			n.receives[w.Number] = seenFirst(s.receives, w.Number, now)
		}
		for j := range r.Handlers {
			key := handlerKey{r.Resource, r.Handlers[j].Name}
			n.handlers[key] = s.handlers[key].next(&r.Handlers[j], past)
		}
	}
	for i := range c.Links {
		l := &c.Links[i]
		seen := linkSeen{received: l.ReceivedBytes, sent: l.SentBytes}
		if old, ok := s.links[keyOf(l)]; ok {
			seen.in, seen.out = rate(old.received, l.ReceivedBytes, past), rate(old.sent, l.SentBytes, past)
		}
		n.links[keyOf(l)] = seen
	}
	for i := range c.Calls {
		n.calls[c.Calls[i].Number] = seenFirst(s.calls, c.Calls[i].Number, now)
	}
	for i := range c.Sends {
		n.sends[c.Sends[i].Number] = seenFirst(s.sends, c.Sends[i].Number, now)
	}
	return n
}

func keyOf(l *dispatch.LinkSnapshot) linkKey { return linkKey{l.Peer, l.Lane, l.State == "local"} }

// seenFirst returns when a wait was seen first.
func seenFirst(seen map[uint64]time.Time, number uint64, now time.Time) time.Time {
	if t, ok := seen[number]; ok {
		return t
	}
	return now
}

// rate returns the growth of a count in so many seconds. A count that has decreased began anew.
func rate(before, after uint64, seconds float64) float64 {
	if after < before || seconds <= 0 {
		return 0
	}
	return float64(after-before) / seconds
}

// each calls f with every context that has told something, in the order of the view.
func (o *Observer) each(f func(s *contextSeen, w Whose)) {
	if o.view == nil {
		return
	}
	names := o.nodeNames()
	for i := range o.view.Contexts {
		s := o.contexts[o.view.Contexts[i].Context]
		f(s, o.whose(s, names))
	}
}

// nodeNames returns the names of the nodes.
func (o *Observer) nodeNames() map[resource.NodeID]string {
	names := map[resource.NodeID]string{}
	for _, n := range o.view.Nodes {
		names[n.ID] = n.Name
	}
	return names
}

func (o *Observer) whose(s *contextSeen, names map[resource.NodeID]string) Whose {
	w := Whose{Context: s.last.Context, Program: s.last.Program, PID: s.last.PID, Node: nodeName(names, s.last.Context.Node())}
	if !s.silent.IsZero() {
		w.Silent = max(o.view.Taken.Sub(s.silent), 1)
	}
	return w
}

// Resources returns the rows of all resources.
func (o *Observer) Resources() (all []Resource) {
	o.each(func(s *contextSeen, w Whose) {
		for _, r := range s.last.Resources {
			seen := s.resources[r.Resource]
			row := Resource{ResourceSnapshot: r, Whose: w, In: seen.in, Out: seen.out, Standing: s.told.Sub(seen.since)}
			if w.Silent > 0 {
				row.In, row.Out = 0, 0
			}
			for _, h := range r.Handlers {
				row.Running = number(row.Running + h.Running)
				row.Oldest = max(row.Oldest, h.Oldest)
			}
			all = append(all, row)
		}
	})
	return all
}

// Links returns the rows of all links. A link of two contexts has two rows, one from each end.
func (o *Observer) Links() (all []Link) {
	o.each(func(s *contextSeen, w Whose) {
		for _, l := range s.last.Links {
			row := Link{LinkSnapshot: l, Whose: w}
			if seen := s.links[keyOf(&l)]; w.Silent == 0 {
				row.In, row.Out = seen.in, seen.out
			}
			all = append(all, row)
		}
	})
	return all
}

// Calls returns the rows of all calls that wait.
func (o *Observer) Calls() (all []Call) {
	o.each(func(s *contextSeen, w Whose) {
		for _, c := range s.last.Calls {
			all = append(all, Call{CallSnapshot: c, Whose: w, Age: o.view.Taken.Sub(s.calls[c.Number])})
		}
	})
	return all
}

// Contexts returns the rows of all contexts.
func (o *Observer) Contexts() (all []ContextRow) {
	o.each(func(s *contextSeen, w Whose) {
		c := &s.last
		row := ContextRow{
			Whose: w, SilentSince: s.silent, Reason: c.Silent, Started: c.Started, Version: c.Rocl,
			Resources: len(c.Resources), Calls: len(c.Calls), Links: len(c.Links), Memory: c.Memory,
		}
		for i := range c.Resources {
			row.Messages = number(row.Messages + c.Resources[i].Messages)
		}
		for _, l := range s.links {
			if w.Silent == 0 {
				row.In, row.Out = row.In+l.in, row.Out+l.out
			}
		}
		all = append(all, row)
	})
	return all
}

// nodeName returns the name of a node, or its number.
func nodeName(names map[resource.NodeID]string, n resource.NodeID) string {
	if name := names[n]; name != "" {
		return name
	}
	return fmt.Sprintf("%012x", uint64(n))
}

// Nodes returns the nodes of the last view. Each has a name, the number if it has no other.
func (o *Observer) Nodes() (all []Node) {
	if o.view == nil {
		return nil
	}
	names := o.nodeNames()
	for _, n := range o.view.Nodes {
		n.Name = nodeName(names, n.ID)
		all = append(all, n)
	}
	return all
}
