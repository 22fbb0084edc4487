// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"

	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
)

// A Resource has attributes, by which other programs find it, and a mailbox. It sends and receives
// messages. [Context.Register] makes it; [Resource.Delete] or the end of its context ends it. The
// end of the process that serves the directory does not. All methods may be called concurrently.
type Resource struct {
	c        *Context
	id       GID
	box      *dispatch.Mailbox
	lane     dispatch.Lane // of Over
	rev      atomic.Uint64 // latest known revision of the attributes
	last     atomic.Pointer[lastFlow]
	deleting atomic.Bool // Delete has begun
	activity atomic.Pointer[Activity]
	handled  handled
}

// lastFlow is the flow that the last send used. A resource that sends to one target repeatedly
// finds it without the cache's lock.
type lastFlow struct {
	to GID
	f  *dispatch.Flow
}

// ID returns the resource's identifier: the target for messages to it.
func (r *Resource) ID() GID { return r.id }

// Context returns the context that owns the resource.
func (r *Resource) Context() *Context { return r.c }

// Revision returns the revision of the attributes that this context has last set.
func (r *Resource) Revision() uint64 { return r.rev.Load() }

// Send sends the message in b to the resource with identifier to. The receiver can select the
// message by its tag. No copy is made if the transport can do without.
//
// If Send returns nil, it has taken over the caller's reference to b. If it fails, b stays the
// caller's, unchanged: send it again, or release it.
//
// nil means accepted. The message will arrive once, after the messages sent to the same target
// before, if both contexts live and the target exists. Send waits, until ctx ends, while the
// target's mailbox has no room. It fails with ErrGone if to identifies no resource, or a
// resource that has ended. It also fails with ErrUnreachable, ErrClosed, ErrTooLarge
// or the cause of ctx's end.
func (r *Resource) Send(ctx context.Context, to GID, tag uint64, b *Buffer) error {
	return r.send(ctx, to, func(f *dispatch.Flow) error { return f.Send(ctx, r.id.Serial(), tag, b) })
}

// SendBytes sends a copy of p, as [Resource.Send] sends a buffer. It is for payloads that do not
// lie in a buffer. p stays the caller's.
func (r *Resource) SendBytes(ctx context.Context, to GID, tag uint64, p []byte) error {
	return r.send(ctx, to, func(f *dispatch.Flow) error { return f.SendBytes(ctx, r.id.Serial(), tag, p) })
}

// SendAndForget sends a copy of p, as [Resource.SendBytes] does, if the loss of the message is of
// no interest: an acknowledgement that its receiver may no longer need, a hint, a wake-up. Flush
// and [Context.Close] do not wait until the message is delivered. A message that is not delivered
// is not an error of theirs, is not reported to the function of [WithUndelivered], and is not
// counted in Stats.
//
// Until Close the library does for the message what it does for any other. Its place among the
// messages to the target is the same. Close hands it to the connection with the target's context,
// if there is one, and waits for nothing more.
func (r *Resource) SendAndForget(ctx context.Context, to GID, tag uint64, p []byte) error {
	return r.send(ctx, to, func(f *dispatch.Flow) error { return f.SendAndForget(ctx, r.id.Serial(), tag, p) })
}

// send calls withFlow, and adds the target to its error.
func (r *Resource) send(ctx context.Context, to GID, how func(*dispatch.Flow) error) error {
	if err := r.withFlow(ctx, to, how); err != nil {
		return fmt.Errorf("rocl: send to %v: %w", to, err)
	}
	return nil
}

// withFlow calls how with the flow that the last send used. If that flow leads elsewhere or has
// failed, withFlow gets a flow from the cache or the directory.
func (r *Resource) withFlow(ctx context.Context, to GID, how func(*dispatch.Flow) error) error {
	err := dispatch.ErrClosed
	if !r.deleting.Load() {
		if l := r.last.Load(); l != nil && l.to == to {
			if err = how(l.f); err == nil {
				return nil
			}
		}
		if err == dispatch.ErrClosed || stale(err) && ctx.Err() == nil {
			err = r.withFreshFlow(ctx, to, how)
		}
	}
	return err
}

