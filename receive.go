// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/dispatch"
)

// PutBack returns a received message to the mailbox of r. The next receive at r that the message
// matches returns it, before all messages that are stored. A receive that waits for it returns it
// at once. The library owns the message from then on: do not touch it. If r is closed before the
// message is received again, the message is reported to its sender as undelivered.
//
// PutBack fails with ErrClosed if r is closed, and with ErrNotReceived if m was not
// received from r, or has been released or put back since. If PutBack fails, the message stays the
// caller's. Any goroutine may call it.
//
// The sender may use the room of a received message at once. So messages that are put back may
// exceed the limit of the mailbox, by as much as was received and not yet put back at one time.
// Senders get room again when these messages have been received.
func (r *Resource) PutBack(m *Message) error {
	if err := r.box.PutBack(m); err != nil {
		return fmt.Errorf("rocl: put a message back at %v: %w", r.id, err)
	}
	return nil
}

// RecvAny receives from several resources of one context. It returns the first message that matches
// all selectors, and the resource that received the message. If several resources have such a
// message, RecvAny chooses one of them at random, so none starves. Its time grows with the number
// of resources.
//
// RecvAny fails with ErrClosed if a resource is closed and no resource has a message; the error
// names that resource, which is returned too. It fails with ErrSelect if no message can match, if
// rs is empty or has a nil, or if rs belong to several contexts. Otherwise it fails as
// [Resource.Recv] does. A message that arrives as RecvAny fails, or for a resource that RecvAny
// does not return, stays for the next receive.
func RecvAny(ctx context.Context, rs []*Resource, sel ...Select) (*Resource, *Message, error) {
	boxes := make([]*dispatch.Mailbox, len(rs))
	for i, r := range rs {
		if r == nil {
			return nil, nil, fmt.Errorf("rocl: receive at one of %d resources: %w: resource %d is nil", len(rs), dispatch.ErrSelect, i)
		}
		boxes[i] = r.box
	}
	i, m, err := dispatch.RecvAny(ctx, boxes, sel...)
	switch {
	case err == nil:
		return rs[i], m, nil
	case i >= 0:
		return rs[i], nil, fmt.Errorf("rocl: receive at %v: %w", rs[i].id, err)
	case errors.Is(err, dispatch.ErrSelect) && len(rs) == 1:
		return nil, nil, fmt.Errorf("rocl: receive at %v: %w", rs[0].id, err)
	}
	return nil, nil, fmt.Errorf("rocl: receive at one of %d resources: %w", len(rs), err)
}
