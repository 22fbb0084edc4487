// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/observe"
	"github.com/rocl-go/rocl/resource"
)

// slow is the age from which a call, or messages that nobody receives, are marked.
const slow = 3 * time.Second

// A column is one of a table. Numbers are sorted from the highest, and stand at the right.
type column struct {
	title    string
	most     int // columns of the screen at most; 0: what the other columns leave
	from     int // the width of the screen from which on the column is shown
	isNumber bool
}

// A table says what the rows of one kind show.
type table struct {
	name    string
	kind    string // of a row, in JSON
	sorted  int    // the column by which the rows are sorted at first
	columns []column
	rows    func(s *seen) []row
}

// A cell is a text, and the number by which it is sorted if its column has numbers.
type cell struct {
	text   string
	number float64
}

// A row is one thing that the screen shows.
type row struct {
	id    string
	of    []rocl.GID // a pattern keeps the row if one of these matches
	mark  string     // "!": the context is silent, or the node could not be asked; "*": slow
	cells []cell
	value any // a struct of package observe, for JSON and for the screen of one row
}

// seen is what the rows of all tables are made of.
type seen struct {
	resources []observe.Resource
	links     []observe.Link
	calls     []observe.Call
	contexts  []observe.ContextRow
	nodes     []observe.Node
	handlers  []observe.Handler

	programs map[rocl.GID]string // of contexts: the program and the PID
	names    map[rocl.GID]string // of resources
}

// look returns what an observer has seen. view is the last one that the observer was given. Without
// all, contexts that only look on, and their links, are left out: they have told that they have no
// resource, as those of commands and the daemon's own.
func look(o *observe.Observer, view *observe.View, all bool) *seen {
	s := &seen{resources: o.Resources(), links: o.Links(), calls: o.Calls(), contexts: o.Contexts(), nodes: view.Nodes, handlers: o.Handlers(),
		programs: map[rocl.GID]string{}, names: map[rocl.GID]string{}}
	for i := range s.contexts {
		s.programs[s.contexts[i].Context] = s.contexts[i].Program + " " + strconv.Itoa(s.contexts[i].PID)
	}
	if !all {
		isHidden := map[rocl.GID]bool{}
		s.contexts = slices.DeleteFunc(s.contexts, func(c observe.ContextRow) bool {
			isHidden[c.Context] = c.Resources == 0 && c.SilentSince.IsZero()
			return isHidden[c.Context]
		})
		s.links = slices.DeleteFunc(s.links, func(l observe.Link) bool { return isHidden[l.Context] || isHidden[l.Peer] })
	}
	maps.Copy(s.names, view.Names)
	for i := range s.resources {
		s.names[s.resources[i].Resource] = s.resources[i].Name
	}
	return s
}

// program returns the program and the PID of the context of id, or the context if it is not known.
func (s *seen) program(id rocl.GID) string {
	return cmp.Or(s.programs[id.Context()], id.Context().String())
}

// name returns the name of a resource, or its identifier and its program.
func (s *seen) name(id rocl.GID) string {
	return cmp.Or(s.names[id], id.String()) + ", " + s.program(id)
}

