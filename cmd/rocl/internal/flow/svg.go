// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rocl-go/rocl/internal/flowfile"
)

// The sizes of a drawing.
const (
	nodeHeight = 28
	nodeGap    = 14 // between nodes above each other
	boxMargin  = 14
	boxTitle   = 18
	columnGap  = 70
	letter     = 7.2 // width of a letter
)

// A layout says where the nodes and groups of a drawing stand. A column has the nodes that are as
// many edges away from the sources. A lane is a row of boxes of groups that have no column in
// common.
type layout struct {
	*flowfile.Drawing
	column   []int // of each node
	row      []int // of each node, within the lane
	lane     []int // of each node
	boxes    []box
	rows     []int // of each lane
	width    float64
	nodeWide float64
}

// A box is the place of a group.
type box struct {
	group       string
	first, last int // columns
	lane        int
}

// newLayout places the nodes of a drawing.
func newLayout(d *flowfile.Drawing) *layout {
	l := &layout{Drawing: d, column: columns(d), row: make([]int, len(d.Nodes)), lane: make([]int, len(d.Nodes))}
	longest := 4
	for _, n := range d.Nodes {
		longest = max(longest, utf8.RuneCountInString(n.Name))
	}
	l.nodeWide = float64(longest)*letter + 20
	for _, g := range append([]string{""}, d.Groups...) {
		l.place(g)
	}
	l.width = float64(slices.Max(append(l.column, 0))+1)*(l.nodeWide+columnGap) - columnGap + 4*boxMargin
	return l
}

// columns returns the column of each node: how many forward edges lead to it at most. The forward
// edges of a graph have no cycle, so there are at most as many steps as nodes.
func columns(d *flowfile.Drawing) []int {
	column := make([]int, len(d.Nodes))
	for range d.Nodes {
		for _, e := range d.Edges {
			if !e.Back && e.From != e.To {
				column[e.To] = min(max(column[e.To], column[e.From]+1), len(d.Nodes)-1)
			}
		}
	}
	return column
}

// place places the nodes of a group in the first lane that has its columns free.
func (l *layout) place(group string) {
	b := box{group: group, first: len(l.Nodes)}
	height := map[int]int{} // of each column
	var members []int
	for i, n := range l.Nodes {
		if n.Group == group {
			members = append(members, i)
			b.first, b.last = min(b.first, l.column[i]), max(b.last, l.column[i])
			l.row[i] = height[l.column[i]]
			height[l.column[i]]++
		}
	}
	if len(members) == 0 {
		return
	}
	isTaken := func(o box) bool { return o.lane == b.lane && o.first <= b.last && b.first <= o.last }
	for slices.ContainsFunc(l.boxes, isTaken) {
		b.lane++
	}
	if b.lane == len(l.rows) {
		l.rows = append(l.rows, 0)
	}
	for _, i := range members {
		l.lane[i] = b.lane
		l.rows[b.lane] = max(l.rows[b.lane], l.row[i]+1)
	}
	l.boxes = append(l.boxes, b)
}

// laneHeight returns the height of a lane's boxes.
func (l *layout) laneHeight(lane int) float64 {
	return float64(l.rows[lane])*(nodeHeight+nodeGap) - nodeGap + 2*boxMargin + boxTitle
}

// laneTop returns where a lane begins.
func (l *layout) laneTop(lane int) float64 {
	y := float64(boxMargin)
	for i := range lane {
		y += l.laneHeight(i) + boxMargin
	}
	return y
}

// at returns the place of the upper left corner of a node.
func (l *layout) at(i int) (x, y float64) {
	return l.columnAt(l.column[i]), l.laneTop(l.lane[i]) + boxMargin + boxTitle + float64(l.row[i])*(nodeHeight+nodeGap)
}

func (l *layout) columnAt(column int) float64 {
	return 2*boxMargin + float64(column)*(l.nodeWide+columnGap)
}

