// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"time"

	"github.com/rocl-go/rocl/resource"
)

// GoneGrace is how long a watch that survived its server waits, after the next
// one has told everything it has, for a resource to be offered again before it
// is told gone.
const GoneGrace = time.Second

// A View is what a watch has been told of one server's resources. It outlives
// the server: of what the next one tells, it lets pass what is different.
type View struct {
	known   map[resource.GID]Answer
	missing map[resource.GID]struct{} // known before, not told by the present server yet
}

// Begin says that a server, perhaps another one, begins to tell what it has.
func (v *View) Begin() {
	v.missing = make(map[resource.GID]struct{}, len(v.known))
	for id := range v.known {
		v.missing[id] = struct{}{}
	}
}

// Take returns what an event is for who has been told the others; false if it
// is nothing. Synced is none of its business.
func (v *View) Take(ev Event) (Event, bool) {
	delete(v.missing, ev.ID)
	old, known := v.known[ev.ID]
	if ev.Kind == Gone {
		delete(v.known, ev.ID)
		return ev, known
	}
	if v.known == nil {
		v.known = map[resource.GID]Answer{}
	}
	v.known[ev.ID] = ev.Answer
	ev.Kind = Appeared
	if known {
		ev.Kind = Changed
	}
	// One revision may have two lists of attributes: an update that was told and
	// not acknowledged before its server died is not offered to the next one.
	return ev, !known || old.Revision != ev.Revision || !old.Attrs.Equal(&ev.Attrs)
}

// Missing is how many resources have not been told again since Begin.
func (v *View) Missing() int { return len(v.missing) }

// Expire forgets the missing, and returns that they are gone.
func (v *View) Expire() []Event {
	var gone []Event
	for id := range v.missing {
		gone = append(gone, Event{Gone, v.known[id]})
		delete(v.known, id)
	}
	v.missing = nil
	return gone
}

// End forgets everything, and returns that it is gone.
func (v *View) End() []Event {
	v.Begin()
	return v.Expire()
}
