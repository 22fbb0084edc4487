// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/resource"
)

const (
	lease       = 30 * time.Second // for which a cursor is kept that is not used
	mostCursors = 10_000
)

// msgStop, followed by the 8 bytes of a cursor, says that the listing will not ask from it again.
// The number differs from those of the messages of package search. The datagram may be lost: then
// the lease ends the cursor.
const msgStop = 8

// cursors has the cursors of the listings of other members.
type cursors struct {
	mu sync.Mutex // guards by, and the cursors
	by map[uint64]*cursor
}

// A cursor is how far one listing has come. cursors.mu guards it.
type cursor struct {
	of    *database.Cursor
	step  uint64
	last  database.Record
	ok    bool
	used  time.Time
	lease *time.Timer // forgets the cursor
}

// next returns the answer of a step: a new one for the next step, and the same again for the last
// step, whose answer was lost. lost reports that the cursor is not known any more.
func (cs *cursors) next(db *database.DB, id, step uint64, pattern *resource.List, now time.Time) (r database.Record, ok, lost bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	at := cs.by[id]
	if at == nil {
		if step != 1 {
			return database.Record{}, false, true
		}
		if len(cs.by) >= mostCursors {
			cs.forgetOldestLocked()
		}
		if cs.by == nil {
			cs.by = map[uint64]*cursor{}
		}
		l := pattern.Clone()
		at = &cursor{of: db.Cursor(&l), lease: time.AfterFunc(lease, func() { cs.stop(id) })}
		cs.by[id] = at
	}
	at.used = now
	at.lease.Reset(lease)
	if step == at.step+1 {
		at.step = step
		at.last, at.ok = at.of.Next()
	}
	return at.last, at.ok && step == at.step, step != at.step
}

// stop forgets a cursor that its listing will not ask from again.
func (cs *cursors) stop(id uint64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.forgetLocked(id)
}

func (cs *cursors) forgetLocked(id uint64) {
	if at := cs.by[id]; at != nil {
		at.lease.Stop()
		delete(cs.by, id)
	}
}

// forgetOldestLocked forgets the cursor that was not used for longest. A listing that goes on keeps
// its cursor; one that was abandoned loses nothing.
func (cs *cursors) forgetOldestLocked() {
	var oldest uint64
	var at *cursor
	for k, o := range cs.by {
		if at == nil || o.used.Before(at.used) {
			oldest, at = k, o
		}
	}
	cs.forgetLocked(oldest)
}

// count returns the number of cursors.
func (cs *cursors) count() int {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return len(cs.by)
}

// close forgets all cursors.
func (cs *cursors) close() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for id := range cs.by {
		cs.forgetLocked(id)
	}
}
