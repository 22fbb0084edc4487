// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"fmt"

	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// Monitor has one message put into r's mailbox when the resource id has ended: when it was
// deleted, or its context was closed, killed, or lost with its node. The message is From id,
// has the given tag, and no payload; Message.IsGone tells it from ordinary messages. It comes
// after the last message that id sent to r, over whatever transports and however large. If
// id has ended already, or never was, the message comes at once. id may be a resource of any
// context, or a context's own identifier.
//
// stop ends the monitor, and so does the end of ctx. After stop has returned, or a moment
// after ctx has ended, no message of the monitor is put into the mailbox; one that is there
// stays. Each monitor puts one message at most, also where several monitor the same
// resource. The message needs no credit: it gets in although the mailbox is full. Monitors of
// r end as r is deleted.
//
// The end of a process on this node is told within milliseconds. Another node, a process
// or a network that is slow, stopped or cut off is not taken for dead by itself: its
// resources have ended when the directory says that the node is dead, or when the context
// was out of reach for as long as [WithGiveUp] says. It may live nevertheless, and send
// again. A receive that selects its messages ([Resource.Recv] with From) goes on waiting then.
//
// Monitor does not wait for the resource's context to be reached. It waits, until ctx ends,
// while the link there is full. It fails with rocl.ErrClosed, with rocl.ErrGone where id is
// not the identifier of a resource, or with the cause of ctx's end; then there will be no
// message. A monitor takes some hundred bytes here. At id's context all monitors of one
// context for id together take as much as a sender that has not sent yet.
func (r *Resource) Monitor(ctx stdctx.Context, id resource.GID, tag uint64) (stop func(), err error) {
	if id.IsZero() || isNode(id) {
		return nil, fmt.Errorf("rocl: monitoring %v: %w: no resource with a context has this identifier", id, dispatch.ErrGone)
	}
	stop, err = r.box.Monitor(ctx, id, tag)
	if err != nil {
		return nil, fmt.Errorf("rocl: monitoring %v: %w", id, err)
	}
	return stop, nil
}
