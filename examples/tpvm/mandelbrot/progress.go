// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/rocl-go/rocl/tpvm"
)

// A progress prints a line for each tenth of the picture: how many tiles have been rendered, in all
// and by each process.
type progress struct {
	tiles, done int
	parts       map[tpvm.TID]*part // of the processes, by their contexts
}

// A part is what a process has done.
type part struct {
	name     string
	done     int
	hasEnded bool
}

// newProgress returns the progress of the processes to which the threads belong.
func newProgress(tiles int, threads []tpvm.TID) *progress {
	p := &progress{tiles: tiles, parts: map[tpvm.TID]*part{}}
	for _, id := range threads {
		p.parts[id.Context()] = &part{name: id.Context().String()}
	}
	return p
}

// name sets the name of the process of a task.
func (p *progress) name(task tpvm.TID, name string) {
	if b := p.parts[task.Context()]; b != nil {
		b.name = name
	}
}

// step counts a tile of a thread.
func (p *progress) step(thread tpvm.TID) {
	p.done++
	p.parts[thread.Context()].done++
	tenth := p.done * 10 / p.tiles
	if tenth == (p.done-1)*10/p.tiles {
		return
	}
	line := fmt.Sprintf("%3d %%: %d of %d tiles;", tenth*10, p.done, p.tiles)
	for _, b := range slices.SortedFunc(maps.Values(p.parts), func(a, b *part) int { return strings.Compare(a.name, b.name) }) {
		line += fmt.Sprintf(" %s: %d", b.name, b.done)
		if b.hasEnded {
			line += " (ended)"
		}
	}
	fmt.Fprintln(os.Stderr, line)
}

// lose marks the process of a thread that has ended early.
func (p *progress) lose(thread tpvm.TID) {
	b := p.parts[thread.Context()]
	if !b.hasEnded {
		b.hasEnded = true
		fmt.Fprintf(os.Stderr, "process %s ended early; its tiles are rendered again\n", b.name)
	}
}

// ended returns how many processes have ended early.
func (p *progress) ended() (n int) {
	for _, b := range p.parts {
		if b.hasEnded {
			n++
		}
	}
	return n
}
