// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rocl-go/rocl/cmd/internal/recording"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/resource"
)

// The limits of what the page shows at once. The search finds the rest.
const (
	maxRows  = 100 // of a table
	maxSpots = 24  // contexts of the drawing
	maxEdges = 60  // links of the drawing
	maxFound = 20_000
	maxQuery = 1 << 10 // bytes of a search
	maxText  = 200     // bytes of a resource's attributes
)

// A row is a line of a table.
type row struct {
	id    string
	Cells []string `json:"c"`
	Mark  string   `json:"m,omitempty"` // "bad": an operator should look at it
}

// A table is what the page shows of one kind of things, in order.
type table struct {
	total int // how many there are; rows may be fewer
	rows  []row
}

// A state is what is known at one moment. It is not changed after it was made.
type state struct {
	now       time.Time
	counts    []Count
	problem   string // why there is no newer view
	nodes     []observe.Node
	contexts  []observe.ContextRow
	resources []observe.Resource
	links     []observe.Link
	calls     []observe.Call
	handlers  []observe.Handler

	place *place        // of a recording; nil: this goes on now
	view  *observe.View // of a recording
}

// A query is what a viewer wants to see of the resources.
type query struct {
	text string // a pattern, or a part of a name
	sort string // a key of orders
}

// orders are the orders of resources. The first ones are shown.
var orders = map[string]func(a, b *observe.Resource) int{
	"waiting":  func(a, b *observe.Resource) int { return cmp.Compare(b.Messages, a.Messages) },
	"bytes":    func(a, b *observe.Resource) int { return cmp.Compare(b.Bytes, a.Bytes) },
	"in":       func(a, b *observe.Resource) int { return cmp.Compare(b.In, a.In) },
	"out":      func(a, b *observe.Resource) int { return cmp.Compare(b.Out, a.Out) },
	"standing": func(a, b *observe.Resource) int { return cmp.Compare(standing(b), standing(a)) },
	"name":     func(a, b *observe.Resource) int { return cmp.Compare(a.Name, b.Name) },
}

// standing returns how long messages have waited while none was received.
func standing(r *observe.Resource) time.Duration {
	if r.Messages == 0 {
		return 0
	}
	return r.Standing + r.Silent
}

// fits returns a function that reports whether a resource fits the query.
func (p *Page) fits(s *state, text string) (func(*observe.Resource) bool, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return func(*observe.Resource) bool { return true }, nil
	}
	if strings.ContainsAny(text, "=<>!") {
		pattern, err := resource.Parse(text)
		if err != nil {
			return nil, err
		}
		if s.view != nil {
			ids := recording.Match(s.view, pattern)
			return func(r *observe.Resource) bool { return ids[r.Resource] }, nil
		}
		ids := map[resource.GID]bool{}
		for _, id := range p.o.Find(pattern, maxFound) {
			ids[id] = true
		}
		return func(r *observe.Resource) bool { return ids[r.Resource] }, nil
	}
	text = strings.ToLower(text)
	return func(r *observe.Resource) bool {
		return strings.Contains(strings.ToLower(r.Name+" "+r.Program+" "+r.Node+" "+r.Resource.String()+" "+strconv.Itoa(r.PID)), text)
	}, nil
}

// tables returns what a viewer sees of a state, by the name of the table.
func (p *Page) tables(s *state, q query) (all map[string]table, err error) {
	all = map[string]table{"nodes": nodeRows(s), "contexts": contextRows(s), "calls": callRows(s), "handlers": handlerRows(s)}
	all["links"], all["spots"], all["edges"] = linkRows(s)
	fits, err := p.fits(s, q.text)
	if err != nil {
		return all, err
	}
	all["resources"] = p.resourceRows(s, fits, orders[q.sort])
	return all, nil
}

func nodeRows(s *state) (t table) {
	t.total = len(s.nodes)
	for i := range s.nodes[:min(t.total, maxRows)] {
		n := &s.nodes[i]
		id, _ := n.ID.MarshalText()
		r := row{id: string(id), Cells: []string{string(id), n.Name, n.Addr, "answers"}}
		if n.Error != "" {
			r.Cells[3], r.Mark = n.Error, "bad"
		}
		t.rows = append(t.rows, r)
	}
	return t
}

