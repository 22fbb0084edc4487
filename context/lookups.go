// SPDX-License-Identifier: Apache-2.0

package context

import (
	"maps"
	"sync"
	"time"

	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// A LookupError is an error from asking the directory on behalf of calls that do not wait. It does
// not come of an outdated cache entry.
type LookupError struct{ error }

func (a *LookupError) Unwrap() error { return a.error }

// maxLookups limits the number of pending lookups of a context: those under way, and those whose
// error has not been returned.
const maxLookups = 1024

// lookupErrorFor is how long the error of a lookup is returned. A later call has the directory
// asked again, because the target may exist by then.
const lookupErrorFor = time.Second

// A pendingLookup is one target for which a goroutine asks the directory on behalf of calls that do
// not wait. A flow goes into the cache. An error stays here until the next call for the target,
// which ignores an error that is older than lookupErrorFor. lookups.mu guards it.
type pendingLookup struct {
	done time.Time    // when the goroutine ended with an error; zero before that
	err  *LookupError // why no flow was found; set with done
}

// isOld reports whether the lookup has ended with an error that is not returned any more.
func (a *pendingLookup) isOld() bool { return !a.done.IsZero() && time.Since(a.done) > lookupErrorFor }

// lookups has the lookups of a context.
type lookups struct {
	mu  sync.Mutex
	all map[resource.GID]*pendingLookup
}

// has reports whether the directory is asked for a target, or has just answered with an error that
// no call has returned.
func (k *lookups) has(to resource.GID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.all[to]
	return was != nil && !was.isOld()
}

// FlowNow returns the flow to a resource without waiting. It returns ErrFull while the directory is
// being asked, and a *LookupError if the directory's answer is an error.
func (t *Targets) FlowNow(to resource.GID) (*dispatch.Flow, error) {
	if f := t.cache.flow(to); f != nil {
		return f, nil
	}
	if !t.lookups.has(to) {
		owner, isKnown, err := t.owner(to, false)
		if err != nil {
			return nil, &LookupError{err}
		}
		if isKnown {
			return t.flowOf(owner, to, nil)
		}
	}
	return nil, t.startLookup(to, false)
}

// Retry drops what is cached of a resource, and has the directory asked. It returns ErrFull while
// the directory is being asked, and a *LookupError if the directory's answer is an error.
func (t *Targets) Retry(to resource.GID) error {
	t.cache.forget(to)
	return t.startLookup(to, true)
}

// startLookup starts a goroutine that asks the directory for the flow to a resource, unless one is
// running, and returns ErrFull. It returns the error of an earlier lookup for that resource, once,
// if the error is not old.
func (t *Targets) startLookup(to resource.GID, doubt bool) error {
	k := &t.lookups
	k.mu.Lock()
	defer k.mu.Unlock()
	if was := k.all[to]; was != nil && !was.isOld() {
		if was.done.IsZero() {
			return dispatch.ErrFull
		}
		delete(k.all, to)
		return was.err
	}
	if len(k.all) >= maxLookups {
		maps.DeleteFunc(k.all, func(_ resource.GID, was *pendingLookup) bool { return !was.done.IsZero() })
	}
	if len(k.all) >= maxLookups {
		return dispatch.ErrFull // a later call asks
	}
	now := new(pendingLookup)
	if !t.dir.life.Go(func() { t.runLookup(to, doubt, now) }) {
		return &LookupError{dispatch.ErrClosed}
	}
	k.all[to] = now
	return dispatch.ErrFull
}

// runLookup asks the directory and stores the result. The goroutine that startLookup starts runs
// it.
func (t *Targets) runLookup(to resource.GID, doubt bool, now *pendingLookup) {
	_, err := t.Flow(t.dir.life.Context(), to, doubt)
	if t.dir.life.HasEnded() {
		err = dispatch.ErrClosed
	}
	k := &t.lookups
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		delete(k.all, to)
		return
	}
	now.done, now.err = time.Now(), &LookupError{err}
}
