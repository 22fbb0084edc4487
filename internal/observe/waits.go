// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/resource"
)

// The kinds of steps.
const (
	Calling   = "call"     // a call waits for its reply
	Sending   = "send"     // a send waits for room in a mailbox
	Receiving = "receive"  // a receive waits for a message of some origins
	Waiting   = "messages" // a resource has messages, or a request, and does not go on
)

// A Chain is a wait, what it waits for, what that waits for, and so on.
type Chain struct {
	Steps []Step        `json:"steps"`           // at most 32: further ones are left out of the middle
	End   string        `json:"end"`             // why the last step does not go on, in words
	Cycle int           `json:"cycle,omitempty"` // how many steps, to the last one, wait for each other; 0: no cycle
	Age   time.Duration `json:"age"`             // of the first step, as far as was seen
	More  int           `json:"more,omitempty"`  // further waits like the first step, which go on in the same way
}

// A Step is one wait of a chain.
type Step struct {
	Whose
	Kind  string        `json:"kind"`
	From  rocl.GID      `json:"from"`            // the resource that waits
	To    rocl.GID      `json:"to,omitzero"`     // the resource, or the context, for which it waits
	Age   time.Duration `json:"age"`             // as far as was seen
	Maybe bool          `json:"maybe,omitempty"` // the step before may wait for another thing: snapshots do not tell
	Text  string        `json:"text"`            // the step in words
}

const (
	maxSteps = 32   // of a chain
	maxWalk  = 1000 // waits of a path; a longer one is not followed to its end
)

// A wait is a node of the graph of waits. It goes on with one other wait at most: where snapshots
// leave a choice, with the one that has waited longest.
type wait struct {
	kind     string
	context  *contextSeen
	from, to rocl.GID
	name     string
	tag      uint64
	since    time.Time

	next  int // index of the wait for which this one waits; -1: there is none, see end
	maybe bool
	end   string
}

// A graph has the waits of a view.
type graph struct {
	*Observer
	names     map[resource.NodeID]string
	resources map[rocl.GID]*rocl.ResourceSnapshot
	waits     []wait
	mailboxes map[rocl.GID]int           // waits of kind Waiting
	byFrom    map[rocl.GID][]int         // waits of a resource, the longest first
	byContext map[rocl.GID][]int         // calls and sends of a context, the longest first
	called    map[rocl.GID]time.Time     // when the first call that waits for a resource began
	dialling  map[[2]rocl.GID]string     // why a context has no connection with another one; "": it has one
	unasked   map[resource.NodeID]string // why nodes were not asked; "": they were
}

// Waits returns the calls, sends and receives that have waited for least or longer, and the
// messages that have waited so long with none received. Each is the first step of a chain, unless
// another wait goes on with it. The longest come first. With of, only chains in which one of these
// resources waits, or is waited for, are returned.
//
// A receive counts if it selects origins. A receive of any message may be of a server without work.
func (o *Observer) Waits(least time.Duration, of ...rocl.GID) []Chain {
	if o.view == nil {
		return nil
	}
	g := o.graph(least)
	isNext, only := make([]bool, len(g.waits)), map[rocl.GID]bool{}
	for _, id := range of {
		only[id] = true
	}
	for i := range g.waits {
		if n := g.waits[i].next; n >= 0 {
			isNext[n] = true
		}
	}
	type likeness struct {
		kind, name, end string
		to              rocl.GID
		next            int
	}
	merged := map[likeness]int{}
	var all []Chain
	visited := make([]int, len(g.waits)) // the number of the walk that has come here last
	add := func(root int) {
		w := &g.waits[root]
		age := o.view.Taken.Sub(w.since)
		like := likeness{w.kind, w.name, w.end, w.to, w.next}
		at, isMerged := merged[like]
		isMerged = isMerged && w.kind != Waiting
		if visited[root] = root + 1; age < least || isMerged && len(of) == 0 && age <= all[at].Age {
			if isMerged && age >= least {
				all[at].More++
			}
			return
		}
		path, cycle := g.walk(root, visited)
		if len(of) > 0 && !slices.ContainsFunc(path, func(i int) bool { return g.waits[i].isOf(only) }) {
			return
		}
		c := g.chain(path, cycle)
		switch {
		case !isMerged:
			merged[like] = len(all)
			all = append(all, c)
		case age > all[at].Age:
			c.More = all[at].More + 1
			all[at] = c
		default:
			all[at].More++
		}
	}
	for i := range g.waits {
		if !isNext[i] {
			add(i)
		}
	}
	for i := range g.waits { // what is left are cycles that no other wait leads to
		if visited[i] == 0 && g.waits[i].kind != Waiting {
			add(i)
		}
	}
	slices.SortStableFunc(all, func(a, b Chain) int { return cmp.Compare(b.Age, a.Age) })
	return all
}

