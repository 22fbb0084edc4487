// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"fmt"

	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/dispatch"
)

// TrySend sends a message as [Resource.Send] does, but never waits. It fails with ErrFull,
// unwrapped and without an allocation, if the message cannot be accepted now: the target's mailbox
// has no room for it, other messages wait to be sent there, or the directory must first be asked
// for the target's context. The library then asks for what is missing, and a later TrySend may
// succeed. Credit that arrives, or an error, is kept for a second. The other errors are those of
// Send. Whenever TrySend fails, b stays the caller's.
func (r *Resource) TrySend(to GID, tag uint64, b *Buffer) error {
	f, err := r.flowNow(to)
	if err == nil {
		err = f.TrySend(context.Background(), r.id.Serial(), tag, b)
	}
	if err == nil {
		return nil
	}
	return r.notNow(to, err)
}

// notNow returns the error of a call that does not wait. If err may come of an outdated cache
// entry, notNow drops the entry, has the directory asked, and returns ErrFull until the directory
// has answered.
func (r *Resource) notNow(to GID, err error) error {
	if err == dispatch.ErrFull {
		return err
	}
	if _, isLookup := err.(*icontext.LookupError); !isLookup && stale(err) {
		if l := r.last.Load(); l != nil && l.to == to {
			r.last.CompareAndSwap(l, nil)
		}
		if err = r.c.targets.Retry(to); err == dispatch.ErrFull {
			return err
		}
	}
	return fmt.Errorf("rocl: send to %v: %w", to, err)
}

// flowNow returns the flow to a resource without waiting. It returns ErrFull while the directory is
// being asked, and a *LookupError if the directory's answer is an error.
func (r *Resource) flowNow(to GID) (*dispatch.Flow, error) {
	if r.deleting.Load() {
		return nil, dispatch.ErrClosed
	}
	if l := r.last.Load(); l != nil && l.to == to {
		return l.f, nil
	}
	return r.c.targets.FlowNow(to)
}
