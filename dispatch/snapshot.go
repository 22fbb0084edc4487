// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/rocl-go/rocl/resource"
)

// A MailboxSnapshot is what a mailbox has at one moment, and who waits for it. Times are not among
// it: the path of a message reads no clock. Two snapshots tell what stands still.
type MailboxSnapshot struct {
	Resource resource.GID       `json:"resource"`
	Messages int                `json:"messages"`            // that wait to be received
	Bytes    uint64             `json:"bytes"`               // of them, as they count against Limit
	Limit    uint64             `json:"limit"`               // in bytes
	Received uint64             `json:"received"`            // bytes that receives have taken, as they count against Limit; grows only
	Arrived  uint64             `json:"arrived"`             // bytes that have come, likewise
	Waits    []ReceiverSnapshot `json:"receivers,omitempty"` // receives that wait
	Senders  []SenderSnapshot   `json:"senders,omitempty"`   // contexts that wait for room in this mailbox
}

// A ReceiverSnapshot is a receive that waits, and what it selects. Number tells it from other
// receives of the context.
type ReceiverSnapshot struct {
	Number uint64         `json:"number"`
	From   []resource.GID `json:"from,omitempty"` // contexts or resources; none: any
	Tags   []uint64       `json:"tags,omitempty"` // none: any
}

// A SenderSnapshot is a message for which a mailbox has no room.
type SenderSnapshot struct {
	From  resource.GID `json:"from"` // a resource, or a context if the sender has not told
	Bytes uint64       `json:"bytes"`
}

// A SendSnapshot is a send of this context that waits for room.
type SendSnapshot struct {
	Number uint64       `json:"number"` // tells it from other sends of the context
	From   resource.GID `json:"from"`
	To     resource.GID `json:"to"`
	Tag    uint64       `json:"tag"`
	Bytes  uint64       `json:"bytes"`
}

// A CallSnapshot is a call of this context that waits for its reply.
type CallSnapshot struct {
	Number uint64       `json:"number"` // tells it from other calls of the context
	From   resource.GID `json:"from"`
	To     resource.GID `json:"to"`
	Tag    uint64       `json:"tag"`
	Name   string       `json:"name,omitempty"` // of a call of package rpc
}

// A LinkSnapshot is a link at one moment.
type LinkSnapshot struct {
	Route
	State          string `json:"state"`          // "connected", "dialling", "local" or "ended"
	Unacknowledged int    `json:"unacknowledged"` // frames that were sent, and not acknowledged yet
	Queued         int    `json:"queued"`         // frames that wait for the connection
	LastError      string `json:"last_error,omitempty"`
}