var tables = []table{
	{"resources", "resource", 1, []column{
		{title: "NAME"}, {"MESSAGES", 8, 0, true}, {"BYTES", 7, 70, true}, {"FULL", 5, 90, true}, {"IN/S", 7, 80, true}, {"OUT/S", 7, 80, true},
		{"STANDING", 8, 0, true}, {"RECEIVES", 8, 130, true}, {"SENDERS", 7, 100, true}, {"HANDLERS", 8, 130, true}, {"OLDEST", 7, 130, true},
		{"PROGRAM", 15, 0, false}, {"PID", 7, 0, true}, {"NODE", 12, 140, false}, {"RESOURCE", 36, 170, false},
	}, func(s *seen) (all []row) {
		for i := range s.resources {
			r := &s.resources[i]
			all = append(all, row{r.Resource.String(), []rocl.GID{r.Resource, r.Context}, mark(r.Silent, r.Standing), []cell{
				text(cmp.Or(r.Name, r.Resource.String())), count(r.Messages), size(float64(r.Bytes)), percent(r.Bytes, r.Limit), size(r.In), size(r.Out),
				age(r.Standing), count(r.ReceivesWaiting()), count(r.SendersWaiting()), count(r.Running), age(r.Oldest),
				text(r.Program), pid(r.PID), text(r.Node), text(r.Resource.String()),
			}, r})
		}
		return all
	}},
	{"links", "link", 4, []column{
		{"PROGRAM", 24, 0, false}, {title: "PEER"}, {"OVER", 6, 0, false}, {"STATE", 9, 70, false}, {"IN/S", 7, 0, true}, {"OUT/S", 7, 0, true},
		{"UNACKED", 7, 80, true}, {"QUEUED", 7, 90, true}, {"RESUMED", 7, 120, true}, {"ERROR", 40, 110, false},
	}, func(s *seen) (all []row) {
		for i := range s.links {
			l := &s.links[i]
			m := mark(l.Silent, 0)
			if l.Dialling != "" {
				m = "*"
			}
			all = append(all, row{fmt.Sprint(l.Context, " ", l.Peer, " ", l.Lane), []rocl.GID{l.Context, l.Peer}, m, []cell{
				text(s.program(l.Context)), text(s.program(l.Peer)), text(l.Transport), text(l.State), size(l.In), size(l.Out),
				count(l.Unacknowledged), count(l.Queued), count(int(l.Resumed)), text(cmp.Or(l.Dialling, l.LastError)),
			}, l})
		}
		return all
	}},
	{"calls", "call", 3, []column{
		{"CALL", 20, 0, false}, {"FROM", 24, 0, false}, {title: "TO"}, {"AGE", 8, 0, true},
	}, func(s *seen) (all []row) {
		for i := range s.calls {
			c := &s.calls[i]
			all = append(all, row{fmt.Sprint(c.Context, " ", c.Number), []rocl.GID{c.From, c.To, c.Context}, mark(c.Silent, c.Age), []cell{
				text(cmp.Or(c.Name, fmt.Sprint("tag ", c.Tag))), text(s.program(c.From)), text(s.name(c.To)), age(c.Age),
			}, c})
		}
		return all
	}},
	{"contexts", "context", 2, []column{
		{title: "PROGRAM"}, {"PID", 7, 0, true}, {"STATE", 14, 0, true}, {"RESOURCES", 9, 80, true}, {"MESSAGES", 8, 0, true}, {"CALLS", 6, 90, true},
		{"LINKS", 6, 90, true}, {"IN/S", 7, 80, true}, {"OUT/S", 7, 80, true}, {"MEMORY", 7, 0, true}, {"VERSION", 12, 120, false}, {"NODE", 12, 110, false}, {"CONTEXT", 36, 170, false},
	}, func(s *seen) (all []row) {
		for i := range s.contexts {
			c := &s.contexts[i]
			state := cell{text: "answers"}
			if c.Silent > 0 {
				state = cell{"silent " + age(c.Silent).text, float64(c.Silent)}
			}
			all = append(all, row{c.Context.String(), []rocl.GID{c.Context}, mark(c.Silent, 0), []cell{
				text(cmp.Or(c.Program, c.Context.String())), pid(c.PID), state, count(c.Resources), count(c.Messages), count(c.Calls),
				count(c.Links), size(c.In), size(c.Out), size(float64(c.Memory)), text(c.Version), text(c.Node), text(c.Context.String()),
			}, c})
		}
		return all
	}},
	{"nodes", "node", 3, []column{
		{title: "NAME"}, {"NODE", 12, 0, false}, {"CONTEXTS", 8, 0, true}, {"MESSAGES", 8, 0, true}, {"SILENT", 6, 0, true}, {"ADDRESS", 21, 80, false}, {"ERROR", 40, 110, false},
	}, func(s *seen) (all []row) {
		for i := range s.nodes {
			n := &s.nodes[i]
			r := row{id: fmt.Sprint(n.ID), value: n}
			contexts, messages, silent := 0, 0, 0
			for j := range s.contexts {
				if c := &s.contexts[j]; c.Context.Node() == n.ID {
					contexts++
					messages += c.Messages
					if c.Silent > 0 {
						silent++
					}
					r.of = append(r.of, c.Context)
				}
			}
			if n.Error != "" {
				r.mark = "!"
			}
			r.cells = []cell{text(n.Name), text(nodeName(n.ID)), count(contexts), count(messages), count(silent), text(n.Addr), text(n.Error)}
			all = append(all, r)
		}
		return all
	}},
	{"handlers", "handler", 4, []column{
		{"CALL", 20, 0, false}, {title: "RESOURCE"}, {"RUNNING", 8, 60, true}, {"OLDEST", 7, 70, true}, {"CALLS/S", 8, 0, true}, {"MEDIAN", 7, 0, true}, {"P99", 7, 0, true},
		{"ERRORS/S", 9, 80, true}, {"PROGRAM", 15, 100, false}, {"PID", 7, 100, true}, {"NODE", 12, 140, false},
	}, func(s *seen) (all []row) {
		for i := range s.handlers {
			h := &s.handlers[i]
			all = append(all, row{fmt.Sprint(h.Resource, " ", h.Name), []rocl.GID{h.Resource, h.Context}, mark(h.Silent, 0), []cell{
				text(cmp.Or(h.Name, "any message")), text(cmp.Or(h.Of, h.Resource.String())), count(h.Running), age(h.Oldest), perSecond(h.Rate), latency(h.Median), latency(h.P99),
				perSecond(h.Failed), text(h.Program), pid(h.PID), text(h.Node),
			}, h})
		}
		return all
	}},
}

func nodeName(n resource.NodeID) string {
	b, _ := n.MarshalText()
	return string(b)
}

// mark returns the mark of a row, which a terminal without colours shows too.
func mark(silent, waited time.Duration) string {
	switch {
	case silent > 0:
		return "!"
	case waited >= slow:
		return "*"
	}
	return ""
}

