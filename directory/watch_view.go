// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"time"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/internal/planted"
	"github.com/rocl-go/rocl/resource"
)

// GoneGrace is how long a watch that outlived its server waits for a resource of another node: the
// next server may not have asked that node yet. The time begins when the next server has reported
// everything it has. Then the watch reports Gone. A resource of the server's own node is gone
// without a grace, because the server has heard of every living context of its node.
const GoneGrace = time.Second

// A View is what a watcher has received of one server's resources. It outlives the server: from
// the events of the next server it passes on only what is different.
type View struct {
	known   map[resource.GID]resource.Record
	missing map[resource.GID]struct{} // known before, and not reported by the present server yet
}

// Begin says that a server, perhaps another one, begins to report what it has.
func (v *View) Begin() {
	if planted.Is(planted.ForgottenView) {
		v.known = nil
	}
	v.missing = make(map[resource.GID]struct{}, len(v.known))
	for id := range v.known {
		v.missing[id] = struct{}{}
	}
}

// Take returns ev as it is for a watcher that has received the earlier events: with the kind
// Appeared, Changed or Gone. It reports false if the watcher knows all that ev says. It must not be
// called with Synced.
func (v *View) Take(ev Event) (Event, bool) {
	delete(v.missing, ev.ID)
	old, known := v.known[ev.ID]
	if ev.Kind == Gone {
		delete(v.known, ev.ID)
		return ev, known
	}
	if v.known == nil {
		v.known = map[resource.GID]resource.Record{}
	}
	v.known[ev.ID] = ev.Record
	ev.Kind = Appeared
	if known {
		ev.Kind = Changed
	}
	// One revision may have two lists of attributes: an update may be reported and not acknowledged
	// before its server dies. Then the context offers the former list to the next server.
	return ev, !known || old.Revision != ev.Revision || !old.Attrs.Equal(&ev.Attrs)
}

// Missing returns how many resources have not been reported again since Begin.
func (v *View) Missing() int { return len(v.missing) }

// ExpireOf forgets the missing resources of a node and returns a Gone event for each.
func (v *View) ExpireOf(n resource.NodeID) []Event {
	var gone []Event
	for id := range v.missing {
		if id.Node() == n {
			gone = append(gone, Event{Kind: Gone, Record: v.known[id]})
			delete(v.known, id)
			delete(v.missing, id)
		}
	}
	return gone
}

// Expire forgets the missing resources and returns a Gone event for each.
func (v *View) Expire() []Event {
	var gone []Event
	for id := range v.missing {
		gone = append(gone, Event{Kind: Gone, Record: v.known[id]})
		delete(v.known, id)
	}
	v.missing = nil
	return gone
}

// End forgets all resources and returns a Gone event for each.
func (v *View) End() []Event {
	v.Begin()
	return v.Expire()
}

// Events of watches; see package database.
type (
	// An Event is one change of what matches a watch, or Synced.
	Event = database.Event
	// EventKind says what happened to a watched resource.
	EventKind = database.Kind
)

// Kinds of events; see package database.
const (
	Appeared = database.Appeared
	Changed  = database.Changed
	Gone     = database.Gone
	Synced   = database.Synced
)
