// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch"
)

// Stats are counts of what the context did since Open, which never decrease, and the present state
// of its memory.
type Stats struct {
	dispatch.Stats
	Questions uint64 // questions to the directory: finds, lookups and watches
	Mapped    uint64 // questions that the node's index in shared memory answered, without a system call
	Buffers   buffers.Stats

	HandlerPanics   uint64 // panics of functions of Resource.Handle
	LogLinesDropped uint64 // log lines that were dropped because the handler of WithLogger was slow
}

// Stats returns the present counts.
func (c *Context) Stats() Stats {
	return Stats{
		Stats: c.disp.Stats(), Questions: c.dir.Questions(), Mapped: c.dir.Stats().Mapped, Buffers: c.pool.Stats(),
		HandlerPanics: c.handlerPanics.Load(), LogLinesDropped: c.logs.Dropped(),
	}
}