// text returns a cell that is safe on a terminal. Quoting what is quoted changes nothing.
func text(s string) cell { return cell{text: display.Quote(s)} }

func count(n int) cell { return cell{strconv.Itoa(n), float64(n)} }

// pid returns a cell of a number of a process. The lowest comes first.
func pid(n int) cell { return cell{strconv.Itoa(n), -float64(n)} }

// size returns a cell of bytes, in units of 1024.
func size(n float64) cell {
	c := cell{strconv.FormatFloat(n, 'f', 0, 64), n}
	for _, unit := range "KMGTP" {
		if n < 999.5 {
			break
		}
		n /= 1024
		c.text = strconv.FormatFloat(n, 'f', 1, 64) + string(unit)
	}
	return c
}

func percent(n, of uint64) cell {
	p := 100 * float64(n) / float64(max(of, 1))
	return cell{strconv.FormatFloat(min(p, 999), 'f', 0, 64) + "%", p}
}

// perSecond returns a cell of how often something happens, with a digit behind the point below 10.
func perSecond(n float64) cell {
	c := size(n)
	if n > 0 && n < 10 {
		c.text = strconv.FormatFloat(n, 'f', 1, 64)
	}
	return c
}

// latency returns a cell of a short duration, in two digits; 0 is empty.
func latency(d time.Duration) cell {
	c := cell{"", float64(d)}
	for n, units := c.number/1000, []string{"µs", "ms", "s"}; n > 0 && len(units) > 0; n, units = n/1000, units[1:] {
		if c.text = strconv.FormatFloat(n, 'f', map[bool]int{true: 1}[n < 10], 64) + units[0]; n < 999.5 {
			break
		}
	}
	return c
}

// age returns a cell of a duration; 0 is empty.
func age(d time.Duration) cell {
	c := cell{"", float64(d)}
	switch s := int64(d / time.Second); {
	case d <= 0:
	case d < time.Second:
		c.text = "<1s"
	case s < 60:
		c.text = fmt.Sprintf("%ds", s)
	case s < 3600:
		c.text = fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 360_000:
		c.text = fmt.Sprintf("%dh%02dm", s/3600, s/60%60)
	default:
		c.text = fmt.Sprintf("%dd", s/86_400)
	}
	return c
}

// sortRows sorts rows by a column, rows that are equal by their identifiers. Numbers fall and texts
// rise, or the reverse.
func sortRows(rows []row, c column, at int, isReversed bool) {
	slices.SortFunc(rows, func(a, b row) int {
		x, y := a.cells[at], b.cells[at]
		order := cmp.Compare(x.text, y.text)
		if c.isNumber {
			order = cmp.Compare(y.number, x.number)
		}
		if isReversed {
			order = -order
		}
		return cmp.Or(order, cmp.Compare(a.id, b.id))
	})
}

// only returns the rows that matches keeps. A nil map keeps all.
func only(rows []row, matches map[rocl.GID]bool) []row {
	if matches == nil {
		return rows
	}
	return slices.DeleteFunc(rows, func(r row) bool {
		return !slices.ContainsFunc(r.of, func(id rocl.GID) bool { return matches[id] })
	})
}

// lines returns the head of a table, and a line for each row, for a screen of a width; 0 is one
// without limit. The head has an arrow at the column sorted.
func (t *table) lines(rows []row, width, sorted int, isReversed bool) (head string, all []string) {
	widths := make([]int, len(t.columns)) // 0: not shown
	left, rest := width-2, -1             // the mark, and the column that gets what is left
	for i, c := range t.columns {
		if width > 0 && c.from > width {
			continue
		}
		widths[i] = len(c.title) + 1 // the arrow
		for j := range rows {
			widths[i] = max(widths[i], ansi.StringWidth(rows[j].cells[i].text))
		}
		if width == 0 {
			continue
		}
		if c.most == 0 {
			rest = i
			left--
			continue
		}
		widths[i] = min(widths[i], max(c.most, len(c.title)+1))
		left -= widths[i] + 1
	}
	if rest >= 0 {
		widths[rest] = max(left, 1)
	}
	line := func(mark string, cell func(i int) string) string {
		b := fmt.Sprintf("%-1s", mark)
		for i, w := range widths {
			if w == 0 {
				continue
			}
			s := cell(i)
			if width > 0 {
				s = ansi.Truncate(s, w, "…")
			}
			space := strings.Repeat(" ", max(0, w-ansi.StringWidth(s)))
			if t.columns[i].isNumber {
				s, space = space, s
			}
			b += " " + s + space
		}
		return strings.TrimRight(b, " ")
	}
	head = line("", func(i int) string {
		switch {
		case i != sorted:
			return t.columns[i].title
		case isReversed:
			return t.columns[i].title + "↑"
		}
		return t.columns[i].title + "↓"
	})
	for j := range rows {
		all = append(all, line(rows[j].mark, func(i int) string { return rows[j].cells[i].text }))
	}
	return head, all
}
