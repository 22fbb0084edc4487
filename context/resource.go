// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// A Resource is something this context has registered: an origin and a target
// of messages. All methods may be called concurrently.
type Resource struct {
	c    *Context
	id   resource.GID
	box  *dispatch.Mailbox
	rev  atomic.Uint64
	last atomic.Pointer[lastFlow]
	gone atomic.Bool
}

// lastFlow spares the cache's lock to those who keep sending to one target.
type lastFlow struct {
	to resource.GID
	f  *dispatch.Flow
}

// ID is the resource's identifier: what others send to.
func (r *Resource) ID() resource.GID { return r.id }

// Context is the context that owns the resource.
func (r *Resource) Context() *Context { return r.c }

// Revision is that of the attributes as this context knows them.
func (r *Resource) Revision() uint64 { return r.rev.Load() }

// Send sends the message in b, with a tag for the receiver to select by, to
// the resource with identifier to. The message travels uncopied where the transport can.
//
// If Send returns nil, it has taken over the caller's reference to b. If it fails, b stays
// the caller's, unchanged: send it again, or release it.
//
// nil means accepted: the message will arrive, once, after those sent to the
// same target before, if both contexts live and the target exists. Send waits,
// until ctx ends, while the target's mailbox has no room for it. It fails with
// rocl.ErrGone where to is not the identifier of a resource, or no longer; with
// rocl.ErrUnreachable, rocl.ErrClosed, rocl.ErrTooLarge or the cause of ctx's end.
func (r *Resource) Send(ctx stdctx.Context, to resource.GID, tag uint64, b *buffers.Buffer) error {
	return r.send(ctx, to, func(f *dispatch.Flow) error { return f.Send(ctx, r.id.Serial(), tag, b) })
}

// SendBytes is Send of a copy of p, for when it does not lie in a buffer.
func (r *Resource) SendBytes(ctx stdctx.Context, to resource.GID, tag uint64, p []byte) error {
	return r.send(ctx, to, func(f *dispatch.Flow) error { return f.SendBytes(ctx, r.id.Serial(), tag, p) })
}

// send is try with an error that says what was being done.
func (r *Resource) send(ctx stdctx.Context, to resource.GID, how func(*dispatch.Flow) error) error {
	if err := r.try(ctx, to, how); err != nil {
		return fmt.Errorf("rocl: sending to %v: %w", to, err)
	}
	return nil
}

// try calls how with the flow last used, and with others if that fails.
func (r *Resource) try(ctx stdctx.Context, to resource.GID, how func(*dispatch.Flow) error) error {
	err := dispatch.ErrClosed
	if !r.gone.Load() {
		if l := r.last.Load(); l != nil && l.to == to {
			if err = how(l.f); err == nil {
				return nil
			}
		}
		if err == dispatch.ErrClosed || stale(err) && ctx.Err() == nil {
			err = r.sendSlow(ctx, to, how)
		}
	}
	return err
}

// stale says whether err may come of an outdated cache entry.
func stale(err error) bool {
	return errors.Is(err, dispatch.ErrGone) || errors.Is(err, dispatch.ErrUnreachable)
}

func (r *Resource) sendSlow(ctx stdctx.Context, to resource.GID, how func(*dispatch.Flow) error) error {
	for try := 0; ; try++ {
		f, err := r.c.flow(ctx, to, try > 0)
		if err == nil {
			if err = how(f); err == nil {
				r.last.Store(&lastFlow{to, f})
				return nil
			}
		}
		if !stale(err) || try > 0 || ctx.Err() != nil {
			return err
		}
		r.c.cache.forget(to) // corrected on first use: ask once more
	}
}

// Recv returns the first message that matches every selector, or the first of all if
// there is no selector. It waits for one until ctx ends. A message that arrives as ctx ends is
// returned, or stays for the next receive. The message belongs to the caller until
// Message.Release. Recv fails with rocl.ErrClosed once the resource is closed, with
// rocl.ErrSelect where no message can match all selectors, or with the cause of ctx's end.
//
// If the selectors name the origins of what is wanted (From), and all of these resources
// have ended and left nothing that matches, Recv fails with rocl.ErrGone, after 10 to 20 ms.
// [Resource.Monitor] says what has ended, with one difference. A resource whose context is out
// of reach for as long as [WithGiveUp] says, so that sends to it fail with rocl.ErrUnreachable,
// has ended for a monitor, which puts its message (Message.IsGone). It has not ended for Recv:
// it may live, and send again. Recv asks for it again each second, and goes on waiting. A
// program that must not wait selects the monitor's tag too, or gives ctx a deadline.
//
// Recv fails with rocl.ErrStuck where it waits behind messages that it does not select: the
// mailbox, whose limit is doubled meanwhile, is full of them; a context from which a
// message could match waits for room; and nothing has come to the mailbox, and nothing was
// received from it, for as long as [WithGiveUp] says. No message is lost: receive
// some of the others, and try again. See [dispatch.Mailbox.Recv].
func (r *Resource) Recv(ctx stdctx.Context, sel ...dispatch.Select) (*dispatch.Message, error) {
	return r.box.Recv(ctx, sel...)
}

