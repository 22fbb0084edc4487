// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"time"

	"github.com/rocl-go/rocl/dispatch"
)

// A Snapshot is what a context has, and what goes on in it, at one moment: its messages, receives,
// sends, calls and links. It is the answer of [Context.Snapshot] and [Context.SnapshotOf], and JSON
// of the commands. A reader must expect fields that it does not know, and must not trust the values
// of a foreign context.
type Snapshot struct {
	Version   int                     `json:"version"` // SnapshotVersion
	Context   GID                     `json:"context"`
	PID       int                     `json:"pid"`
	Program   string                  `json:"program"` // the name of the executable, without its folder
	Rocl      string                  `json:"rocl"`    // the version of this module, as of runtime/debug.ReadBuildInfo
	Started   time.Time               `json:"started"` // when the context was opened
	Taken     time.Time               `json:"taken"`
	Stats     Stats                   `json:"stats"`
	Resources []ResourceSnapshot      `json:"resources"`
	Sends     []dispatch.SendSnapshot `json:"sends,omitempty"`
	Calls     []dispatch.CallSnapshot `json:"calls,omitempty"`
	Links     []dispatch.LinkSnapshot `json:"links"`
	Memory    uint64                  `json:"memory"`        // bytes that buffers, messages and links occupy
	Cut       map[string]int          `json:"cut,omitempty"` // how many entries of a list were left out, by its name, since the answer would be too long
}

// SnapshotVersion is the version of Snapshot. It changes if a field changes its meaning.
const SnapshotVersion = 1

// A ResourceSnapshot is a resource and its mailbox at one moment.
type ResourceSnapshot struct {
	dispatch.MailboxSnapshot
	Name     string            `json:"name"`               // a short form of the attributes
	Handlers []HandlerSnapshot `json:"handlers,omitempty"` // of Handle, and of layers such as package rpc
}

// A HandlerSnapshot is what the handlers of a resource do at one moment.
type HandlerSnapshot struct {
	Name    string        `json:"name"`    // of the call
	Running int           `json:"running"` // handlers that run now
	Oldest  time.Duration `json:"oldest"`  // how long the first of them has run; 0: none runs, or it is not timed
	Ended   uint64        `json:"ended"`   // handlers that have returned
	Errors  uint64        `json:"errors"`  // of them, with an error
}
