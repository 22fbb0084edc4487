// SPDX-License-Identifier: Apache-2.0

package pool

import "time"

// worker is a goroutine of a pool's own, or what one has left behind for the next. Who starts it
// has put a unit in it before.
type worker struct {
	pool  *Pool
	item  item
	start time.Duration
	loop  func() // work, as a value, so that a go statement does not allocate
}

// spareWorkers is how many workers a pool keeps for goroutines to come.
const spareWorkers = 64

// workerLocked returns a worker for a new goroutine.
func (p *Pool) workerLocked() *worker {
	last := len(p.spare) - 1
	if last < 0 {
		w := &worker{pool: p}
		w.loop = w.work
		return w
	}
	w := p.spare[last]
	p.spare = p.spare[:last]
	return w
}

// work runs units until none is left for w, which may be another goroutine's from then on.
func (w *worker) work() {
	p, goexit := w.pool, true
	defer func() {
		if goexit && p.next(w) {
			go w.loop()
		}
	}()
	for more := true; more; more = p.next(w) {
		if w.start == 0 {
			w.start = p.now()
		}
		p.run(&w.item)
	}
	goexit = false
}

// next accounts for the unit that w has run and gives w another one. It reports false where there is
// none, or where the pool has more workers than it may.
func (p *Pool) next(w *worker) bool {
	now := p.now()
	p.mu.Lock()
	p.endedLocked(&w.item, w.start, now)
	more := p.hasNextLocked() && p.own <= p.limit
	if more {
		w.item = p.popLocked()
		w.start = max(now, w.item.at) // the clock was read before mu was taken
	} else {
		p.own--
		w.item, w.start = item{}, 0
		if len(p.spare) < spareWorkers {
			p.spare = append(p.spare, w)
		}
	}
	p.dispatch()
	return more
}
