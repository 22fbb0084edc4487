package cluster

import (
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/resource"
)

const (
	lease      = 30 * time.Second // for which a place is kept that nobody asks from
	mostPlaces = 10_000
)

// places are where questions of other nodes with several answers have come to.
type places struct {
	mu sync.Mutex
	by map[uint64]*place
}

type place struct {
	cur  *database.Cursor
	step uint64
	last database.Record
	ok   bool
	used time.Time
}

// next gives the answer of a step: a new one for the next step, the same again
// for the one before, whose answer was lost. lost says that the place is not known
// any more.
func (p *places) next(db *database.DB, cursor, step uint64, pattern *resource.List, now time.Time) (r database.Record, ok, lost bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.by[cursor]
	if at == nil {
		if step != 1 {
			return database.Record{}, false, true
		}
		for k, o := range p.by {
			if now.Sub(o.used) > lease || len(p.by) >= mostPlaces {
				delete(p.by, k)
			}
		}
		if p.by == nil {
			p.by = map[uint64]*place{}
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