// contextRows returns the contexts, those that are silent first.
func contextRows(s *state) (t table) {
	t.total = len(s.contexts)
	for _, c := range most(s.contexts, maxRows, func(a, b *observe.ContextRow) int {
		return cmp.Or(cmp.Compare(b.Silent, a.Silent), cmp.Compare(b.Messages, a.Messages), cmp.Compare(b.In+b.Out, a.In+a.Out))
	}) {
		r := row{id: c.Context.String(), Cells: []string{
			c.Context.String(), processName(&c.Whose), c.Node, "answers", strconv.Itoa(c.Resources), strconv.Itoa(c.Messages), size(float64(c.Memory)), speed(c.In), speed(c.Out),
		}}
		if c.Silent > 0 {
			r.Cells[3], r.Mark = fmt.Sprintf("silent for %s: %s", length(c.Silent), c.Reason), "bad"
		}
		t.rows = append(t.rows, r)
	}
	return t
}

func (p *Page) resourceRows(s *state, fits func(*observe.Resource) bool, order func(a, b *observe.Resource) int) (t table) {
	var all []*observe.Resource
	for i := range s.resources {
		if r := &s.resources[i]; fits(r) {
			all = append(all, r)
		}
	}
	t.total = len(all)
	slices.SortFunc(all, func(a, b *observe.Resource) int { return cmp.Or(order(a, b), a.Resource.Compare(b.Resource)) })
	for _, r := range all[:min(len(all), maxRows)] {
		line := row{id: r.Resource.String(), Cells: []string{
			r.Resource.String(), cmp.Or(p.attributes(r.Resource), r.Name), processName(&r.Whose), strconv.Itoa(r.Messages),
			size(float64(r.Bytes)) + " of " + size(float64(r.Limit)), speed(r.In), speed(r.Out), length(standing(r)), waits(r),
		}}
		if r.Silent > 0 || len(r.Senders) > 0 || standing(r) >= 5*time.Second {
			line.Mark = "bad"
		}
		t.rows = append(t.rows, line)
	}
	return t
}

// attributes returns a text of the attributes of a resource, or "" if the node does not have it.
func (p *Page) attributes(id resource.GID) string {
	l, ok := p.o.Attributes(id)
	if !ok {
		return ""
	}
	var b strings.Builder
	for name, value := range l.All() {
		text := name + "=" + string(value[:min(len(value), maxText)])
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		if left := maxText - b.Len(); len(text) > left || len(value) > maxText {
			b.WriteString(display.Quote(strings.ToValidUTF8(text[:min(len(text), max(left, 0))], "")) + "…")
			break
		}
		b.WriteString(display.Quote(text))
	}
	return b.String()
}

// waits returns what waits at a resource, in words.
func waits(r *observe.Resource) string {
	var all []string
	if r.Silent > 0 {
		all = append(all, "silent for "+length(r.Silent))
	}
	if n := r.SendersWaiting(); n > 0 {
		all = append(all, plural(n, "sender waits", "senders wait")+" for room")
	}
	if n := r.ReceivesWaiting(); n > 0 {
		w := &r.Waits[0]
		what := ""
		if len(w.Tags) > 0 {
			what += fmt.Sprintf(" for tag %d", w.Tags[0])
		}
		if len(w.From) > 0 {
			what += " from " + w.From[0].String()
		}
		if len(w.Tags) > 1 || len(w.From) > 1 || n > 1 {
			what += " …"
		}
		all = append(all, plural(n, "receive waits", "receives wait")+what)
	}
	if r.Running > 0 {
		text := plural(r.Running, "handler runs", "handlers run")
		if r.Oldest > 0 {
			text += " for " + length(r.Oldest)
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// callRows returns the calls that wait, the oldest first.
func callRows(s *state) (t table) {
	t.total = len(s.calls)
	for _, c := range most(s.calls, maxRows, func(a, b *observe.Call) int { return cmp.Compare(b.Age, a.Age) }) {
		r := row{id: fmt.Sprintf("%v/%d", c.Context, c.Number), Cells: []string{
			processName(&c.Whose), c.From.String(), c.To.String(), cmp.Or(c.Name, "tag "+strconv.FormatUint(c.Tag, 10)), length(c.Age),
		}}
		if c.Age >= 5*time.Second || c.Silent > 0 {
			r.Mark = "bad"
		}
		t.rows = append(t.rows, r)
	}
	return t
}

// handlerRows returns the calls that are handled, the most frequent first.
func handlerRows(s *state) (t table) {
	t.total = len(s.handlers)
	for _, h := range most(s.handlers, maxRows, func(a, b *observe.Handler) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Running, a.Running), cmp.Compare(b.Ended, a.Ended))
	}) {
		r := row{id: fmt.Sprintf("%v %s", h.Resource, h.Name), Cells: []string{
			cmp.Or(h.Name, "any message"), cmp.Or(h.Of, h.Resource.String()), processName(&h.Whose), strconv.Itoa(h.Running), length(h.Oldest),
			frequency(h.Rate), latency(h.Median), latency(h.P99), frequency(h.Failed),
		}}
		if h.Silent > 0 {
			r.Mark = "bad"
		}
		t.rows = append(t.rows, r)
	}
	return t
}

