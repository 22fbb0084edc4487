// SPDX-License-Identifier: Apache-2.0

//go:build !rocldebug

package buffers

// Without the build tag rocldebug, the functions that check the use of buffers do nothing.
type (
	debugPool   struct{}
	debugBuffer struct{}
)

func (p *Pool) debugGet(b *Buffer)  { _, _ = p.debug, b.debugBuffer }
func (p *Pool) debugPut(*Buffer)    {}
func (p *Pool) debugDouble(*Buffer) {}
func (p *Pool) debugLate(*Buffer)   {}
func (p *Pool) debugLeaks() string  { return "" }

const debugging = false