// isOf reports whether one of the resources or contexts waits, or is waited for.
func (w *wait) isOf(only map[rocl.GID]bool) bool {
	return only[w.from] || only[w.from.Context()] || only[w.to] || only[w.to.Context()]
}

// graph makes the graph of the last view. Messages that have waited for least are waits of their
// own.
func (o *Observer) graph(least time.Duration) *graph {
	g := &graph{
		Observer: o, names: o.nodeNames(), resources: map[rocl.GID]*rocl.ResourceSnapshot{}, mailboxes: map[rocl.GID]int{},
		byFrom: map[rocl.GID][]int{}, byContext: map[rocl.GID][]int{}, called: map[rocl.GID]time.Time{},
		dialling: map[[2]rocl.GID]string{}, unasked: map[resource.NodeID]string{},
	}
	for _, n := range o.view.Nodes {
		g.unasked[n.ID] = n.Error
	}
	o.each(func(s *contextSeen, w Whose) {
		g.unasked[w.Context.Node()] = ""
		for i := range s.last.Resources {
			g.resources[s.last.Resources[i].Resource] = &s.last.Resources[i]
		}
		if w.Silent > 0 {
			return // its waits may have ended
		}
		for _, l := range s.last.Links {
			pair := [2]rocl.GID{w.Context, l.Peer}
			if old, ok := g.dialling[pair]; !ok || old != "" {
				g.dialling[pair] = l.Dialling
			}
		}
		for _, c := range s.last.Calls {
			since := s.calls[c.Number]
			g.waits = append(g.waits, wait{kind: Calling, context: s, from: c.From, to: c.To, name: c.Name, tag: c.Tag, since: since})
			if t, ok := g.called[c.To]; !ok || since.Before(t) {
				g.called[c.To] = since
			}
		}
		for _, c := range s.last.Sends {
			g.waits = append(g.waits, wait{kind: Sending, context: s, from: c.From, to: c.To, tag: c.Tag, since: s.sends[c.Number]})
		}
		for i := range s.last.Resources {
			r := &s.last.Resources[i]
			for _, w := range r.Waits {
				if len(w.From) > 0 && !isQuestion(&w) {
					g.waits = append(g.waits, wait{kind: Receiving, context: s, from: r.Resource, to: w.From[0], since: s.receives[w.Number]})
				}
			}
		}
	})
	for i := range g.waits {
		w := &g.waits[i]
		g.byFrom[w.from] = append(g.byFrom[w.from], i)
		if w.kind != Receiving {
			g.byContext[w.from.Context()] = append(g.byContext[w.from.Context()], i)
		}
	}
	for _, lists := range []map[rocl.GID][]int{g.byFrom, g.byContext} {
		for _, l := range lists {
			slices.SortStableFunc(l, func(a, b int) int { return g.waits[a].since.Compare(g.waits[b].since) })
		}
	}
	o.each(func(s *contextSeen, w Whose) {
		for i := range s.last.Resources {
			r := &s.last.Resources[i]
			if r.Messages > 0 && w.Silent == 0 && s.told.Sub(s.resources[r.Resource].since) >= least {
				g.mailbox(r.Resource)
			}
		}
	})
	for i := 0; i < len(g.waits); i++ { // resolve adds mailboxes
		g.resolve(i)
	}
	return g
}

// isQuestion reports whether a receive waits for the answer of a context to a question such as
// Gather asks: that of another command.
func isQuestion(w *dispatch.ReceiverSnapshot) bool {
	const routes, stats = 0x524f555445530001, 0x5354415453000001 // see docs/PROTOCOL.md
	return w.From[0] == w.From[0].Context() && len(w.Tags) == 1 && (w.Tags[0] == routes || w.Tags[0] == stats)
}

// mailbox returns the wait of the resource id, which some context has told.
func (g *graph) mailbox(id rocl.GID) int {
	i, ok := g.mailboxes[id]
	if !ok {
		i = len(g.waits)
		s := g.contexts[id.Context()]
		g.mailboxes[id] = i
		g.waits = append(g.waits, wait{kind: Waiting, context: s, from: id, since: s.resources[id].since})
	}
	return i
}

