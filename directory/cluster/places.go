// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/resource"
)

const (
	lease      = 30 * time.Second // for which a place is kept that is not used
	mostPlaces = 10_000
)

// msgStop, followed by the 8 bytes of a place, says that the listing will not ask from it again.
// The number differs from those of the messages of package search. The datagram may be lost: then
// the lease ends the place.
const msgStop = 8

// places holds how far the listings of other nodes have come.
type places struct {
	mu    sync.Mutex
	by    map[uint64]*place
	sweep *time.Timer // runs while there are places
}

// A place is how far one listing has come. places.mu guards it.
type place struct {
	cur  *database.Cursor
	step uint64
	last database.Record
	ok   bool
	used time.Time
}

// next returns the answer of a step: a new one for the next step, and the same again for the last
// step, whose answer was lost. lost reports that the place is not known any more.
func (p *places) next(db *database.DB, cursor, step uint64, pattern *resource.List, now time.Time) (r database.Record, ok, lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.by[cursor]
	if at == nil {
		if step != 1 {
			return database.Record{}, false, true
		}
		if len(p.by) >= mostPlaces {
			p.forgetOldest()
		}
		if p.by == nil {
			p.by = map[uint64]*place{}
		}
		if p.sweep == nil {
			p.sweep = time.AfterFunc(lease, p.expire)
		}
		l := pattern.Clone()
		at = &place{cur: db.Cursor(&l)}
		p.by[cursor] = at
	}
	at.used = now
	if step == at.step+1 {
		at.step = step
		at.last, at.ok = at.cur.Next()
	}
	return at.last, at.ok && step == at.step, step != at.step
}

// stop forgets a place that its listing will not ask from again.
func (p *places) stop(cursor uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.by, cursor)
	if len(p.by) == 0 {
		p.rest()
	}
}

// forgetOldest forgets the place that was not used for longest. A listing that goes on keeps its
// place; one that was abandoned loses nothing.
func (p *places) forgetOldest() {
	var oldest uint64
	var at *place
	for k, o := range p.by {
		if at == nil || o.used.Before(at.used) {
			oldest, at = k, o
		}
	}
	delete(p.by, oldest)
}

// expire forgets the places whose lease is over.
func (p *places) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, o := range p.by {
		if time.Since(o.used) >= lease {
			delete(p.by, k)
		}
	}
	switch {
	case p.sweep == nil: // no place is left
	case len(p.by) > 0:
		p.sweep.Reset(lease)
	default:
		p.rest()
	}
}

// rest stops the sweep of expired places. p.mu must be held.
func (p *places) rest() {
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
}

// count returns the number of places.
func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.by)
}

// close forgets all places.
func (p *places) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.by)
	p.rest()
}
