// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"fmt"

	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// A Coverage says which nodes were asked for all that matches.
type Coverage struct {
	Covered int               // nodes that reported all they have, including this one
	Failed  []resource.NodeID // nodes that could not be asked
}

// Err returns nil if every node was asked. Otherwise the error matches ErrPartial and names the
// nodes that were not asked.
func (v *Coverage) Err() error {
	if len(v.Failed) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d of %d nodes: %012x", ErrPartial, len(v.Failed), len(v.Failed)+v.Covered, v.Failed)
}

// endError is the client's form of the message end: there are no more answers.
type endError struct{ Coverage }

func (e *endError) Error() string { return "rocl: no more answers" }

// endOf returns the endError in the body of a message end, or ErrProtocol if the body is malformed.
func endOf(b []byte) error {
	covered, failed, err := wire.ParseEnd(b)
	if err != nil {
		return err
	}
	return &endError{Coverage{covered, failed}}
}
