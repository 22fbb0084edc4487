// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/dispatch"
)

// PutBack gives a message back that was received from r: the next receive at r that it
// matches returns it, before all that is stored. A receive that waits for it returns it at
// once. The message belongs to the library from then on, and may not be touched. If r is
// closed before the message is received again, its sender is told that it was not delivered.
//
// If PutBack fails, the message stays the caller's: with rocl.ErrClosed where r is closed, or
// with rocl.ErrNotReceived where m was not received from r, or has been released or put back
// since. A message may be put back by any goroutine.
//
// The sender may use the room of a received message at once. So what is put back may exceed
// the limit of the mailbox, by as much as was received and not yet put back at one time.
// Senders get room again when that has been received.
func (r *Resource) PutBack(m *dispatch.Message) error {
	if err := r.box.PutBack(m); err != nil {
		return fmt.Errorf("rocl: putting a message back at %v: %w", r.id, err)
	}
	return nil
}

// RecvAny is [Resource.Recv] from several resources of one context: it returns the first
// message for any of them that matches all selectors, and the resource that it is for. If
// several have such a message RecvAny chooses one of them at random, so none starves the
// others. Its time grows with the number of resources.
//
// It fails with rocl.ErrClosed if a resource is closed and none has a message; the error
// names that resource, which is also returned. It fails with rocl.ErrSelect where no message
// can match, where rs is empty, and where rs are of several contexts; otherwise as Recv does.
// A message that arrives as RecvAny fails, or at another resource than the one returned,
// stays for the next receive.
func RecvAny(ctx stdctx.Context, rs []*Resource, sel ...dispatch.Select) (*Resource, *dispatch.Message, error) {
	boxes := make([]*dispatch.Mailbox, len(rs))
	for i, r := range rs {
		if r == nil {
			return nil, nil, fmt.Errorf("rocl: receiving at one of %d resources: %w: resource %d is nil", len(rs), dispatch.ErrSelect, i)
		}
		boxes[i] = r.box
	}
	i, m, err := dispatch.RecvAny(ctx, boxes, sel...)
	switch {
	case err == nil:
		return rs[i], m, nil
	case i >= 0:
		return rs[i], nil, fmt.Errorf("rocl: receiving at %v: %w", rs[i].id, err)
	case errors.Is(err, dispatch.ErrSelect) && len(rs) == 1:
		return nil, nil, fmt.Errorf("rocl: receiving at %v: %w", rs[0].id, err)
	}
	return nil, nil, fmt.Errorf("rocl: receiving at one of %d resources: %w", len(rs), err)
}
