// SPDX-License-Identifier: Apache-2.0

package database

import (
	"container/list"
	"context"
	"errors"
	"sync"

	"github.com/rocl-go/rocl/resource"
)

// Kind says what happened to a watched resource.
type Kind uint8

// Kinds of events.
const (
	Appeared Kind = 1 + iota // the resource matches now
	Changed                  // the resource still matches, with other attributes
	Gone                     // the resource matches no longer, or was deleted
	Synced                   // every resource that matched when the watch began has been reported
)

// String returns the kind's name in lower case.
func (k Kind) String() string {
	switch k {
	case Appeared:
		return "appeared"
	case Changed:
		return "changed"
	case Gone:
		return "gone"
	case Synced:
		return "synced"
	}
	return "unknown"
}

// An Event is one change of a resource, or Synced.
type Event struct {
	Kind Kind
	Record
}

// ErrWatchClosed is returned by Next when the watch has been closed.
var ErrWatchClosed = errors.New("database: watch closed")

// A Watch reports what happens to the resources that match a pattern. Changes never wait for a slow
// reader, and a slow reader still learns the latest state of each resource. Several changes of one
// resource that are not read yet become one event. A resource that came and went unread causes
// none.
//
// A watch therefore stores an entry for each resource that matches now, and for each that its
// reader knows and that has gone since, however slow the reader is. It stores no attributes of
// resources that the database holds: Next looks these up.
type Watch struct {
	d       *DB
	pattern resource.List
	q       query                     // made from pattern
	ids     map[resource.GID]struct{} // the watched identifiers; nil: what matches the pattern is watched

	mu     sync.Mutex             // taken after the database's mu; guards all below
	items  map[resource.GID]*item // what the reader knows, and what is queued
	queue  list.List              // the items with an event to be read, in the order of their seq
	seq    uint64                 // of the item queued last
	until  uint64                 // items up to this seq come before Synced
	synced bool                   // Synced has been read
	held   int                    // the number of Hold calls without Release: Synced waits for them
	closed bool
	some   chan struct{} // has a value when the queue may have an event
}

// item is one resource: what the reader knows of it, and its present state.
type item struct {
	id              resource.GID
	reported, there bool
	local           bool          // the database holds the resource while it is there
	rec             Record        // without attributes while the database holds the resource
	place           *list.Element // in the queue; nil: not queued
	seq             uint64
}

// Watch begins to watch. The first events report the resources that match now, the next one is
// Synced, and then events report what happens. No change is missed in between.
func (d *DB) Watch(pattern *resource.List) *Watch {
	w := &Watch{d: d, pattern: pattern.Clone(), items: map[resource.GID]*item{}, some: make(chan struct{}, 1)}
	w.q = newQuery(&w.pattern)
	ids, ok := resource.IDs(pattern)
	d.mu.Lock()
	defer d.mu.Unlock()
	if ok {
		w.pattern, w.ids = resource.List{}, ids
		for id := range ids {
			if _, ok := d.idGet(id); ok {
				w.offerLocked(Record{ID: id}, true, true)
			}
		}
	} else {
		for i := range d.matchingLocked(&w.q) {
			w.offerLocked(Record{ID: d.recLocked(i).id}, true, true)
		}
	}
	w.until = w.seq
	w.signal()
	d.watches[w] = struct{}{}
	return w
}

// watches reports whether w watches record i.
func (w *Watch) watches(i uint32) bool {
	if w.ids != nil {
		_, ok := w.ids[w.d.recLocked(i).id]
		return ok
	}
	return w.d.matchesLocked(i, &w.q)
}

// notifyLocked reports to the watches that record i has changed, or is about to be deleted (gone).
// d.mu must be held for writing.
func (d *DB) notifyLocked(i uint32, gone bool) {
	for w := range d.watches {
		there := !gone && w.watches(i)
		w.mu.Lock()
		it := w.items[d.recLocked(i).id]
		switch {
		case there:
			w.offerLocked(Record{ID: d.recLocked(i).id}, true, true)
			w.signal()
		case it != nil && !it.reported:
			w.forgetLocked(it)
			w.signal() // Synced may be next
		case it != nil && it.there:
			r := d.recordLocked(i)
			r.Attrs = r.Attrs.Clone() // a view would keep the whole chunk in memory
			w.offerLocked(r, false, true)
			w.signal()
		}
		w.mu.Unlock()
	}
}