// resolve sets how the wait i goes on.
func (g *graph) resolve(i int) {
	w := g.waits[i]
	w.next = -1
	switch {
	case w.kind == Waiting:
		w.next, w.maybe = g.within(&w)
		w.end = g.state(w.from)
	case w.kind == Receiving:
		w.end = g.missing(w.context, w.to)
		if w.end == "" {
			w.end = g.process(w.to.Context()) + " sends nothing to it"
			if own := slices.Concat(g.byFrom[w.to], g.ofContext(w.to)); len(own) > 0 {
				w.next, w.maybe = own[0], true
			}
		}
	default:
		w.end = g.missing(w.context, w.to)
		if g.resources[w.to] != nil && w.end == "" {
			w.next = g.mailbox(w.to)
		} else if w.end == "" { // a question to a context
			w.end = g.process(w.to.Context()) + " has not replied to a question"
		}
	}
	g.waits[i] = w
}

// ofContext returns the calls and sends of a context, and none for another resource.
func (g *graph) ofContext(id rocl.GID) []int {
	if id != id.Context() {
		return nil
	}
	return g.byContext[id]
}

// within returns the wait that keeps the resource of w from going on, and whether it may be another
// one: a handler is not told together with its calls.
func (g *graph) within(w *wait) (next int, maybe bool) {
	r := g.resources[w.from]
	running, called, isCalled := running(r), time.Time{}, false
	if r.Messages == 0 { // the request has been received: what it leads to began later
		called, isCalled = g.called[w.from]
	}
	younger := func(of []int) int {
		for _, i := range of {
			if !g.waits[i].since.Before(called) {
				return i
			}
		}
		return -1
	}
	own := g.byFrom[w.from]
	if next = younger(own); next >= 0 {
		return next, len(own) > 1 || running > 1 || r.ReceivesWaiting() > 1
	}
	if running > 0 || len(r.Waits) == 0 && (r.Messages > 0 || isCalled) {
		return younger(g.byContext[w.from.Context()]), true
	}
	return -1, false
}

func running(r *rocl.ResourceSnapshot) (n int) {
	for _, h := range r.Handlers {
		n = number(n + h.Running)
	}
	return n
}

// missing returns why the resource, or context, to cannot answer the context from, or "" if
// to is there as far as was told.
func (g *graph) missing(from *contextSeen, to rocl.GID) string {
	s := g.contexts[to.Context()]
	switch {
	case s == nil:
		why, isKnown := g.unasked[to.Node()]
		if isKnown && why == "" {
			return g.label(to) + " no longer exists"
		}
		return fmt.Sprintf("node %s was not asked", nodeName(g.names, to.Node())) + strings.TrimSuffix(": "+why, ": ")
	case !s.silent.IsZero():
		text := fmt.Sprintf("%s has not answered for %s", g.process(to.Context()), display.Duration(g.view.Taken.Sub(s.silent)))
		if s.last.Silent != noAnswer {
			text += ": " + s.last.Silent
		}
		return text
	case g.dialling[[2]rocl.GID{from.last.Context, to.Context()}] != "":
		return fmt.Sprintf("no connection from %s to %s: %s", g.process(from.last.Context), g.process(to.Context()), g.dialling[[2]rocl.GID{from.last.Context, to.Context()}])
	case to == to.Context() || g.resources[to] != nil:
		return ""
	case s.last.Cut["resources"] > 0:
		return g.process(to.Context()) + " has told a part of its resources only"
	}
	return g.label(to) + " no longer exists"
}

// state returns what a resource does, as a reason for which it does not go on.
func (g *graph) state(id rocl.GID) string {
	r := g.resources[id]
	messages := count(r.Messages, "message")
	wait := "wait"
	if r.Messages == 1 {
		wait = "waits"
	}
	if n := running(r); n > 0 {
		h := slices.MaxFunc(r.Handlers, func(a, b rocl.HandlerSnapshot) int {
			return cmp.Or(cmp.Compare(a.Oldest, b.Oldest), cmp.Compare(a.Running, b.Running))
		})
		text := "a handler runs"
		if n > 1 {
			text = fmt.Sprintf("%d handlers run", n)
		}
		if h.Name != "" {
			text += " (" + h.Name + ")"
		}
		if h.Oldest > 0 {
			text += " for " + display.Duration(h.Oldest)
		}
		if r.Messages > 0 {
			text += fmt.Sprintf(", and %s %s", messages, wait)
		}
		return text
	}
	if r.Messages == 0 {
		if len(r.Waits) > 0 {
			return "it has received the request, receives again, and has not replied"
		}
		return "it has received the request, and has not replied"
	}
	text := fmt.Sprintf("nobody receives: %s %s", messages, wait)
	if !r.First.From.IsZero() && len(r.Waits) > 0 {
		text += fmt.Sprintf(", the first with tag %d from %s", r.First.Tag, g.label(r.First.From))
	}
	if n := r.ReceivesWaiting(); len(r.Waits) == 1 && n == 1 {
		text += ", the only receive selects " + g.selected(&r.Waits[0])
	} else if len(r.Waits) > 0 {
		text += fmt.Sprintf(", none of %d receives selects one: the first selects %s", n, g.selected(&r.Waits[0]))
	}
	return text
}