// TryRecv is Recv that does not wait: without a message it returns rocl.ErrEmpty. It makes
// progress once: what transports have received is delivered first.
func (r *Resource) TryRecv(sel ...dispatch.Select) (*dispatch.Message, error) {
	return r.box.TryRecv(sel...)
}

// Peek tells of the message that TryRecv would return for these selectors, and leaves it in
// the mailbox. It makes progress once and fails as TryRecv does: with rocl.ErrEmpty where
// there is no message. Another goroutine may receive that message next.
func (r *Resource) Peek(sel ...dispatch.Select) (dispatch.Envelope, error) {
	return r.box.Peek(sel...)
}

// Messages yields messages until ctx ends, which ends the loop without an
// error, or the resource is closed. Each message is the loop body's to release.
func (r *Resource) Messages(ctx stdctx.Context, sel ...dispatch.Select) iter.Seq2[*dispatch.Message, error] {
	return func(yield func(*dispatch.Message, error) bool) {
		for {
			m, err := r.Recv(ctx, sel...)
			if err != nil {
				if ctx.Err() == nil && !errors.Is(err, dispatch.ErrClosed) {
					yield(nil, err)
				}
				return
			}
			if !yield(m, nil) {
				return
			}
		}
	}
}

// Waiting is the number of messages in the mailbox, and their bytes as counted
// against its limit.
func (r *Resource) Waiting() (messages int, bytes uint64) { return r.box.Len() }

// Update replaces the attributes in place: the identifier stays, watchers see the
// resource change. The new attributes obey the limits of [Context.Register], and it
// fails with the same errors; then the old attributes stay, unless ctx ended while the
// directory was being asked: then it is not known which there are. Deleted resources
// are not updated: rocl.ErrClosed.
func (r *Resource) Update(ctx stdctx.Context, a resource.Attributes) error {
	_, err := r.CompareAndSet(ctx, 0, a)
	return err
}

// CompareAndSet is Update on condition that the attributes are still at
// revision rev (0: any). It returns the new revision, or ErrRevision.
func (r *Resource) CompareAndSet(ctx stdctx.Context, rev uint64, a resource.Attributes) (uint64, error) {
	l, err := userList(a)
	if err != nil {
		return 0, fmt.Errorf("rocl: updating %v: %w", r.id, err)
	}
	if r.gone.Load() {
		return 0, fmt.Errorf("rocl: updating %v: %w", r.id, dispatch.ErrClosed)
	}
	now, err := r.c.dir.Update(ctx, r.id, rev, l)
	if err != nil {
		return 0, fmt.Errorf("rocl: updating %v: %w", r.id, r.c.wrap(err))
	}
	r.revised(now)
	return now, nil
}

// Delete withdraws the resource: it is not found any more, messages to it fail
// with ErrGone, those not received yet are dropped and their senders told.
// Deleting twice is an error matching ErrClosed.
func (r *Resource) Delete(ctx stdctx.Context) error {
	if !r.gone.CompareAndSwap(false, true) {
		return fmt.Errorf("rocl: deleting %v: %w", r.id, dispatch.ErrClosed)
	}
	r.c.drop(r)
	err := r.c.dir.Delete(ctx, r.id)
	r.box.Close()
	if err != nil {
		return fmt.Errorf("rocl: deleting %v: %w", r.id, r.c.wrap(err))
	}
	return nil
}

// Close is Delete that waits for the directory no longer than the linger time of the context, and at
// least a second. When that is over Close returns an error that matches context.DeadlineExceeded, and the
// resource is deleted as soon as a directory answers. Close implements io.Closer. Closing a closed resource
// does nothing.
func (r *Resource) Close() error {
	ctx, cancel := stdctx.WithTimeout(stdctx.Background(), max(r.c.cfg.linger, withdrawTime))
	defer cancel()
	err := r.Delete(ctx)
	if errors.Is(err, dispatch.ErrClosed) {
		return nil
	}
	return err
}
