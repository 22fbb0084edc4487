// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"time"

	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// traceCodes has the strategies of traced searches at their codes on the wire. A traced search with
// Auto goes as any search does. With another strategy it asks all members, whatever their summaries
// say.
var traceCodes = [...]strategy.Strategy{strategy.Auto, strategy.Tree, strategy.Unicast, strategy.Broadcast}

// A Trace tells how one search went, as the asking node saw it. Some nodes were asked by other
// nodes on behalf of the asking one. For these the Trace has the numbers that the other nodes
// reported.
type Trace struct {
	Node     resource.NodeID   `json:"node"`             // the asking node
	Strategy string            `json:"way"`              // the search strategy
	Found    resource.GID      `json:"found,omitzero"`   // a resource that matches
	Covered  int               `json:"covered"`          // nodes that answered, including the asking one
	Failed   []resource.NodeID `json:"failed,omitempty"` // nodes that could not be asked
	Took     time.Duration     `json:"took_ns"`          // of the whole search

	Sent     int `json:"sent"`     // messages that the asking node sent
	Received int `json:"received"` // messages that it received
	// Messages is a lower bound for the whole cluster: a question and an answer for each node below
	// another.
	Messages int `json:"messages"`

	Steps []TraceStep `json:"steps"`
	More  int         `json:"more,omitempty"` // steps that are left out because there were too many
}

// A TraceStep is one question to one node.
type TraceStep = strategy.Step