// selected returns what a receive selects.
func (g *graph) selected(w *dispatch.ReceiverSnapshot) string {
	var parts []string
	if n := len(w.Tags); n > 0 {
		var tags []string
		for _, t := range w.Tags[:min(n, 4)] {
			tags = append(tags, fmt.Sprint(t))
		}
		parts = append(parts, limited("tag "+strings.Join(tags, ", "), n-4))
	}
	if n := len(w.From); n > 0 {
		parts = append(parts, limited("messages from "+g.resource(w.From[0]), n-1))
	}
	if w.Select != "" {
		parts = append(parts, w.Select)
	}
	if len(parts) == 0 {
		return "any message"
	}
	return strings.Join(parts, " of ")
}

func limited(text string, more int) string {
	if more > 0 {
		return fmt.Sprintf("%s and %d more", text, more)
	}
	return text
}

// walk returns the waits from root on, until one goes on with none or with one of them, or there
// are maxWalk. cycle is the number of the last waits that are a cycle.
func (g *graph) walk(root int, visited []int) (path []int, cycle int) {
	visited[root] = 0
	for i := root; i >= 0 && len(path) < maxWalk; i = g.waits[i].next {
		if visited[i] == root+1 {
			return path, len(path) - slices.Index(path, i)
		}
		visited[i] = root + 1
		path = append(path, i)
	}
	return path, 0
}

// chain returns the chain of a path. A resource that is waited for is a step if it goes on with
// something, or is the first.
func (g *graph) chain(path []int, cycle int) Chain {
	last := &g.waits[path[len(path)-1]]
	c := Chain{End: last.end, Cycle: cycle, Age: g.view.Taken.Sub(g.waits[path[0]].since)}
	if cycle > 0 {
		c.End = fmt.Sprintf("the last %d steps wait for each other", cycle)
	} else if last.next >= 0 {
		c.End = "further waits"
	} else if last.kind == Waiting && len(path) > 1 {
		path = path[:len(path)-1]
		c.End = g.resource(last.from) + ": " + last.end
	}
	for n, i := range path {
		if len(path) > maxSteps && n == maxSteps/2 {
			c.End = fmt.Sprintf("%s (%d steps are left out)", c.End, len(path)-maxSteps)
		}
		if len(path) <= maxSteps || n < maxSteps/2 || n >= len(path)-maxSteps/2 {
			c.Steps = append(c.Steps, g.step(i, n > 0 && g.waits[path[n-1]].maybe))
		}
	}
	return c
}

func (g *graph) step(i int, maybe bool) Step {
	w := &g.waits[i]
	s := Step{Whose: g.whose(w.context, g.names), Kind: w.kind, From: w.from, To: w.to, Age: g.view.Taken.Sub(w.since), Maybe: maybe}
	switch w.kind {
	case Calling:
		s.Text = fmt.Sprintf("%s calls %s", g.process(w.from.Context()), g.resource(w.to))
		if w.name != "" {
			s.Text = fmt.Sprintf("%s calls %s of %s", g.process(w.from.Context()), w.name, g.resource(w.to))
		}
	case Sending:
		s.Text = fmt.Sprintf("%s sends to %s, and waits for room", g.process(w.from.Context()), g.resource(w.to))
	case Receiving:
		s.Text = fmt.Sprintf("%s receives at %s from %s", g.process(w.from.Context()), g.label(w.from), g.resource(w.to))
	case Waiting:
		s.Text = "messages wait at " + g.resource(w.from)
		if w.next >= 0 {
			s.Text = g.resource(w.from) + ": " + w.end
		}
	}
	if maybe {
		s.Text = "maybe " + s.Text
	}
	return s
}

// process returns a name of the process of a context.
func (g *graph) process(c rocl.GID) string {
	s := g.contexts[c]
	if s == nil || s.last.PID == 0 {
		return fmt.Sprintf("context %v", c)
	}
	text := fmt.Sprintf("process %d", s.last.PID)
	if s.last.Program != "" {
		text += " (" + s.last.Program + ")"
	}
	if len(g.view.Nodes) > 1 {
		text += " of node " + nodeName(g.names, c.Node())
	}
	return text
}

// label returns the name of a resource.
func (g *graph) label(id rocl.GID) string {
	if r := g.resources[id]; r != nil && r.Name != "" {
		return r.Name
	}
	return cmp.Or(g.view.Names[id], id.String())
}

// resource returns the name of a resource, and of its process.
func (g *graph) resource(id rocl.GID) string {
	if id == id.Context() {
		return g.process(id)
	}
	return g.label(id) + " in " + g.process(id.Context())
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