// signal wakes Next.
func (w *Watch) signal() {
	select {
	case w.some <- struct{}{}:
	default:
	}
}

// offerLocked queues the present state of a resource. mu must be held.
func (w *Watch) offerLocked(r Record, there, local bool) {
	it := w.items[r.ID]
	if it == nil {
		it = &item{id: r.ID}
		w.items[r.ID] = it
	}
	it.rec, it.there, it.local = r, there, local
	if it.place == nil {
		w.seq++
		it.seq, it.place = w.seq, w.queue.PushBack(it)
	}
}

// forgetLocked removes an item from the queue and from the watch. mu must be held.
func (w *Watch) forgetLocked(it *item) {
	w.queue.Remove(it.place)
	delete(w.items, it.id)
}

// Hold delays Synced until Release, because resources outside the database are still to be reported
// with Put. Each Hold needs one Release. Once Synced has been read, neither has an effect.
func (w *Watch) Hold() {
	w.mu.Lock()
	if !w.synced {
		w.held++
	}
	w.mu.Unlock()
}

// Release ends one Hold. After the last one, Synced comes after all that has been reported so far.
func (w *Watch) Release() {
	w.mu.Lock()
	if w.held > 0 {
		if w.held--; w.held == 0 {
			w.until = w.seq
		}
	}
	w.mu.Unlock()
	w.signal()
}

// Put adds a matching resource that the database does not hold to the watch, or changes it. The
// watch owns r from now on.
func (w *Watch) Put(r Record) {
	w.mu.Lock()
	w.offerLocked(r, true, false)
	w.mu.Unlock()
	w.signal()
}

// Drop reports that a resource added with Put is gone.
func (w *Watch) Drop(id resource.GID) {
	w.mu.Lock()
	switch it := w.items[id]; {
	case it == nil:
	case it.reported:
		w.offerLocked(it.rec, false, false)
	default:
		w.forgetLocked(it)
	}
	w.mu.Unlock()
	w.signal()
}

// Next returns the next event and waits for it until ctx ends. ErrWatchClosed says that the watch
// was closed.
func (w *Watch) Next(ctx context.Context) (Event, error) {
	for {
		w.d.mu.RLock() // for the attributes of resources that the database holds
		w.mu.Lock()
		closed := w.closed
		ev, ok := w.nextLocked()
		w.mu.Unlock()
		w.d.mu.RUnlock()
		if closed {
			return Event{}, ErrWatchClosed
		}
		if ok {
			return ev, nil
		}
		select {
		case <-w.some:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

// nextLocked returns the next event. The mu of the database and that of w must be held.
func (w *Watch) nextLocked() (ev Event, ok bool) {
	next := w.queue.Front()
	if !w.synced && w.held == 0 && (next == nil || next.Value.(*item).seq > w.until) {
		w.synced = true
		return Event{Kind: Synced}, true
	}
	if next == nil {
		return Event{}, false
	}
	it := w.queue.Remove(next).(*item)
	it.place = nil
	ev = Event{Changed, it.rec}
	switch {
	case !it.there:
		delete(w.items, it.id)
		ev.Kind = Gone
	case !it.reported:
		ev.Kind = Appeared
	}
	it.reported = it.there
	if i, ok := w.d.idGet(it.id); ok && it.there && it.local {
		ev.Record = w.d.recordLocked(i)
	}
	return ev, true
}

// Close ends the watch. A call of Next under way returns ErrWatchClosed.
func (w *Watch) Close() {
	w.d.mu.Lock()
	delete(w.d.watches, w)
	w.d.mu.Unlock()
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
}
