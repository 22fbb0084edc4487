// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"encoding/binary"
	"fmt"

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

// sendEnd sends the message end: there are no more answers.
func (c *codec) sendEnd(id uint64, v *Coverage) error {
	c.begin(msgEnd, id)
	c.out = binary.LittleEndian.AppendUint32(c.out, uint32(v.Covered))
	for _, n := range v.Failed {
		c.u64(uint64(n))
	}
	return c.send()
}

// parseEnd returns the endError in the body of a message end, or ErrProtocol if the body is
// malformed.
func parseEnd(b []byte) error {
	if len(b) < 4 || (len(b)-4)%8 != 0 {
		return fmt.Errorf("%w: end of %d bytes", ErrProtocol, len(b))
	}
	e := &endError{Coverage{Covered: int(binary.LittleEndian.Uint32(b))}}
	for b = b[4:]; len(b) > 0; b = b[8:] {
		e.Failed = append(e.Failed, resource.NodeID(binary.LittleEndian.Uint64(b)))
	}
	return e
}