// An edge is what the links between two contexts carry together.
type edge struct {
	from, to resource.GID
	rate     float64 // bytes a second, both ways
	isBad    bool
}

// linkRows returns the links by rate, and the contexts and links of the drawing. A link that both
// ends tell about is shown once.
func linkRows(s *state) (links, spots, edges table) {
	type ends struct {
		a, b resource.GID
		lane string
	}
	seen := map[ends]bool{}
	var all []observe.Link
	between := map[[2]resource.GID]*edge{}
	rates := map[resource.GID]float64{}
	for i := range s.links {
		l := &s.links[i]
		a, b := l.Context, l.Peer
		if a.Compare(b) > 0 {
			a, b = b, a
		}
		key := ends{a, b, string(l.Lane)}
		if seen[key] {
			continue
		}
		seen[key] = true
		all = append(all, *l)
		e := between[[2]resource.GID{a, b}]
		if e == nil {
			e = &edge{from: a, to: b}
			between[[2]resource.GID{a, b}] = e
		}
		e.rate += l.In + l.Out
		e.isBad = e.isBad || isBroken(l)
		rates[a], rates[b] = rates[a]+l.In+l.Out, rates[b]+l.In+l.Out
	}
	links.total = len(all)
	for _, l := range most(all, maxRows, func(a, b *observe.Link) int {
		return cmp.Or(-compareBool(isBroken(a), isBroken(b)), cmp.Compare(b.In+b.Out, a.In+a.Out))
	}) {
		r := row{id: fmt.Sprintf("%v %v %s", l.Context, l.Peer, l.Lane), Cells: []string{
			processName(&l.Whose), l.Context.String(), l.Peer.String(), cmp.Or(l.Transport, "none"), l.State, speed(l.Out), speed(l.In), strconv.Itoa(l.Unacknowledged + l.Queued), cmp.Or(l.Dialling, l.LastError),
		}}
		if isBroken(l) {
			r.Mark = "bad"
		}
		links.rows = append(links.rows, r)
	}
	spots = spotRows(s, rates)
	drawn := map[string]bool{}
	for _, r := range spots.rows {
		drawn[r.id] = true
	}
	for _, e := range slices.SortedFunc(maps.Values(between), func(a, b *edge) int {
		return cmp.Or(cmp.Compare(b.rate, a.rate), a.from.Compare(b.from), a.to.Compare(b.to))
	}) {
		from, to := e.from.String(), e.to.String()
		if len(edges.rows) < maxEdges && drawn[from] && drawn[to] && from != to {
			edges.rows = append(edges.rows, row{id: from + " " + to, Cells: []string{from, to, speed(e.rate), width(e.rate)}, Mark: map[bool]string{true: "bad"}[e.isBad]})
		}
	}
	edges.total = len(between)
	return links, spots, edges
}

