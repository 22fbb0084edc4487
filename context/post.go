// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"fmt"

	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// Post posts the memory dst for one message: the next message from the resource from with the given
// tag. Receivers and handlers of r do not get that message. The system call reads a large payload
// that comes over TCP right into dst. Posted.Wait copies any other payload into dst. This is the
// posted receive of MPI.
//
// A message that is in the mailbox already matches first. If memory is posted several times for the
// same origin and tag, messages fill it in order. A message longer than dst is received too,
// outside dst. Messages of monitors do not match.
//
// Posted.Wait must be called once, by any goroutine. The library owns dst until Wait returns. Then
// dst is the caller's again, whether Wait fails or not. The message that Wait returns must not be
// used after dst is changed.
//
// Post does not wait until the context of from is reached. It waits, until ctx ends, while the link
// there is full. It fails with rocl.ErrClosed, with rocl.ErrGone if from does not identify a
// resource, or with the cause of ctx's end. Wait fails with rocl.ErrGone or rocl.ErrUnreachable as
// soon as from has ended, as [Resource.Monitor] defines it.
func (r *Resource) Post(ctx stdctx.Context, from resource.GID, tag uint64, dst []byte) (*dispatch.Posted, error) {
	if from.IsZero() || isNode(from) {
		return nil, fmt.Errorf("rocl: post memory for a message from %v: %w: no resource with a context has this identifier", from, dispatch.ErrGone)
	}
	p, err := r.box.Post(ctx, from, tag, dst)
	if err != nil {
		return nil, fmt.Errorf("rocl: post memory for a message from %v: %w", from, err)
	}
	return p, nil
}
