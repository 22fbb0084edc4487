// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
)

// Ticket refers to a submitted unit. While the unit waits in the queue of its pool, it can be
// cancelled, and moved to another pool. All methods may be called by several goroutines at a time.
type Ticket struct {
	pool atomic.Pointer[Pool] // changes while both pools are locked

	// The lock of the pool guards the following fields.
	waits    bool
	key      uint64
	position uint64 // position of the unit in the queue
}

// SubmitTicket is [Pool.Submit] that returns a ticket of the unit. In a pool of policy [Inline] the
// unit has run when SubmitTicket returns, so the ticket has no use.
func (p *Pool) SubmitTicket(ctx context.Context, u Unit) (*Ticket, error) {
	t := new(Ticket)
	t.pool.Store(p)
	if err := p.submit(ctx, u, t); err != nil {
		return nil, err
	}
	return t, nil
}

// Pool returns the pool in which the unit waits, or from which it was taken to run.
func (t *Ticket) Pool() *Pool { return t.pool.Load() }

// Waits reports whether the unit waits in the queue of its pool.
func (t *Ticket) Waits() bool {
	p := t.lock()
	defer p.mu.Unlock()
	return t.waits
}

// Cancel removes the unit from its pool and reports true: the unit never runs. Cancel does nothing
// and reports false if a worker has taken the unit, or if it was cancelled before. A running unit
// ends early only if it checks its context.
func (t *Ticket) Cancel() bool {
	p := t.lock()
	if !t.waits {
		p.mu.Unlock()
		return false
	}
	p.takeLocked(t)
	p.figures.Cancelled++
	p.dispatchLocked()
	return true
}

// lock locks the pool of the unit and returns it.
func (t *Ticket) lock() *Pool {
	for {
		p := t.pool.Load()
		p.mu.Lock()
		if t.pool.Load() == p {
			return p
		}
		p.mu.Unlock()
	}
}

// takeLocked removes a waiting unit from the queue. The caller must call dispatch afterwards,
// because a waiting call of Submit may have been admitted.
func (p *Pool) takeLocked(t *Ticket) item {
	it := p.q.remove(t.key, t.position)
	t.waits = false
	p.admitLocked()
	p.checkDrainedLocked()
	return it
}

// Move moves the unit to the end of another pool's queue, or to the position that its priority or
// deadline gives it there. The unit's waiting time continues. The other pool may be of another set.
// If it is the unit's own pool already, Move does nothing.
//
// The error matches [ErrNotWaiting] if a worker has taken the unit or it was cancelled, [ErrFull]
// if the other pool has no room, for which Move does not wait, [ErrClosed] if the other pool is
// closed, and errors.ErrUnsupported if its policy is [Inline]. After an error the unit stays in its
// pool.
//
// Order holds within a pool: units of one key in different pools may run at the same time.
func (t *Ticket) Move(to *Pool) error {
	from := t.lockWith(to)
	err := to.acceptsLocked("move a unit to", 1)
	switch {
	case !t.waits:
		err = fail("move a unit to", to.Name(), "it runs, has run or was cancelled", ErrNotWaiting)
	case from == to:
		err = nil
	case err == nil:
		transfer(from, to, []item{from.takeLocked(t)})
		return nil
	}
	unlockBoth(from, to)
	return err
}

// lockWith locks the pool of the unit and another one, and returns the pool of the unit.
func (t *Ticket) lockWith(to *Pool) *Pool {
	for {
		from := t.pool.Load()
		lockBoth(from, to)
		if t.pool.Load() == from {
			return from
		}
		unlockBoth(from, to)
	}
}

// lockBoth locks two pools in the order of their numbers. They may be the same.
func lockBoth(a, b *Pool) {
	if a.number > b.number {
		a, b = b, a
	}
	a.mu.Lock()
	if a != b {
		b.mu.Lock()
	}
}

func unlockBoth(a, b *Pool) {
	a.mu.Unlock()
	if a != b {
		b.mu.Unlock()
	}
}

// acceptsLocked returns an error if the pool cannot accept n units of another one.
func (p *Pool) acceptsLocked(op string, n int) error {
	switch {
	case p.config.Policy == Inline:
		return fail(op, p.Name(), `policy "inline" has no queue`, errors.ErrUnsupported)
	case p.closed:
		return fail(op, p.Name(), "closed", ErrClosed)
	case n > p.roomLocked():
		return fail(op, p.Name(), fmt.Sprintf("its queue has room for %d of %d units", p.roomLocked(), n), ErrFull)
	}
	return nil
}

// transfer adds units of one pool to another, and calls dispatch of both. Both must be locked, and
// are unlocked.
func transfer(from, to *Pool, units []item) {
	for _, it := range units {
		it.at += from.epoch.Sub(to.epoch)
		to.pushLocked(it)
	}
	from.figures.MovedOut += uint64(len(units))
	to.figures.MovedIn += uint64(len(units))
	from.unlock()
	to.dispatchLocked()
	from.mu.Lock()
	from.dispatchLocked() // calls of Submit that waited may have been admitted
}

// MoveAll moves all waiting units to another pool, as [Ticket.Move] does. It moves them in the
// order in which they would have run, or, in a pool of policy [Keyed], in the order of submission.
// It returns how many it moved. If the other pool has no room for all of them, it moves none.
func (p *Pool) MoveAll(to *Pool) (int, error) {
	lockBoth(p, to)
	n := p.q.len()
	if err := to.acceptsLocked("move units to", n); err != nil || p == to {
		unlockBoth(p, to)
		return 0, err
	}
	p.moveAll(to)
	return n, nil
}

// moveAll moves all waiting units to another pool, which must accept them. Both must be locked, and
// are unlocked.
func (p *Pool) moveAll(to *Pool) {
	units := p.q.drain()
	p.admitLocked()
	if len(units) > 0 {
		p.checkDrainedLocked()
	}
	transfer(p, to, units)
}

// replace closes the pool and moves its units to another one. It fails if streams or users keep the
// pool.
func (p *Pool) replace(by *Pool) error {
	lockBoth(p, by)
	var err error
	if users := p.usersLocked(); len(users) > 0 {
		err = inUse("replace pool", p.Name(), users)
	} else {
		err = by.acceptsLocked("move units to", p.q.len())
	}
	if err != nil {
		unlockBoth(p, by)
		return err
	}
	p.closeLocked()
	p.moveAll(by)
	return nil
}
