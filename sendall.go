// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/rocl-go/rocl/dispatch"
)

// A SendError is the error of one target of [Resource.SendAll].
type SendError struct {
	To  GID   // the target
	Err error // why the message was not sent, as Send would return it
}

// Error implements error.
func (e *SendError) Error() string { return fmt.Sprintf("to %v: %v", e.To, e.Err) }

// Unwrap returns Err.
func (e *SendError) Unwrap() error { return e.Err }

// SendErrors is the error of [Resource.SendAll]: a SendError for each target that does not get the
// message, in the order of the targets. It matches what any of them matches.
type SendErrors []*SendError

// Error implements error. It names the first three targets.
func (e SendErrors) Error() string {
	const most = 3
	var s strings.Builder
	fmt.Fprintf(&s, "rocl: send to several targets: %d have failed", len(e))
	sep := ": "
	for _, one := range e[:min(len(e), most)] {
		s.WriteString(sep + one.Error())
		sep = "; "
	}
	if len(e) > most {
		fmt.Fprintf(&s, "; and %d more", len(e)-most)
	}
	return s.String()
}

// Unwrap returns the errors of all targets.
func (e SendErrors) Unwrap() []error {
	all := make([]error, len(e))
	for i, one := range e {
		all[i] = one
	}
	return all
}

// maxAwaited limits how many targets SendAll waits for at once.
const maxAwaited = 1024

// SendAll sends the message in b to each of the targets ids, over whatever transports lead there,
// as [Resource.Send] does. It copies the message for a target only if Send would. A target that is
// named twice gets the message twice.
//
// Targets that have room get the message first. Then SendAll waits, until ctx ends, for up to 1,024
// of the other targets at the same time: a slow target does not delay the others. SendAll returns
// when each target has accepted the message or failed.
//
// If SendAll returns nil, it has taken over the caller's reference to b. Otherwise the error is a
// [SendErrors], which names the targets that do not get the message and why, as Send says it. All
// other targets get it. Then b stays the caller's, to send to the failed targets again, or to
// release.
//
// The targets share the memory. The caller must not write to b after the call, even if it failed. A
// receiver must not write to the payload. A receiver in the same process that wants to write calls
// [dispatch.Message.Writable], which copies.
func (r *Resource) SendAll(ctx context.Context, ids []GID, tag uint64, b *Buffer) error {
	if failed := r.sendAll(ctx, ids, tag, b); len(failed) > 0 {
		return failed
	}
	b.Release()
	return nil
}

// sendAll sends to each of ids with a reference of its own to b. It returns the targets that
// failed, in order.
func (r *Resource) sendAll(ctx context.Context, ids []GID, tag uint64, b *Buffer) (failed SendErrors) {
	var later []int // indexes of ids
	for i, id := range ids {
		if !r.sendNow(ctx, id, tag, b) {
			later = append(later, i)
		}
	}
	errs := make([]error, len(later))
	var wg sync.WaitGroup
	free := make(chan struct{}, maxAwaited)
	for n, i := range later {
		if n == len(later)-1 {
			errs[n] = r.sendAnew(ctx, ids[i], tag, b) // the calling goroutine waits in any case
			break
		}
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			errs[n] = r.sendAnew(ctx, ids[i], tag, b)
		})
	}
	wg.Wait()
	for n, err := range errs {
		if err != nil {
			failed = append(failed, &SendError{ids[later[n]], err})
		}
	}
	return failed
}

// sendNow sends to a target whose flow is known and that has room. It reports whether the target
// has accepted the message.
func (r *Resource) sendNow(ctx context.Context, id GID, tag uint64, b *Buffer) bool {
	f := r.c.targets.Cached(id)
	if f == nil || r.deleting.Load() {
		return false
	}
	if f.TrySend(ctx, r.id.Serial(), tag, b.Retain()) != nil {
		b.Release() // sendAnew waits for room, and asks the directory where the flow is outdated
		return false
	}
	return true
}

// sendAnew sends to a target with a reference of its own to b, and waits for room.
func (r *Resource) sendAnew(ctx context.Context, id GID, tag uint64, b *Buffer) error {
	if r.deleting.Load() {
		return dispatch.ErrClosed
	}
	b.Retain()
	err := r.withFreshFlow(ctx, id, func(f *dispatch.Flow) error { return f.Send(ctx, r.id.Serial(), tag, b) })
	if err != nil {
		b.Release()
	}
	return err
}
