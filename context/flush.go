// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"fmt"

	"github.com/rocl-go/rocl/dispatch"
)

// Flush waits until each message that this resource had sent before, and that was
// accepted, is in the mailbox of its target or has been reported as undelivered. It does
// not wait until the messages are received.
//
// Flush returns nil if no message of the resource was reported as undelivered since the
// resource's last Flush. Otherwise it fails with a *[dispatch.FlushError], which says how
// many were; errors.Is tells rocl.ErrGone, rocl.ErrUnreachable and rocl.ErrClosed apart. If ctx ends
// before, the *FlushError matches the cause of that, and says how many messages are still
// under way. A message that was delivered, and that its receiver dropped unread when it
// deleted the resource, is reported too, some time after.
//
// Flush costs nothing while messages are sent. Concurrent calls are fine; a message that
// was not delivered is counted by one of them. On a resource that is deleted, Flush fails
// with rocl.ErrClosed.
func (r *Resource) Flush(ctx stdctx.Context) error {
	err := error(dispatch.ErrClosed)
	if !r.gone.Load() {
		err = r.box.Flush(ctx)
	}
	if err != nil {
		return fmt.Errorf("rocl: flush %v: %w", r.id, err)
	}
	return nil
}

// Flush is [Resource.Flush] for the messages of all resources of the context, those that
// are deleted among them. What it counts as undelivered, the resources' Flush counts too.
func (c *Context) Flush(ctx stdctx.Context) error {
	if err := c.disp.Flush(ctx); err != nil {
		return fmt.Errorf("rocl: flush %v: %w", c.self, err)
	}
	return nil
}