// spotRows returns the contexts of the drawing: those that are silent, and those with the most
// traffic or messages.
func spotRows(s *state, rates map[resource.GID]float64) (t table) {
	t.total = len(s.contexts)
	for _, c := range most(s.contexts, maxSpots, func(a, b *observe.ContextRow) int {
		return cmp.Or(-compareBool(a.Silent > 0, b.Silent > 0), cmp.Compare(rates[b.Context], rates[a.Context]), cmp.Compare(b.Messages, a.Messages))
	}) {
		r := row{id: c.Context.String(), Cells: []string{processName(&c.Whose), fmt.Sprintf("%d waiting", c.Messages)}}
		if c.Silent > 0 {
			r.Mark = "bad"
		}
		t.rows = append(t.rows, r)
	}
	slices.SortFunc(t.rows, func(a, b row) int { return cmp.Compare(a.id, b.id) }) // so that they stay where they are
	return t
}

// isBroken reports whether a link has no connection.
func isBroken(l *observe.Link) bool { return l.State == "dialling" || l.Dialling != "" }

// most returns the first n of all in an order, and those that are equal by their places.
func most[E any](all []E, n int, order func(a, b *E) int) []*E {
	list := make([]*E, len(all))
	for i := range all {
		list[i] = &all[i]
	}
	slices.SortStableFunc(list, order)
	return list[:min(n, len(list))]
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// processName returns the name of a context's process, as a person knows it.
func processName(w *observe.Whose) string {
	return fmt.Sprintf("%s %d", cmp.Or(w.Program, "process"), w.PID)
}

// size returns a number of bytes as a short text.
func size(n float64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%.0f B", n)
	}
	i := -1
	for n >= 999.5 && i < len(units)-1 {
		n, i = n/1000, i+1
	}
	return fmt.Sprintf("%.*f %cB", map[bool]int{true: 1}[n < 10], n, units[i])
}

// speed returns bytes a second as a short text, "" for none.
func speed(n float64) string {
	if n < 0.5 {
		return ""
	}
	return size(n) + "/s"
}

// frequency returns how often something happens in a second as a short text, "" for never.
func frequency(n float64) string {
	switch {
	case n <= 0:
		return ""
	case n < 10:
		return fmt.Sprintf("%.1f/s", n)
	case n < 1000:
		return fmt.Sprintf("%.0f/s", n)
	}
	return strings.TrimSuffix(size(n), "B") + "/s"
}

// latency returns a short time span in about two digits, "" for 0.
func latency(d time.Duration) string {
	n, units := float64(d)/1000, []string{"µs", "ms", "s"}
	for n >= 999.5 && len(units) > 1 {
		n, units = n/1000, units[1:]
	}
	if d <= 0 {
		return ""
	}
	return fmt.Sprintf("%.*f %s", map[bool]int{true: 1}[n < 10], n, units[0])
}

// width returns the width of a line for bytes a second, from 1 to 6.
func width(n float64) string {
	w := 1
	for ; n >= 1000 && w < 6; n /= 10 {
		w++
	}
	return strconv.Itoa(w)
}

// length returns a time span as a short text, "" if it is shorter than a second.
func length(d time.Duration) string {
	if d < time.Second {
		return ""
	}
	if d < time.Minute {
		return fmt.Sprintf("%d s", d/time.Second)
	}
	if d >= time.Hour {
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// A delta is how a table differs from what a viewer has.
type delta struct {
	Total int                        `json:"total"`
	Order []string                   `json:"order"` // the identifiers of all rows; nil: as before
	Rows  map[string]json.RawMessage `json:"rows,omitempty"`
}

// A shown is what a viewer has of a table.
type shown struct {
	total int
	order []string
	rows  map[string]json.RawMessage
}

// update returns the delta to t, or nil if the viewer has that, and notes it as shown.
func (s *shown) update(t table) *delta {
	d := &delta{Total: t.total, Rows: map[string]json.RawMessage{}}
	next := shown{total: t.total, order: make([]string, len(t.rows)), rows: make(map[string]json.RawMessage, len(t.rows))}
	for i := range t.rows {
		r := &t.rows[i]
		b, err := json.Marshal(r)
		if err != nil {
			continue
		}
		next.order[i], next.rows[r.id] = r.id, b
		if !bytes.Equal(s.rows[r.id], b) {
			d.Rows[r.id] = b
		}
	}
	if s.rows == nil || !slices.Equal(s.order, next.order) {
		d.Order = next.order
	}
	isSame := d.Order == nil && len(d.Rows) == 0 && s.total == next.total
	*s = next
	if isSame {
		return nil
	}
	return d
}
