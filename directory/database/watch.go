// SPDX-License-Identifier: Apache-2.0

package database

import (
	"context"
	"errors"
	"sync"

	"github.com/rocl-go/rocl/resource"
)

// Kind says what happened to a watched resource.
type Kind uint8

// Kinds of events.
const (
	Appeared Kind = 1 + iota // it matches now
	Changed                  // it still matches, its attributes are others
	Gone                     // it matches no longer, or was deleted
	Synced                   // everything that was there has been told
)

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

// An Event is one change.
type Event struct {
	Kind Kind
	Record
}

// ErrWatchClosed says that a watch has been closed.
var ErrWatchClosed = errors.New("database: watch closed")

// A Watch tells what happens to the resources that match a pattern. A slow
// reader is not waited for and loses nothing it could still want: changes of
// one resource that it has not read yet become one, and a resource that came and
// went unread is none. So a watch keeps what matches now and what its reader was
// told and has gone since, however slow the reader is. It keeps no attributes of
// what the database holds: they are looked up when an event is read.
type Watch struct {
	d       *DB
	pattern resource.List
	q       query                     // of pattern
	ids     map[resource.GID]struct{} // what is watched; nil: what matches the pattern

	mu     sync.Mutex // below the database's
	items  map[resource.GID]*item
	first  *item  // to be told of next; nil: nothing is
	last   *item  // to be told of last
	seq    uint64 // of the item queued last
	until  uint64 // items up to this seq come before Synced
	synced bool   // Synced has been told
	held   int    // Synced waits for so many calls of Release
	closed bool
	some   chan struct{} // has a value when the queue may have one
}

// item is what a reader knows of a resource, and what is so.
type item struct {
	id          resource.GID
	told, there bool
	local       bool   // the database holds it while it is there
	rec         Record // no attributes while the database holds it
	queued      bool
	seq         uint64
	next, prev  *item // in the queue
}

// Watch begins to watch. The first events tell what is there, then comes
// Synced, then what happens, with no gap between.
func (d *DB) Watch(pattern *resource.List) *Watch {
	w := &Watch{d: d, pattern: pattern.Clone(), items: map[resource.GID]*item{}, some: make(chan struct{}, 1)}
	w.q = newQuery(&w.pattern)
	if ids, ok := resource.IDs(pattern); ok {
		return d.watchIDs(w, ids)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var one [1]uint32
	cand, all := d.candidates(&w.q, &one)
	if all {
		cand = nil
		for i := range d.made {
			cand = append(cand, i)
		}
	}
	for _, i := range cand {
		if d.matches(i, &w.q) {
			w.offer(Record{ID: d.rec(i).id}, true, true)
		}
	}
	w.until = w.seq
	w.signal()
	d.watches[w] = struct{}{}
	return w
}

// watchIDs is Watch of resources with certain identifiers.
func (d *DB) watchIDs(w *Watch, ids map[resource.GID]struct{}) *Watch {
	w.pattern, w.ids = resource.List{}, ids
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range ids {
		if _, ok := d.idGet(id); ok {
			w.offer(Record{ID: id}, true, true)
		}
	}
	w.until = w.seq
	w.signal()
	d.watches[w] = struct{}{}
	return w
}

// watches reports whether record i is what w watches.
func (w *Watch) watches(i uint32) bool {
	if w.ids != nil {
		_, ok := w.ids[w.d.rec(i).id]
		return ok
	}
	return w.d.matches(i, &w.q)
}

// notify tells the watches that record i has changed or is about to go.
func (d *DB) notify(i uint32, gone bool) {
	for w := range d.watches {
		there := !gone && w.watches(i)
		w.mu.Lock()
		it := w.items[d.rec(i).id]
		switch {
		case there:
			w.offer(Record{ID: d.rec(i).id}, true, true)
			w.signal()
		case it != nil && !it.told:
			w.forget(it)
			w.signal() // Synced may be next
		case it != nil && it.there:
			r := d.record(i)
			r.Attrs = r.Attrs.Clone() // it would keep the whole chunk
			w.offer(r, false, true)
			w.signal()
		}
		w.mu.Unlock()
	}
}

func (w *Watch) signal() {
	select {
	case w.some <- struct{}{}:
	default:
	}
}

// offer queues what is so of a resource. mu must be held.
func (w *Watch) offer(r Record, there, local bool) {
	it := w.items[r.ID]
	if it == nil {
		it = &item{id: r.ID}
		w.items[r.ID] = it
	}
	it.rec, it.there, it.local = r, there, local
	if it.queued {
		return
	}
	w.seq++
	it.queued, it.seq, it.prev, it.next = true, w.seq, w.last, nil
	if w.last != nil {
		w.last.next = it
	} else {
		w.first = it
	}
	w.last = it
}

// unqueue takes an item out of the queue. mu must be held.
func (w *Watch) unqueue(it *item) {
	if !it.queued {
		return
	}
	if it.prev != nil {
		it.prev.next = it.next
	} else {
		w.first = it.next
	}
	if it.next != nil {
		it.next.prev = it.prev
	} else {
		w.last = it.prev
	}
	it.queued, it.next, it.prev = false, nil, nil
}

// forget forgets an item. mu must be held.
func (w *Watch) forget(it *item) {
	w.unqueue(it)
	delete(w.items, it.id)
}

// Hold keeps Synced back until Release, for what is not in the database, or not
// yet. Each Hold wants a Release. Once Synced has been told, neither does
// anything.
func (w *Watch) Hold() {
	w.mu.Lock()
	if !w.synced {
		w.held++
	}
	w.mu.Unlock()
}

// Release lets Synced come, if nobody else holds it, after everything told so far.
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

// Tell makes a resource part of the watch that the database does not hold, and
// that matches; or changes it. r is the watch's from now on.
func (w *Watch) Tell(r Record) {
	w.mu.Lock()
	w.offer(r, true, false)
	w.mu.Unlock()
	w.signal()
}

// Untell says that a resource once told is gone.
func (w *Watch) Untell(id resource.GID) {
	w.mu.Lock()
	switch it := w.items[id]; {
	case it == nil:
	case it.told:
		w.offer(it.rec, false, false)
	default:
		w.forget(it)
	}
	w.mu.Unlock()
	w.signal()
}

// Next returns the next event, waiting until ctx ends.
func (w *Watch) Next(ctx context.Context) (Event, error) {
	for {
		w.d.mu.RLock() // for the attributes of what it holds
		w.mu.Lock()
		closed := w.closed
		ev, ok := w.next()
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

// next is the next event. The database's mu and w's must be held.
func (w *Watch) next() (ev Event, ok bool) {
	it := w.first
	if !w.synced && w.held == 0 && (it == nil || it.seq > w.until) {
		w.synced = true
		return Event{Kind: Synced}, true
	}
	if it == nil {
		return Event{}, false
	}
	w.unqueue(it)
	ev = Event{Changed, it.rec}
	switch {
	case !it.there:
		delete(w.items, it.id)
		ev.Kind = Gone
	case !it.told:
		ev.Kind = Appeared
	}
	it.told = it.there
	if i, ok := w.d.idGet(it.id); ok && it.there && it.local {
		ev.Record = w.d.record(i)
	}
	return ev, true
}

// Close ends the watch. A Next under way returns ErrWatchClosed.
func (w *Watch) Close() {
	w.d.mu.Lock()
	delete(w.d.watches, w)
	w.d.mu.Unlock()
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.signal()
}
