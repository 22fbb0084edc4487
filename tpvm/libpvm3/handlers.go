// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"

	"github.com/rocl-go/rocl/tpvm"
)

// A handler is a handler that pvm_addmhf has added.
type handler struct {
	src, tag, ctx int // the values that the program gave
	filter        tpvm.Filter
	call          func(bufid int) // nil: a handler of PVM itself, which is only listed
}

// handlers are the message handlers by their numbers, or nil where a number is free. PVM has nine
// handlers of its own, whose numbers come first.
type handlers []*handler

// pvmOwn are the tags of the messages that PVM handles itself.
var pvmOwn = [...]int{
	-2147287039, -2147287038, -2147287037, -2147287036, -2147287034, -2147287032, -2147287031, -2147287033, -2147287028,
}

const anyContext = 0x7ffff // in PVM's listing of handlers

// enrol adds PVM's own handlers when a task enrols.
func (h *handlers) enrol() {
	for _, tag := range pvmOwn {
		*h = append(*h, &handler{src: -1, tag: tag, ctx: anyContext})
	}
}

// add adds a handler and returns its number.
func (h *handlers) add(n handler) (int, error) {
	meet := func(a, b int) bool { return a == b || a == -1 || b == -1 }
	for _, o := range *h {
		if o != nil && o.call != nil && meet(o.src, n.src) && meet(o.tag, n.tag) && meet(o.ctx, n.ctx) {
			return 0, exists
		}
	}
	id := slices.Index(*h, nil)
	if id < 0 {
		id = len(*h)
		*h = append(*h, nil)
	}
	(*h)[id] = &n
	return id, nil
}

// remove removes a handler by its number.
func (h handlers) remove(id int) error {
	switch {
	case id < 0:
		return badParam
	case id >= len(h) || h[id] == nil:
		return notFound
	}
	h[id] = nil
	return nil
}

// filters returns fs and, behind them, the filters of the program's handlers.
func (h handlers) filters(fs ...tpvm.Filter) []tpvm.Filter {
	for _, o := range h {
		if o != nil && o.call != nil {
			fs = append(fs, o.filter)
		}
	}
	return fs
}

// match returns the handler for a message, or nil.
func (h handlers) match(b *buffer) *handler {
	for _, o := range h {
		if o != nil && o.call != nil && b.matches(o.filter) {
			return o
		}
	}
	return nil
}

// display writes the handlers, like pvmdisplaymhfinfo without the lists of PVM's own.
func (h handlers) display(w io.Writer, name, text string, tid int) {
	fmt.Fprintf(w, "%s t%x: %s\n", name, tid, text)
	for id, o := range h {
		if o != nil {
			fmt.Fprintf(w, "%s t%x: dhandles[%2d].mhid = %2d  .header.src = t%-8x  .header.ctx = %8d  .header.tag= %8d\n",
				name, tid, id, id, uint32(o.src), o.ctx, o.tag)
		}
	}
}
