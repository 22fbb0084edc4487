// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

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
	greatest uint64 // number of all holders that were seen; only Hold writes it

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
	err := t.follow()
	t.end(err)
	var lost *lostError
	if errors.As(err, &lost) {
		t.concede(lost.to)
	}
	t.closeErr = t.r.Close()
}

// follow follows the claims until the term ends, and returns why.
func (t *Term) follow() error {
	isThere := false // the resource, as far as the watch has told
	for ev, err := range t.c.Watch(t.ctx, rocl.Match{AttrName: t.text}, wanted) {
		if err != nil {
			return err
		}
		number := t.Number()
		switch o, ok := claimOf(&ev.Found); {
		case ev.ID == t.own.id:
			isThere = ev.Kind != rocl.Gone
		case !ok || o.number == 0 || ev.Kind == rocl.Gone:
		case o.isOlder(t.own):
			return &lostError{o.id}
		case o.number >= number:
			if number, err = next(o.number); err != nil {
				return err
			}
		}
		if number == t.Number() && (isThere || ev.Kind != rocl.Gone && ev.Kind != rocl.Synced) {
			continue
		}
		switch err := t.r.Set(t.ctx, AttrNumber, text(number)); {
		case errors.Is(err, rocl.ErrNotFound):
			return fmt.Errorf("election: the resource is not registered any more: %w", rocl.ErrClosed)
		case err != nil:
			return err
		}
		t.number.Store(number)
	}
	return context.Cause(t.ctx)
}

// A lostError is an [ErrLost] that names the older claim.
type lostError struct{ to rocl.GID }

func (e *lostError) Error() string { return fmt.Sprintf("%v: %v", ErrLost, e.to) }
func (e *lostError) Unwrap() error { return ErrLost }

// concedes limits how long a holder that has lost the name shows its number to the other one.
const concedes = 5 * time.Second

// concede gives up the attributes of the name, and waits until the other holder has a number above
// the one of this term.
func (t *Term) concede(to rocl.GID) {
	ctx, cancel := context.WithTimeout(context.Background(), concedes)
	defer cancel()
	l, err := t.attrs(0)
	if err != nil || l.AddString(AttrNumber, text(t.Number())) != nil || t.r.Update(ctx, l) != nil {
		return // the resource is deleted next
	}
	for ev, err := range t.c.WatchIDs(ctx, to) {
		if o, ok := claimOf(&ev.Found); err != nil || ev.Kind == rocl.Gone || ok && o.number > t.Number() {
			return
		}
	}
}