// IsEnd reports whether err, the error of an operation, says that the resource that the operation
// needed has ended: it was deleted, or its context, process or node has ended. The program needs
// another resource. With the same resource the operation will fail again.
//
// IsEnd reports true for an error that matches ErrGone or ErrUnreachable. With ErrNodeDead and
// ErrUnreachable the resource is taken for ended, and may live behind a cut. IsEnd reports false
// for nil, for the end of a ctx, and for ErrClosed, which is about this process. If err wraps
// several errors, such as [SendErrors], one of them is enough.
//
// The type of an error can decide itself: if err is, or wraps, an error with the method
//
//	IsEnd() bool
//
// the result of the first such method counts. So an error that a server's handler returned is no
// end of the server, even if it matches ErrGone.
//
// IsEnd does not say whether the operation was done. A request whose call failed may have been
// worked on.
func IsEnd(err error) bool {
	if err == nil {
		return false // without the allocation that As needs
	}
	var own interface{ IsEnd() bool }
	if errors.As(err, &own) {
		return own.IsEnd()
	}
	return isLost(err)
}

// isLost reports whether err says that the target is gone or out of reach.
func isLost(err error) bool {
	return errors.Is(err, dispatch.ErrGone) || errors.Is(err, dispatch.ErrUnreachable)
}

// stale reports whether err may come of an outdated cache entry. It reports false if the operation
// has waited in vain for a connection: it has used the time that [WithGiveUp] gives it.
func stale(err error) bool { return isLost(err) && !dispatch.HasGivenUp(err) }

// withFreshFlow calls how with a flow from the cache or the directory. If that fails as an outdated
// entry does, withFreshFlow drops the entry, asks the directory and calls how once more.
func (r *Resource) withFreshFlow(ctx context.Context, to GID, how func(*dispatch.Flow) error) error {
	for try := 0; ; try++ {
		f, err := r.c.targets.Flow(ctx, to, try > 0)
		if err == nil {
			if err = how(f); err == nil {
				r.last.Store(&lastFlow{to, f})
				return nil
			}
		}
		if !stale(err) || try > 0 || ctx.Err() != nil {
			return err
		}
		r.c.targets.Forget(to) // the next round asks the directory
	}
}

// Recv returns the first message that matches every selector, or the first of all if there is no
// selector. It waits for one until ctx ends. A message that arrives as ctx ends is returned, or
// stays for the next receive. The message belongs to the caller until Message.Release. Recv fails
// with ErrClosed once the resource is closed, with ErrSelect if no message can match all
// selectors, or with the cause of ctx's end.
//
// Suppose that the selectors name the origins of the message (From). If all these resources have
// ended and left nothing that matches, Recv fails with ErrGone after 10 to 20 ms.
// [Resource.Monitor] defines when a resource has ended, with one difference. A resource whose
// context is out of reach for as long as [WithGiveUp] says has ended for a monitor, which puts its
// message (Message.IsGone), but not for Recv: the resource may live, and send again. Recv asks for
// it each second, and goes on waiting. A program that must not wait also selects the monitor's tag,
// or gives ctx a deadline.
//
// Recv fails with ErrStuck if all of the following hold for as long as [WithGiveUp] says. The
// mailbox, whose limit is doubled meanwhile, is full of messages that Recv does not select. A
// context from which a message could match waits for room. Nothing arrives in the mailbox, and
// nothing is received from it. No message is lost: receive some of the other messages, and try
// again. See [dispatch.Mailbox.Recv].
func (r *Resource) Recv(ctx context.Context, sel ...Select) (*Message, error) {
	return r.box.Recv(ctx, sel...)
}

// TryRecv returns the first message that matches every selector, as [Resource.Recv] does, but does
// not wait. If there is no such message it fails with ErrEmpty. TryRecv makes progress once:
// it first delivers what the transports have received.
func (r *Resource) TryRecv(sel ...Select) (*Message, error) {
	return r.box.TryRecv(sel...)
}

