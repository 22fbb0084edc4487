// SPDX-License-Identifier: Apache-2.0

package web

import (
	"fmt"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/resource"
)

// The limits of the time line.
const (
	maxEvents      = 100
	maxEventsAView = 12 // of one kind, from one view to the next
)

// An event is a change that somebody may want to know of.
type event struct {
	Number int    `json:"n"`
	Time   int64  `json:"t"`    // in milliseconds
	Kind   string `json:"kind"` // appeared, gone, silent, back, cut, healed or took over
	Text   string `json:"text"`
}

// A link's ends and lane tell it from others.
type linkID struct {
	from, to rocl.GID
	lane     string
}

// An eye sees what changes from one view to the next.
type eye struct {
	contexts map[rocl.GID]observe.ContextRow
	nodes    map[resource.NodeID]observe.Node
	links    map[linkID]observe.Link
	names    map[rocl.GID]string // of resources, and whose they are
}

// look returns what has changed since the last state. The first state has no events.
func (e *eye) look(s *state) (all []event) {
	counts := map[string]int{}
	add := func(kind, format string, args ...any) {
		if counts[kind]++; counts[kind] <= maxEventsAView {
			all = append(all, event{Time: s.now.UnixMilli(), Kind: kind, Text: fmt.Sprintf(format, args...)})
		}
	}
	next := eye{map[rocl.GID]observe.ContextRow{}, map[resource.NodeID]observe.Node{}, map[linkID]observe.Link{}, map[rocl.GID]string{}}
	for i := range s.contexts {
		c := &s.contexts[i]
		next.contexts[c.Context] = *c
		switch old, ok := e.contexts[c.Context]; {
		case !ok:
			add("appeared", "%s, context %v", processName(&c.Whose), c.Context)
		case old.Silent == 0 && c.Silent > 0:
			add("silent", "%s does not answer: %s", processName(&c.Whose), c.Reason)
		case old.Silent > 0 && c.Silent == 0:
			add("back", "%s answers again after %s", processName(&c.Whose), length(old.Silent))
		}
	}
	for id, c := range e.contexts {
		if _, ok := next.contexts[id]; !ok {
			add("gone", "%s, context %v", processName(&c.Whose), id)
		}
	}
	e.lookAtNodes(s, &next, add)
	e.lookAtLinks(s, &next, add)
	for i := range s.resources {
		r := &s.resources[i]
		next.names[r.Resource] = r.Name + " of " + processName(&r.Whose)
		if _, ok := e.names[r.Resource]; !ok && e.has(r.Context) {
			add("appeared", "resource %v %s", r.Resource, next.names[r.Resource])
		}
	}
	for id, name := range e.names {
		if _, ok := next.names[id]; !ok && next.has(id.Context()) {
			add("gone", "resource %v %s", id, name)
		}
	}
	for kind, n := range counts {
		if n -= maxEventsAView; n > 0 {
			all = append(all, event{Time: s.now.UnixMilli(), Kind: kind, Text: fmt.Sprintf("and %d more", n)})
		}
	}
	isFirst := e.contexts == nil
	*e = next
	if isFirst {
		return nil
	}
	return all
}

func (e *eye) has(context rocl.GID) bool {
	_, ok := e.contexts[context]
	return ok
}

func (e *eye) lookAtNodes(s *state, next *eye, add func(kind, format string, args ...any)) {
	for i := range s.nodes {
		n := &s.nodes[i]
		next.nodes[n.ID] = *n
		switch old, ok := e.nodes[n.ID]; {
		case !ok:
			add("appeared", "node %s", nodeName(n))
		case old.Error == "" && n.Error != "":
			add("cut", "node %s: %s", nodeName(&old), n.Error)
		case old.Error != "" && n.Error == "":
			add("healed", "node %s", nodeName(n))
		case old.Addr != n.Addr && n.Error == "":
			add("took over", "another process serves node %s, at %s", nodeName(n), n.Addr)
		}
	}
	for id, n := range e.nodes {
		if _, ok := next.nodes[id]; !ok {
			add("gone", "node %s", nodeName(&n))
		}
	}
}

func (e *eye) lookAtLinks(s *state, next *eye, add func(kind, format string, args ...any)) {
	for i := range s.links {
		l := &s.links[i]
		id := linkID{l.Context, l.Peer, string(l.Lane)}
		next.links[id] = *l
		old, ok := e.links[id]
		switch {
		case !ok:
		case !isBroken(&old) && isBroken(l):
			add("cut", "link from %s to %v: %s", processName(&l.Whose), l.Peer, l.Dialling)
		case isBroken(&old) && !isBroken(l), l.Resumed > old.Resumed:
			add("healed", "link from %s to %v", processName(&l.Whose), l.Peer)
		}
	}
}

func nodeName(n *observe.Node) string {
	if n.Name != "" {
		return n.Name
	}
	id, _ := n.ID.MarshalText()
	return string(id)
}

// note adds events to the time line. mu must be held.
func (p *Page) noteLocked(all []event) {
	for _, e := range all {
		p.numbered++
		e.Number = p.numbered
		p.events = append(p.events, e)
	}
	if n := len(p.events) - maxEvents; n > 0 {
		p.events = append([]event(nil), p.events[n:]...)
	}
}

// began is the event with which the time line begins.
func began(at time.Time) event {
	return event{Time: at.UnixMilli(), Kind: "took over", Text: "this daemon serves the directory of the node"}
}
