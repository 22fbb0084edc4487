// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/rocl-go/rocl/tpvm"
)

// A progress prints a line for each tenth of the picture, and for each process that has ended
// early.
type progress struct {
	tiles, done int
	hasEnded    map[tpvm.TID]bool // the processes, by their contexts
	ended       int               // number of processes that have ended early
}

// newProgress returns the progress of the processes to which the threads belong.
func newProgress(tiles int, threads []tpvm.TID) *progress {
	p := &progress{tiles: tiles, hasEnded: map[tpvm.TID]bool{}}
	for _, id := range threads {
		p.hasEnded[id.Context()] = false
	}
	return p
}

// step counts a tile.
func (p *progress) step() {
	p.done++
	if tenth := p.done * 10 / p.tiles; tenth > (p.done-1)*10/p.tiles {
		fmt.Fprintf(os.Stderr, "%3d %%: %d of %d tiles\n", tenth*10, p.done, p.tiles)
	}
}

// lose marks the process of a thread that has ended early.
func (p *progress) lose(thread tpvm.TID) {
	if c := thread.Context(); !p.hasEnded[c] {
		p.hasEnded[c] = true
		p.ended++
		fmt.Fprintf(os.Stderr, "process %v ended early; its tiles are rendered again\n", c)
	}
}
