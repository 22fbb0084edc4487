// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"time"

	"github.com/rocl-go/rocl"
)

// A Chain is a wait, what it waits for, what that waits for, and so on.
type Chain struct {
	Steps []Step        `json:"steps"`
	End   string        `json:"end"`             // why the last step does not go on, in words
	Cycle bool          `json:"cycle,omitempty"` // the last step waits for an earlier one
	Age   time.Duration `json:"age"`             // of the first step, as far as was seen
	More  int           `json:"more,omitempty"`  // further waits like the first step, which go on in the same way
}

// A Step is one wait of a chain.
type Step struct {
	Whose
	Kind  string        `json:"kind"`           // "call", "send", "receive" or "messages"
	From  rocl.GID      `json:"from"`           // the resource that waits
	To    rocl.GID      `json:"to,omitzero"`    // the resource for which it waits
	Name  string        `json:"name,omitempty"` // of a call of package rpc
	Tag   uint64        `json:"tag"`
	Age   time.Duration `json:"age"`             // as far as was seen
	Maybe bool          `json:"maybe,omitempty"` // the step before may wait for this one: snapshots do not tell for certain
	Text  string        `json:"text"`            // the step in words
}

// Waits returns the calls, sends and receives that have waited for least or longer, and the
// messages that have waited so long while none was received. The longest come first.
func (o *Observer) Waits(least time.Duration) []Chain { return nil }
