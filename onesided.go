// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"fmt"

	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/subsys"
)

// Memory that contexts access directly, over transports that can do it (package ofi). Most programs
// use package bulk, which moves bytes in the best way that there is.
type (
	ExposedMemory = dispatch.ExposedMemory // memory of this process that other contexts read and write; see Context.ExposeMemory
	RemoteMemory  = dispatch.RemoteMemory  // the same for them; see Context.RemoteMemory
)

// ExposeMemory lets each process that gets the key of the result read and write mem, as the
// arguments say. No goroutine of this program takes part, and nothing tells it. mem must not be
// freed before Close of the result. The error matches errors.ErrUnsupported if no transport of the
// context can do it.
func (c *Context) ExposeMemory(mem []byte, mayRead, mayWrite bool) (*ExposedMemory, error) {
	var access subsys.Access
	if mayRead {
		access |= subsys.MayRead
	}
	if mayWrite {
		access |= subsys.MayWrite
	}
	e, err := c.disp.Expose(mem, access)
	if err != nil {
		return nil, fmt.Errorf("rocl: expose %d bytes of memory: %w", len(mem), err)
	}
	return e, nil
}

// RemoteMemory returns the memory of the context of id that ExposedMemory.Key has named there. It
// asks nobody: an access fails if the key is wrong.
func (c *Context) RemoteMemory(id GID, key []byte) (*RemoteMemory, error) {
	m, err := c.disp.RemoteMemory(id, key)
	if err != nil {
		return nil, fmt.Errorf("rocl: remote memory: %w", err)
	}
	return m, nil
}

// IsOneSided reports whether there is a connection with the context of id over which a
// [RemoteMemory] can be used now. Messages make connections.
func (c *Context) IsOneSided(id GID) bool { return c.disp.IsOneSided(id) }
