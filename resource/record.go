// SPDX-License-Identifier: Apache-2.0

package resource

// A Record is a resource as a directory has it: its attributes with their owner and revision. The
// function that returns a Record says whether its attributes may be changed.
type Record struct {
	ID, Owner GID
	Revision  uint64 // grows with every change of the attributes
	Attrs     List
}
