// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"
)

// A progress shows on a terminal how many tiles there are, in all and of each process.
type progress struct {
	p     *mpb.Progress
	all   *mpb.Bar
	tiles int64
	bars  map[string]*mpb.Bar
}

func newProgress(tiles int) *progress {
	var w mpb.ContainerOption // none: elsewhere than on a terminal nothing is shown
	if term.IsTerminal(int(os.Stderr.Fd())) {
		w = mpb.WithOutput(os.Stderr)
	} else {
		w = mpb.WithOutput(nil)
	}
	p := &progress{p: mpb.New(w, mpb.WithWidth(50)), tiles: int64(tiles), bars: map[string]*mpb.Bar{}}
	p.all = p.bar("all", decor.Percentage(decor.WC{W: 5}), decor.AverageETA(decor.ET_STYLE_GO, decor.WC{W: 6}))
	return p
}

func (p *progress) bar(name string, behind ...decor.Decorator) *mpb.Bar {
	return p.p.AddBar(p.tiles,
		mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR), decor.CurrentNoUnit("%d", decor.WCSyncSpace)),
		mpb.AppendDecorators(behind...))
}

// step counts a tile of a process.
func (p *progress) step(process string) {
	b := p.bars[process]
	if b == nil {
		b = p.bar(process)
		p.bars[process] = b
	}
	b.Increment()
	p.all.Increment()
}

func (p *progress) end() {
	p.all.Abort(false) // does nothing to a bar that is full
	for _, b := range p.bars {
		b.Abort(false)
	}
	p.p.Wait()
}
