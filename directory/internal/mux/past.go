// SPDX-License-Identifier: Apache-2.0

package mux

// mostPast is the number of past lives that are remembered.
const mostPast = 1 << 16

// pastLives has the highest counter that was heard of each life of a member that was forgotten. If
// the life is met again, its key is the same: what it sent before may then not be accepted twice.
type pastLives map[life]uint64

// keep stores what was heard of l. If mostPast lives are remembered, another one is dropped.
func (p pastLives) keep(l life, heard *replay) {
	if heard.top == 0 {
		return
	}
	for other := range p { // any life: so many are no accident
		if len(p) < mostPast {
			break
		}
		delete(p, other)
	}
	p[l] = heard.top
}

// restore marks as used in heard, which must be new, all counters up to the one kept for l. Then p
// has l no longer.
func (p pastLives) restore(l life, heard *replay) {
	if top, ok := p[l]; ok {
		delete(p, l)
		heard.markUpTo(top)
	}
}
