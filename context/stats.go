// SPDX-License-Identifier: Apache-2.0

package context

import (
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch"
)

// Stats are monotonic counts of what the context did since Open, and the
// present state of its memory.
type Stats struct {
	dispatch.Stats
	Questions uint64 // asked of the directory: finds, look-ups, watches
	Mapped    uint64 // of these, answered in place from the node's image, without a system call
	Buffers   buffers.Stats

	HandlerPanics   uint64 // calls of functions of Resource.Handle that panicked
	LogLinesDropped uint64 // that the handler of WithLogger has not got
}

// Stats returns the counts as of now.
func (c *Context) Stats() Stats {
	return Stats{
		Stats: c.disp.Stats(), Questions: c.asked.Load(), Mapped: c.dir.Stats().Mapped, Buffers: c.pool.Stats(),
		HandlerPanics: c.handlerPanics.Load(), LogLinesDropped: c.logs.Dropped(),
	}
}