// Peek describes the message that [Resource.TryRecv] would return for these selectors, and leaves
// it in the mailbox. It makes progress once and fails as TryRecv does: with ErrEmpty if there
// is no such message. Another goroutine may receive that message next.
func (r *Resource) Peek(sel ...Select) (Envelope, error) {
	return r.box.Peek(sel...)
}

// Messages yields messages until ctx ends or the resource is closed. Either ends the loop without
// an error. Any other error of [Resource.Recv] is yielded once and ends the loop. The loop body
// releases each message.
func (r *Resource) Messages(ctx context.Context, sel ...Select) iter.Seq2[*Message, error] {
	return r.box.Messages(ctx, sel...)
}

// Waiting returns the number of messages in the mailbox, and their bytes as counted against its
// limit.
func (r *Resource) Waiting() (messages int, bytes uint64) { return r.box.Len() }

// Update replaces all attributes of the resource. The identifier stays, and watchers see the
// resource change. A find sees all of the change or none of it, wherever it searches: over the
// socket, in the node's index in shared memory, or from another node. The limits and errors are
// those of [Context.Register]. If Update fails, the old attributes stay, except that after the end
// of ctx either the old or the new ones may hold. Update of a deleted resource fails with
// ErrClosed.
func (r *Resource) Update(ctx context.Context, a Attributes) error {
	_, err := r.CompareAndSet(ctx, 0, a)
	return err
}

// CompareAndSet replaces all attributes of the resource, as [Resource.Update] does, if they are
// still at revision rev. A rev of 0 stands for any revision. CompareAndSet returns the new
// revision. It fails with ErrRevision if the attributes have changed.
func (r *Resource) CompareAndSet(ctx context.Context, rev uint64, a Attributes) (uint64, error) {
	l, err := userList(a)
	if err == nil && r.lane != "" {
		err = l.AddString(AttrOver, string(r.lane))
	}
	if err != nil {
		return 0, fmt.Errorf("rocl: update %v: %w", r.id, err)
	}
	if r.deleting.Load() {
		return 0, fmt.Errorf("rocl: update %v: %w", r.id, dispatch.ErrClosed)
	}
	now, err := r.c.dir.Update(ctx, r.id, rev, l)
	if err != nil {
		return 0, fmt.Errorf("rocl: update %v: %w", r.id, r.wrap(err))
	}
	r.revised(now)
	return now, nil
}

// wrap makes an error of the directory about the resource match ErrClosed if Delete has begun
// meanwhile or the context is closing.
func (r *Resource) wrap(err error) error {
	isClosed := r.deleting.Load() && errors.Is(err, directory.ErrNotFound) || r.c.life.HasEnded() && errors.Is(err, directory.ErrClosed)
	if isClosed && !errors.Is(err, dispatch.ErrClosed) {
		return fmt.Errorf("%w: %w", dispatch.ErrClosed, err)
	}
	return err
}

// Delete ends the resource. The resource is not found any more, and messages to it fail with
// ErrGone. Messages that were not received are dropped and reported to their senders. Deleting
// a deleted resource fails with ErrClosed.
func (r *Resource) Delete(ctx context.Context) error {
	if !r.deleting.CompareAndSwap(false, true) {
		return fmt.Errorf("rocl: delete %v: %w", r.id, dispatch.ErrClosed)
	}
	err := r.c.dir.Delete(ctx, r.id)
	r.c.active.Delete(r.id)
	r.box.Close()
	if err != nil {
		return fmt.Errorf("rocl: delete %v: %w", r.id, err)
	}
	return nil
}

// Close deletes the resource, as [Resource.Delete] does. It waits for the directory no longer than
// the time of [WithLinger], and at least a second. After that time Close returns an error, and the
// resource is deleted as soon as a directory answers.
// Closing a closed resource does nothing. Close implements io.Closer.
func (r *Resource) Close() error {
	ctx, cancel := icontext.Within(context.Background(), max(r.c.cfg.Linger, icontext.WithdrawTime))
	defer cancel()
	err := r.Delete(ctx)
	if errors.Is(err, dispatch.ErrClosed) {
		return nil
	}
	return err
}
