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
// one resource that it has not read yet become one.
type Watch struct {
	d       *DB
	pattern resource.List
	system  bool

	mu     sync.Mutex
	items  map[resource.GID]*item
	queue  []resource.GID // items to be told of, in order
	until  int            // so many of the queue come before Synced; -1 once told
	held   int            // Synced waits for so many calls of Release
	closed bool
	some   chan struct{} // has a value when the queue may have one
}

// item is what a reader knows of a resource, and what is so.
type item struct {
	told, there, queued bool
	rec                 Record
}

// Watch begins to watch. The first events tell what is there, then comes
// Synced, then what happens, with no gap between.
func (d *DB) Watch(pattern *resource.List) *Watch {
	w := &Watch{d: d, pattern: pattern.Clone(), system: resource.SeesSystem(pattern), items: map[resource.GID]*item{}, some: make(chan struct{}, 1)}
	d.mu.Lock()
	defer d.mu.Unlock()
	var one [1]uint32
	cand, all := d.candidates(&w.pattern, &one)
	if all {
		cand = nil
		for i := range d.made {
			cand = append(cand, i)
		}
	}
	for _, i := range cand {
		if d.matches(i, &w.pattern, w.system) {
			w.offer(d.record(i), true)
		}
	}
	w.until = len(w.queue)
	w.signal()
	d.watches[w] = struct{}{}
	return w
}

// notify tells the watches that record i has changed or is about to go.
func (d *DB) notify(i uint32, gone bool) {
	for w := range d.watches {
		there := !gone && d.matches(i, &w.pattern, w.system)
		w.mu.Lock()
		_, known := w.items[d.rec(i).id]
		if there || known {
			w.offer(d.record(i), there)
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

func (w *Watch) offer(r Record, there bool) {
	it := w.items[r.ID]
	if it == nil {
		it = &item{}
		w.items[r.ID] = it
	}
	it.rec, it.there = r, there
	if !it.queued {
		it.queued = true
		w.queue = append(w.queue, r.ID)
	}
}

// Hold keeps Synced back until Release, for what is not in the database, or not
// yet. Each Hold wants a Release. Once Synced has been told, neither does
// anything.
func (w *Watch) Hold() {
	w.mu.Lock()
	if w.until >= 0 {
		w.held++
	}
	w.mu.Unlock()
}

// Release lets Synced come, if nobody else holds it, after everything told so far.
func (w *Watch) Release() {
	w.mu.Lock()
	if w.held > 0 {
		if w.held--; w.held == 0 {
			w.until = len(w.queue)
		}
	}
	w.mu.Unlock()
	w.signal()
}

// Tell makes a resource part of the watch that the database does not hold, and
// that matches; or changes it. r is the watch's from now on.
func (w *Watch) Tell(r Record) {
	w.mu.Lock()
	w.offer(r, true)
	w.mu.Unlock()
	w.signal()
}

// Untell says that a resource once told is gone.
func (w *Watch) Untell(id resource.GID) {
	w.mu.Lock()
	if it := w.items[id]; it != nil {
		w.offer(it.rec, false)
	}
	w.mu.Unlock()
	w.signal()
}

// Next returns the next event, waiting until ctx ends.
func (w *Watch) Next(ctx context.Context) (Event, error) {
	for {
		w.mu.Lock()
		if w.closed {
			w.mu.Unlock()
			return Event{}, ErrWatchClosed
		}
		ev, ok := w.next()
		w.mu.Unlock()
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

func (w *Watch) next() (Event, bool) {
	for {
		if w.until == 0 && w.held == 0 {
			w.until = -1
			return Event{Kind: Synced}, true
		}
		if len(w.queue) == 0 {
			return Event{}, false
		}
		id := w.queue[0]
		w.queue = w.queue[1:]
		if w.until > 0 {
			w.until--
		}
		it := w.items[id]
		it.queued = false
		told := it.told
		it.told = it.there
		if !it.there {
			delete(w.items, id)
		}
		switch {
		case it.there && !told:
			return Event{Appeared, it.rec}, true
		case it.there:
			return Event{Changed, it.rec}, true
		case told:
			return Event{Gone, it.rec}, true
		}
	}
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
