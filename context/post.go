// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"fmt"

	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// Post posts memory for one message: the next one from the resource from with the given tag comes to
// dst, and not to receivers or handlers of r. A large payload that comes over TCP is read there by
// the system call: it is not copied. Any other is copied there by Posted.Wait. This is the posted receive
// of MPI.
//
// A message that is in the mailbox already is the first to match. Where memory is posted several
// times for the same origin and tag, messages come to it in order. A message that is longer than dst
// is received too, and lies elsewhere. Messages of monitors are not meant.
//
// Posted.Wait must be called, once, by any goroutine. dst is the library's until it returns, and the
// caller's again then, whether it fails or not. The message that it returns must not be used any more once
// dst is changed.
//
// Post does not wait for the resource's context to be reached. It waits, until ctx ends, while the link there is
// full. It fails with rocl.ErrClosed, or with the cause of ctx's end. Wait fails with
// rocl.ErrGone or rocl.ErrUnreachable as soon as from has ended, as [Resource.Monitor] tells it.
func (r *Resource) Post(ctx stdctx.Context, from resource.GID, tag uint64, dst []byte) (*dispatch.Posted, error) {
	if from.IsZero() || isNode(from) {
		return nil, fmt.Errorf("rocl: posting memory for a message from %v: %w: no resource with a context has this identifier", from, dispatch.ErrGone)
	}
	p, err := r.box.Post(ctx, from, tag, dst)
	if err != nil {
		return nil, fmt.Errorf("rocl: posting memory for a message from %v: %w", from, err)
	}
	return p, nil
}
