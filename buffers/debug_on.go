// SPDX-License-Identifier: Apache-2.0

//go:build rocldebug

package buffers

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
)

const poison = 0xDB

type debugPool struct {
	mu   sync.Mutex
	held map[*Buffer]struct{}
}

type debugBuffer struct {
	clean bool // poisoned since its last use
	got   []uintptr
	freed []uintptr
}

func callers() []uintptr {
	pc := make([]uintptr, 16)
	return pc[:runtime.Callers(4, pc)]
}

func traceText(pc []uintptr) string {
	var s strings.Builder
	fs := runtime.CallersFrames(pc)
	for {
		f, more := fs.Next()
		fmt.Fprintf(&s, "\n\t%s %s:%d", f.Function, f.File, f.Line)
		if !more {
			return s.String()
		}
	}
}

func (p *Pool) debugGet(b *Buffer) {
	if b.clean {
		for i, c := range b.mem {
			if c != poison {
				panic(fmt.Sprintf("buffers: byte %d was written after the release at%s", i, traceText(b.freed)))
			}
		}
	}
	b.clean = false
	b.got = callers()
	p.debug.mu.Lock()
	if p.debug.held == nil {
		p.debug.held = map[*Buffer]struct{}{}
	}
	p.debug.held[b] = struct{}{}
	p.debug.mu.Unlock()
}

func (p *Pool) debugPut(b *Buffer) {
	if !b.abandoned.Load() { // else another process may be reading it
		for i := range b.mem {
			b.mem[i] = poison
		}
		b.clean = true
	}
	b.freed = callers()
	p.debug.mu.Lock()
	delete(p.debug.held, b)
	p.debug.mu.Unlock()
}

func (p *Pool) debugDouble(b *Buffer) {
	panic(fmt.Sprintf("buffers: released twice: now at%s\nfirst at%s", traceText(callers()), traceText(b.freed)))
}

func (p *Pool) debugLate(b *Buffer) {
	panic(fmt.Sprintf("buffers: retained after its last release: now at%s\nreleased at%s", traceText(callers()), traceText(b.freed)))
}

func (p *Pool) debugLeaks() string {
	p.debug.mu.Lock()
	defer p.debug.mu.Unlock()
	var s strings.Builder
	for b := range p.debug.held {
		fmt.Fprintf(&s, "\n%d bytes, got at%s", b.n, traceText(b.got))
	}
	return s.String()
}

const debugging = true
