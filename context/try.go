// SPDX-License-Identifier: Apache-2.0

package context

import (
	"fmt"
	"sync"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// TrySend is [Resource.Send] that never waits. It fails with rocl.ErrFull, as it is and
// without an allocation, where the message cannot be accepted now: the target's mailbox has
// no room for it, other messages wait to be sent there, or the target's context is not
// known yet and the directory has to be asked. Then the library asks for what is missing,
// and a later TrySend may succeed: credit that came is kept for a second. Other errors
// are those of Send. Whenever TrySend fails, b stays the caller's.
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

// Room returns how many bytes a message to the resource to may have that TrySend accepts
// now, if nothing else is sent there meanwhile. It is 0 where messages wait to be sent
// there, and where the target's context is not known yet: then the directory is asked. Room
// does not wait. It fails as Send does.
func (r *Resource) Room(to resource.GID) (bytes int, err error) {
	f, err := r.flowNow(to)
	if err == nil {
		bytes, err = f.Room()
	}
	if err == nil {
		return bytes, nil
	}
	if err = r.notNow(to, err); err == dispatch.ErrFull {
		err = nil
	}
	return 0, err
}

// notNow returns the error of a call that does not wait. One that may come of an outdated
// cache entry is returned only when the directory has been asked.
func (r *Resource) notNow(to resource.GID, err error) error {
	if err == dispatch.ErrFull {
		return err
	}
	if _, isAnswer := err.(*answer); !isAnswer && stale(err) {
		if l := r.last.Load(); l != nil && l.to == to {
			r.last.CompareAndSwap(l, nil)
		}
		r.c.cache.forget(to)
		if err = r.c.ask(to, true); err == nil {
			return dispatch.ErrFull
		}
	}
	return fmt.Errorf("rocl: send to %v: %w", to, err)
}

// flowNow returns the flow to a resource, without waiting. It returns ErrFull while the
// directory is being asked, and an *answer if that has failed.
func (r *Resource) flowNow(to resource.GID) (*dispatch.Flow, error) {
	if r.gone.Load() {
		return nil, dispatch.ErrClosed
	}
	if l := r.last.Load(); l != nil && l.to == to {
		return l.f, nil
	}
	c := r.c
	if f := c.cache.flow(to); f != nil {
		return f, nil
	}
	if !c.asks.has(to) {
		owner, isKnown, err := c.owner(to, false)
		if err != nil {
			return nil, &answer{err}
		}
		if isKnown {
			return c.flowOf(owner, to)
		}
	}
	if err := c.ask(to, false); err != nil {
		return nil, err
	}
	return nil, dispatch.ErrFull
}

// An answer is the error of a directory that has been asked on behalf of calls that do not
// wait: it does not come of an outdated cache entry.
type answer struct{ error }

func (a *answer) Unwrap() error { return a.error }

// asksMost is how many targets the directory may be asked for at a time, for calls that do
// not wait, or have been and the answer was not returned.
const asksMost = 1024

// asks are the targets for which a goroutine asks the directory on behalf of calls that do
// not wait. The flow goes into the cache. An error stays here for the next call.
type asks struct {
	mu sync.Mutex
	on map[resource.GID]*ask
}

type ask struct {
	done bool
	err  *answer // nil: the cache has the flow
}

func (a *asks) has(to resource.GID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.on[to] != nil
}

// ask has a goroutine ask the directory for the way to a resource, unless one does. It returns
// the error of the one before, once.
func (c *Context) ask(to resource.GID, doubt bool) error {
	a := &c.asks
	a.mu.Lock()
	defer a.mu.Unlock()
	if was := a.on[to]; was != nil {
		if was.done {
			delete(a.on, to)
			return was.err
		}
		return nil
	}
	if len(a.on) >= asksMost {
		for id, was := range a.on {
			if was.done {
				delete(a.on, id)
			}
		}
		if len(a.on) >= asksMost {
			return nil // a later call asks
		}
	}
	now := new(ask)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return &answer{dispatch.ErrClosed}
	}
	if a.on == nil {
		a.on = map[resource.GID]*ask{}
	}
	a.on[to] = now
	c.busy.Go(func() { c.answerAsk(to, doubt, now) })
	return nil
}

// answerAsk is the goroutine of ask.
func (c *Context) answerAsk(to resource.GID, doubt bool, now *ask) {
	_, err := c.flow(c.life, to, doubt)
	if c.life.Err() != nil {
		err = dispatch.ErrClosed
	}
	a := &c.asks
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		delete(a.on, to)
		return
	}
	now.done, now.err = true, &answer{err}
}

// owner returns the context that owns a resource, if that is known without asking the
// directory; in doubt nothing is taken for granted that the directory did not say. It fails
// for identifiers that no message can be sent to.
func (c *Context) owner(to resource.GID, doubt bool) (owner resource.GID, isKnown bool, err error) {
	switch {
	case to.IsZero():
		return owner, false, fmt.Errorf("%w: the zero identifier is no resource's", dispatch.ErrGone)
	case isNode(to):
		return owner, false, fmt.Errorf("%w: the target is a node: send to a resource there", dispatch.ErrGone)
	case to == to.Context():
		return owner, false, fmt.Errorf("%w: the target is a context: send to a resource of it", dispatch.ErrGone)
	}
	c.cache.mu.RLock()
	owner, isKnown = c.cache.owners[to]
	c.cache.mu.RUnlock()
	if !isKnown && !doubt && (to.Context() == c.self || c.disp.Linked(to.Context())) {
		return to.Context(), true, nil // which minted it, and is there
	}
	return owner, isKnown, nil
}

// flowOf makes the flow to a resource of context owner, and keeps it in the cache.
func (c *Context) flowOf(owner, to resource.GID) (*dispatch.Flow, error) {
	f, err := c.disp.Flow(owner, to.Serial())
	if err != nil {
		return nil, err
	}
	c.cache.mu.Lock()
	c.cache.add(to, f)
	c.cache.mu.Unlock()
	return f, nil
}
