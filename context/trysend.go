// SPDX-License-Identifier: Apache-2.0

package context

import (
	"fmt"
	"maps"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// TrySend sends a message as [Resource.Send] does, but never waits. It fails with rocl.ErrFull,
// unwrapped and without an allocation, if the message cannot be accepted now: the target's mailbox
// has no room for it, other messages wait to be sent there, or the directory must first be asked
// for the target's context. The library then asks for what is missing, and a later TrySend may
// succeed. Credit that arrives, or an error, is kept for a second. The other errors are those of
// Send. Whenever TrySend fails, b stays the caller's.
func (r *Resource) TrySend(to resource.GID, tag uint64, b *buffers.Buffer) error {
	f, err := r.flowNow(to)
	if err == nil {
		err = f.TrySend(r.id.Serial(), tag, b)
	}
	if err == nil {
		return nil
	}
	return r.notNow(to, err)
}

// notNow returns the error of a call that does not wait. If err may come of an outdated cache
// entry, notNow drops the entry, has the directory asked, and returns ErrFull until the directory
// has answered.
func (r *Resource) notNow(to resource.GID, err error) error {
	if err == dispatch.ErrFull {
		return err
	}
	if _, isLookup := err.(*lookupError); !isLookup && stale(err) {
		if l := r.last.Load(); l != nil && l.to == to {
			r.last.CompareAndSwap(l, nil)
		}
		r.c.cache.forget(to)
		if err = r.c.startLookup(to, true); err == nil {
			return dispatch.ErrFull
		}
	}
	return fmt.Errorf("rocl: send to %v: %w", to, err)
}

// flowNow returns the flow to a resource without waiting. It returns ErrFull while the directory is
// being asked, and an *lookupError if the directory's answer is an error.
func (r *Resource) flowNow(to resource.GID) (*dispatch.Flow, error) {
	if r.deleting.Load() {
		return nil, dispatch.ErrClosed
	}
	if l := r.last.Load(); l != nil && l.to == to {
		return l.f, nil
	}
	c := r.c
	if f := c.cache.flow(to); f != nil {
		return f, nil
	}
	if !c.isLookedUp(to) {
		owner, isKnown, err := c.owner(to, false)
		if err != nil {
			return nil, &lookupError{err}
		}
		if isKnown {
			return c.flowOf(owner, to, nil)
		}
	}
	if err := c.startLookup(to, false); err != nil {
		return nil, err
	}
	return nil, dispatch.ErrFull
}

// A lookupError is an error from asking the directory on behalf of calls that do not wait. It does
// not come of an outdated cache entry.
type lookupError struct{ error }

func (a *lookupError) Unwrap() error { return a.error }

// maxLookups limits the number of pending lookups of a context: those under way, and those whose
// error has not been returned.
const maxLookups = 1024

// lookupErrorFor is how long the error of a lookup is returned. A later call has the directory
// asked again, because the target may exist by then.
const lookupErrorFor = time.Second

// A pendingLookup is one target for which a goroutine asks the directory on behalf of calls that do
// not wait. A flow goes into the cache. An error stays here until the next call for the target,
// which ignores an error that is older than lookupErrorFor. Context.mu guards it.
type pendingLookup struct {
	done time.Time    // when the goroutine ended with an error; zero before that
	err  *lookupError // why no flow was found; set with done
}

// isOld reports whether the lookup has ended with an error that is not returned any more.
func (a *pendingLookup) isOld() bool { return !a.done.IsZero() && time.Since(a.done) > lookupErrorFor }

// isLookedUp reports whether the directory is asked for a target, or has just answered with an
// error that no call has returned.
func (c *Context) isLookedUp(to resource.GID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.lookups[to]
	return was != nil && !was.isOld()
}

// startLookup starts a goroutine that asks the directory for the flow to a resource, unless one is
// running. It returns the error of an earlier lookup for that resource, once, if the error is not
// old.
func (c *Context) startLookup(to resource.GID, doubt bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if was := c.lookups[to]; was != nil && !was.isOld() {
		if was.done.IsZero() {
			return nil
		}
		delete(c.lookups, to)
		return was.err
	}
	if len(c.lookups) >= maxLookups {
		maps.DeleteFunc(c.lookups, func(_ resource.GID, was *pendingLookup) bool { return !was.done.IsZero() })
	}
	switch {
	case len(c.lookups) >= maxLookups:
		return nil // a later call asks
	case c.closing:
		return &lookupError{dispatch.ErrClosed}
	}
	now := new(pendingLookup)
	c.lookups[to] = now
	c.goroutines.Go(func() { c.runLookup(to, doubt, now) })
	return nil
}

// runLookup asks the directory and stores the result. The goroutine that startLookup starts runs
// it.
func (c *Context) runLookup(to resource.GID, doubt bool, now *pendingLookup) {
	_, err := c.flow(c.life, to, doubt)
	if c.life.Err() != nil {
		err = dispatch.ErrClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.lookups, to)
		return
	}
	now.done, now.err = time.Now(), &lookupError{err}
}
