// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"fmt"

	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/dispatch"
)

// Monitor puts one message into r's mailbox when the resource id has ended: when it was deleted, or
// its context was closed, killed, or lost with its node. The message is From id, has the given tag
// and no payload; Message.IsGone reports true for it. It comes after the last message that id sent
// to r, over whatever transports and however large. If id has ended already, or never existed, the
// message comes at once. id may be a resource of any context, or a context's own identifier.
//
// stop ends the monitor, and so does the end of ctx. After stop has returned, or a moment after ctx
// has ended, the monitor puts no message into the mailbox; a message in the mailbox stays. Each
// monitor puts at most one message, even if several monitor the same resource. The message needs no
// credit: it enters a full mailbox too. Deleting r ends its monitors.
//
// The end of a process on this node is reported within milliseconds. Another node, or a process or
// network that is slow, stopped or cut off, does not count as dead by itself. Its resources have
// ended when the directory says that the node is dead, or when the context was out of reach for as
// long as [WithGiveUp] says. The context may live nevertheless, and send again. A receive that
// selects its messages ([Resource.Recv] with From) then goes on waiting.
//
// Monitor does not wait until the context of id is reached. It waits, until ctx ends, while the
// link there is full. It fails with ErrClosed, with ErrGone if id does not identify a
// resource, or with the cause of ctx's end; then no message will come. A monitor takes some hundred
// bytes here. In the context of id, all monitors of one context for id together take as much memory
// as a sender that has not sent yet.
func (r *Resource) Monitor(ctx context.Context, id GID, tag uint64) (stop func(), err error) {
	if id.IsZero() || icontext.IsNode(id) {
		return nil, fmt.Errorf("rocl: monitor %v: %w: no resource with a context has this identifier", id, dispatch.ErrGone)
	}
	stop, err = r.box.Monitor(ctx, id, tag)
	if err != nil {
		return nil, fmt.Errorf("rocl: monitor %v: %w", id, err)
	}
	return stop, nil
}
