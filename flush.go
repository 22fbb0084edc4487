// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"fmt"

	"github.com/rocl-go/rocl/dispatch"
)

// Flush waits until each message that this resource has sent, and that was accepted, is in the
// mailbox of its target or has been reported as undelivered. With ids it waits only for messages to
// the resources ids. It does not wait until the messages are received, and not for messages of
// [Resource.SendAndForget].
//
// Flush returns nil if no message of the resource was reported as undelivered since the resource's
// last Flush. Otherwise it fails with a *[FlushError], which says how many messages to
// which targets were undelivered; errors.Is tells ErrGone, ErrUnreachable and
// ErrClosed apart. If ctx ends first, the *FlushError matches the cause of ctx's end, and says
// how many messages are still under way. With ids it counts only messages to these targets, and
// leaves the others to a later Flush. A message that was delivered, and that its receiver dropped
// unread by deleting the resource, is reported too, some time later.
//
// Sending costs nothing more because of Flush. Concurrent calls are allowed; each undelivered
// message is counted by one of them. On a deleted resource Flush fails with ErrClosed.
func (r *Resource) Flush(ctx context.Context, ids ...GID) error {
	err := error(dispatch.ErrClosed)
	if !r.deleting.Load() {
		err = r.box.Flush(ctx, ids...)
	}
	if err != nil {
		return fmt.Errorf("rocl: flush %v: %w", r.id, err)
	}
	return nil
}

// Flush waits for the messages of all resources of the context, even deleted ones, as
// [Resource.Flush] does for one resource. Undelivered messages that it counts are also counted by
// the Flush of their resource.
func (c *Context) Flush(ctx context.Context, ids ...GID) error {
	if err := c.disp.Flush(ctx, ids...); err != nil {
		return fmt.Errorf("rocl: flush %v: %w", c.self, err)
	}
	return nil
}