// style is what the parts of a drawing look like.
const style = `<style>
.group { fill: #f4f7fa; stroke: #8aa4bb } .title { fill: #456; font-weight: bold; font-size: 12px }
.node { fill: #fff; stroke: #333 } .end { fill: #e8f3e8 } .name { text-anchor: middle }
.edge { fill: none; stroke: #777 } .remote { stroke: #0072b2; stroke-width: 2 } .back { stroke-dasharray: 5 3 }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>
<rect width="100%" height="100%" fill="#fff"/>
`

// drawSVG draws a graph as a picture.
func drawSVG(d *flowfile.Drawing) []byte {
	l := newLayout(d)
	height := l.laneTop(len(l.rows)) + nodeHeight // room for feedback below the last lane
	var s strings.Builder
	fmt.Fprintf(&s, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" font-family="sans-serif" font-size="12">`+"\n", l.width, height)
	fmt.Fprintf(&s, "<title>%s</title>\n%s", escape(d.Graph), style)
	for _, b := range l.boxes {
		if b.group != "" {
			x, y := l.columnAt(b.first)-boxMargin, l.laneTop(b.lane)
			fmt.Fprintf(&s, `<rect class="group" x="%.0f" y="%.0f" width="%.0f" height="%.0f" rx="6"/><text class="title" x="%.0f" y="%.0f">%s</text>`+"\n",
				x, y, l.columnAt(b.last)+l.nodeWide+boxMargin-x, l.laneHeight(b.lane), x+8, y+16, escape(b.group))
		}
	}
	for _, e := range d.Edges {
		l.drawEdge(&s, e)
	}
	for i, n := range d.Nodes {
		x, y := l.at(i)
		class, round := "node", 3
		if n.In == "" || n.Out == "" { // a source or a sink
			class, round = "node end", nodeHeight/2
		}
		fmt.Fprintf(&s, `<rect class="%s" x="%.0f" y="%.0f" width="%.0f" height="%d" rx="%d"><title>%s → %s</title></rect><text class="name" x="%.0f" y="%.0f">%s</text>`+"\n",
			class, x, y, l.nodeWide, nodeHeight, round, escape(n.In), escape(n.Out), x+l.nodeWide/2, y+nodeHeight/2+4, escape(n.Name))
	}
	s.WriteString("</svg>\n")
	return []byte(s.String())
}

// drawEdge draws an edge: from the right of a node to the left of another, and feedback from below
// to below.
func (l *layout) drawEdge(s *strings.Builder, e flowfile.Edge) {
	x1, y1 := l.at(e.From)
	x2, y2 := l.at(e.To)
	class := "edge"
	if isRemote(l.Drawing, e) {
		class += " remote"
	}
	var path string
	if e.Back {
		class += " back"
		x1, x2, y1, y2 = x1+l.nodeWide/2, x2+l.nodeWide/2, y1+nodeHeight, y2+nodeHeight
		low := max(y1, y2) + nodeHeight
		path = fmt.Sprintf("M%.0f %.0fC%.0f %.0f %.0f %.0f %.0f %.0f", x1, y1, x1, low, x2, low, x2, y2)
	} else {
		x1, y1, y2 = x1+l.nodeWide, y1+nodeHeight/2, y2+nodeHeight/2
		bend := columnGap / 2.0
		path = fmt.Sprintf("M%.0f %.0fC%.0f %.0f %.0f %.0f %.0f %.0f", x1, y1, x1+bend, y1, x2-bend, y2, x2, y2)
	}
	title := strings.TrimSpace(l.Nodes[e.From].Name + " → " + l.Nodes[e.To].Name + " " + e.Policy)
	fmt.Fprintf(s, `<path class="%s" d="%s" marker-end="url(#tip)"><title>%s</title></path>`+"\n", class, path, escape(title))
}

// escape returns a text for XML.
func escape(text string) string {
	var s strings.Builder
	_ = xml.EscapeText(&s, []byte(text))
	return s.String()
}
