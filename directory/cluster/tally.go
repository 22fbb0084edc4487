// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/resource"
)

// A tally is what one search costs. searches.mu guards it while the search is under way.
type tally struct {
	begun    time.Duration // since core.born; 0: not asked
	method   method
	messages uint64
	others   int               // number of other members
	may      []resource.NodeID // members whose summary has the attributes
	asked    []resource.NodeID // members in may that were asked
	wrong    []resource.NodeID // members in asked that said no
	differ   []differs         // members that said no and know other members than this one
}

// newTally returns the tally of a search of the members in targets or, if that is nil, of all
// members.
func newTally(others int, targets []resource.NodeID) tally {
	t := tally{others: others}
	if targets != nil {
		t.method = methodDirect
	}
	return t
}

// countPacketLocked counts a packet to one member.
func (d *searches) countPacketLocked(to resource.NodeID, p *search.Packet) {
	t := d.tallyOfLocked(p)
	if t == nil {
		return
	}
	t.messages++
	switch {
	case t.method == methodDirect:
	case p.Lo != p.Hi:
		t.method = max(t.method, methodTree)
	case t.method <= methodSummary && slices.Contains(t.may, to):
		t.method = methodSummary
		if !slices.Contains(t.asked, to) {
			t.asked = append(t.asked, to)
			d.count.asked.Add(1)
		}
	default:
		t.method = max(t.method, methodUnicast)
	}
}

// countCastLocked counts a packet to all members.
func (d *searches) countCastLocked(p *search.Packet) {
	if t := d.tallyOfLocked(p); t != nil {
		t.messages++
		t.method = methodBroadcast
	}
}

// countAnswerLocked counts what comes back: a member whose answer covers any members says no.
func (d *searches) countAnswerLocked(from resource.NodeID, p *search.Packet) {
	if p.Covered == 0 {
		return
	}
	t := d.tallyOfLocked(p)
	if t == nil {
		return
	}
	if p.Known != 0 && p.Known != d.members.roll.Load().sum {
		t.differ = append(t.differ, differs{from, p.Known})
	}
	if t.method == methodSummary && slices.Contains(t.asked, from) && !slices.Contains(t.wrong, from) {
		t.wrong = append(t.wrong, from)
		d.count.wrong.Add(1)
	}
}

// tallyOfLocked returns the tally of this member's search that a packet is about. It returns nil if
// the search is another member's or is not counted.
func (d *searches) tallyOfLocked(p *search.Packet) *tally {
	if p.ID.Asker != d.cfg.Node {
		return nil
	}
	return d.tallyLocked(p.ID.N)
}

// tallyLocked returns the tally of this member's search n, or nil if it has ended or is not
// counted.
func (d *searches) tallyLocked(n uint64) *tally {
	if w, ok := d.node.Asker(n).(*waiter); ok && w.counts {
		return &w.tally
	}
	return nil
}
