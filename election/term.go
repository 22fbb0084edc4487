// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/rocl-go/rocl"
)

// A Term is the time in which this process holds a name. [Hold] makes it. It ends when [Term.Done]
// is closed, and never begins again. All methods may be called concurrently.
type Term struct {
	c        *rocl.Context
	r        *rocl.Resource // the claim
	own      claim          // its number is not used
	name     rocl.List
	text     string // of the name
	greatest uint64 // number of all holders that were seen; Hold's goroutine, then watch has it

	number   atomic.Uint64   // 0: this is a standby
	ctx      context.Context // ends with the term
	end      context.CancelCauseFunc
	ended    chan struct{} // closed when watch has returned
	closeErr error         // of the resource's end; set before ended is closed
}

// Done returns a channel that is closed when the name is not this process's any more.
func (t *Term) Done() <-chan struct{} { return t.ctx.Done() }

// Context returns a context that ends with the term. Its cause is that of [Term.Err].
func (t *Term) Context() context.Context { return t.ctx }

// Err returns nil while the name is held, and then why it is not. The error matches ErrLost if the
// holder of an older claim was met, ErrClosed after Close, rocl.ErrClosed if the context or the
// resource was closed, or an error of [rocl.Context.Watch].
func (t *Term) Err() error { return context.Cause(t.ctx) }

// Number returns the fencing number: greater than that of each holder before. A storage that
// refuses requests with a number below the greatest one that it has seen is safe from holders that
// do not know yet that they have lost the name. The number grows during a term if two processes
// held the name, and this one goes on. So a program asks for it before each request.
func (t *Term) Number() uint64 { return t.number.Load() }

// Resource returns the resource that has the attributes of the name. Clients find it and send
// messages to it. It ends with the term, and its other attributes are the program's.
func (t *Term) Resource() *rocl.Resource { return t.r }

// Close gives up the name, so that the next standby takes it, and waits until the directory knows
// that. If the directory does not answer, Close fails as [rocl.Resource.Close] does. Closing a term
// that has ended does nothing but wait. Close implements io.Closer.
func (t *Term) Close() error {
	t.end(ErrClosed)
	<-t.ended
	return t.closeErr
}

// watch runs in a goroutine of its own during the term. It gives up the name to the holder of an
// older claim, and deletes the resource in the end.
func (t *Term) watch() {
	defer close(t.ended)
	defer func() { t.closeErr = t.r.Close() }()
	for ev, err := range t.c.Watch(t.ctx, rocl.Match{AttrName: t.text}, rocl.Want(AttrClaim, AttrNumber)) {
		if err == nil {
			err = t.defend(&ev)
		}
		if err != nil {
			t.end(err)
			return
		}
	}
	t.end(fmt.Errorf("election: the watch has ended: %w", rocl.ErrClosed)) // of no effect if the term has ended
}

// defend returns why the holder has to give up the name after an event, or nil. It raises the
// number above that of each other holder. If the resource was reported as gone, defend checks
// whether it is there.
func (t *Term) defend(ev *rocl.Event) error {
	number := t.Number()
	if ev.ID == t.own.id {
		if ev.Kind != rocl.Gone {
			return nil
		}
	} else if o, ok := claimOf(&ev.Found); !ok || ev.Kind == rocl.Gone || ev.Kind == rocl.Synced || o.number == 0 {
		return nil
	} else if o.isOlder(t.own) {
		return fmt.Errorf("%w: %v", ErrLost, o.id)
	} else if o.number < number {
		return nil
	} else {
		above, err := next(o.number)
		if err != nil {
			return err
		}
		number = above
	}
	if err := t.r.Set(t.ctx, AttrNumber, text(number)); err != nil {
		return err
	}
	t.number.Store(number)
	return nil
}
