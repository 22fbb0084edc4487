// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"time"

	"github.com/rocl-go/rocl/resource"
)

// A Step is one question to one node, as the trace of a search shows it.
type Step struct {
	Node resource.NodeID `json:"node"`
	How  string          `json:"how"` // one of local, summary, tree, unicast, broadcast
	// Members is the number of nodes that the question was to cover, including the asked one.
	Members int           `json:"members"`
	Asked   time.Duration `json:"asked_ns"`          // since the search began
	Took    time.Duration `json:"took_ns,omitempty"` // until the answer
	// Outcome is found, none, or silent (no answer in time). It is empty if the search ended
	// before.
	Outcome string       `json:"outcome,omitempty"`
	Found   resource.GID `json:"found,omitzero"`
	Covered int          `json:"covered,omitempty"` // for none: nodes that have nothing that matches
	Failed  int          `json:"failed,omitempty"`  // for none: nodes that could not be asked
}
