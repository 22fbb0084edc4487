// SPDX-License-Identifier: Apache-2.0

package pool

import "time"

// worker is a pool's own worker: a goroutine, or the memory that an ended goroutine has left for
// the next. It must have a unit before its goroutine is started.
type worker struct {
	pool  *Pool
	item  item
	start time.Duration
	loop  func() // the method value work, made once so that a go statement does not allocate
}

// spareWorkers is how many ended workers a pool keeps for new goroutines.
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

// work runs units until none is left for w. After that, w may belong to another goroutine.
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

// next accounts for the unit that w has run and gives w another one. It reports false if there is
// none, or if the pool has more workers than its limit.
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
	p.dispatchLocked()
	return more
}
