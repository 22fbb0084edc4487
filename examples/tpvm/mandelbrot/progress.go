// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/rocl-go/rocl/tpvm"
)

// A progress shows how many tiles have been rendered, in all and by each process. On a terminal it
// shows bars, and elsewhere a line for each tenth of the picture.
type progress struct {
	p           *mpb.Progress // nil: lines
	all         *mpb.Bar
	tiles, done int
	bars        map[tpvm.TID]*bar // of the processes, by their contexts
}

// A bar shows the part of a process.
type bar struct {
	*mpb.Bar // nil if lines are printed
	name     string
	hasEnded atomic.Bool
}

// newProgress returns the progress of the processes to which the threads belong.
func newProgress(tiles int, threads []tpvm.TID) *progress {
	p := &progress{tiles: tiles, bars: map[tpvm.TID]*bar{}}
	for _, id := range threads {
		p.bars[id.Context()] = &bar{name: id.Context().String()}
	}
	return p
}

// name sets the name of the process of a task.
func (p *progress) name(task tpvm.TID, name string) {
	if b := p.bars[task.Context()]; b != nil {
		b.name = name
	}
}

// show begins to show the progress.
func (p *progress) show() {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return
	}
	p.p = mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(50))
	p.all = p.add("all", decor.Percentage(decor.WC{W: 5}), decor.AverageETA(decor.ET_STYLE_GO, decor.WC{W: 6}))
	for _, b := range slices.SortedFunc(maps.Values(p.bars), func(a, b *bar) int { return strings.Compare(a.name, b.name) }) {
		b.Bar = p.add(b.name, decor.Any(func(decor.Statistics) string {
			if b.hasEnded.Load() {
				return " ended early"
			}
			return ""
		}))
	}
}

func (p *progress) add(name string, behind ...decor.Decorator) *mpb.Bar {
	return p.p.AddBar(int64(p.tiles),
		mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR), decor.CurrentNoUnit("%d", decor.WCSyncSpace)),
		mpb.AppendDecorators(behind...))
}

// step counts a tile of a thread.
func (p *progress) step(thread tpvm.TID) {
	p.done++
	if p.p != nil {
		p.bars[thread.Context()].Increment()
		p.all.Increment()
		return
	}
	if tenth := p.done * 10 / p.tiles; tenth > (p.done-1)*10/p.tiles {
		fmt.Fprintf(os.Stderr, "%3d %%: %d of %d tiles, by %s\n", tenth*10, p.done, p.tiles, count(len(p.bars)-p.ended(), "process", "processes"))
	}
}

// lose marks the process of a thread that has ended early.
func (p *progress) lose(thread tpvm.TID) {
	b := p.bars[thread.Context()]
	if b.hasEnded.Swap(true) || p.p != nil {
		return
	}
	fmt.Fprintf(os.Stderr, "process %s ended early; its tiles are rendered again\n", b.name)
}

// ended returns how many processes have ended early.
func (p *progress) ended() (n int) {
	for _, b := range p.bars {
		if b.hasEnded.Load() {
			n++
		}
	}
	return n
}

// end leaves the bars on the terminal as they are.
func (p *progress) end() {
	if p.p == nil {
		return
	}
	p.all.Abort(false) // does nothing to a full bar
	for _, b := range p.bars {
		b.Abort(false)
	}
	p.p.Wait()
}
