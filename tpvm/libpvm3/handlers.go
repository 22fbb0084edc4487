// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"github.com/rocl-go/rocl/tpvm"
)

// A handler is a handler that pvm_addmhf has added.
type handler struct {
	id            int
	src, tag, ctx int // the values that the program gave
	filter        tpvm.Filter
	call          func(bufid int) // nil: a handler of PVM itself, which is only listed
}

// handlers are the message handlers, by PVM's numbering. PVM has nine handlers of its own, whose
// numbers come first. The number that was freed last is given out first.
type handlers struct {
	list  []handler // the handlers, in no order
	index []int     // by number: the index in list, or, if the number is free, the next free number
	free  int       // the first free number, or -1
}

// pvmOwn are the tags of the messages that PVM handles itself.
var pvmOwn = [...]int{
	-2147287039, -2147287038, -2147287037, -2147287036, -2147287034, -2147287032, -2147287031, -2147287033, -2147287028,
}

const anyContext = 0x7ffff // in PVM's listing of handlers

// enrol adds PVM's own handlers when a task enrols.
func (h *handlers) enrol() {
	if h.index == nil {
		h.free = -1
	}
	for _, tag := range pvmOwn {
		_, _ = h.add(handler{src: -1, tag: tag, ctx: anyContext})
	}
}

// exit removes all handlers when the task exits.
func (h *handlers) exit() {
	h.list, h.index, h.free = nil, nil, -1
}

// add adds a handler and returns its number.
func (h *handlers) add(n handler) (int, error) {
	for _, o := range h.list {
		if (o.src == n.src || o.src == -1 || n.src == -1) &&
			(o.tag == n.tag || o.tag == -1 || n.tag == -1) &&
			(o.ctx == n.ctx || o.ctx == -1 || n.ctx == -1) && o.call != nil && n.call != nil {
			return 0, exists
		}
	}
	n.id = h.free
	if n.id >= 0 {
		h.free = h.index[n.id]
	} else {
		n.id = len(h.index)
		h.index = append(h.index, 0)
	}
	h.index[n.id] = len(h.list)
	h.list = append(h.list, n)
	return n.id, nil
}

// remove removes a handler by its number.
func (h *handlers) remove(id int) error {
	if id < 0 {
		return badParam
	}
	for i := range h.list {
		if h.list[i].id != id {
			continue
		}
		last := len(h.list) - 1
		h.list[i] = h.list[last]
		h.index[h.list[i].id] = i
		h.list[last] = handler{}
		h.list = h.list[:last]
		h.index[id], h.free = h.free, id
		return nil
	}
	return notFound
}

// filters returns fs and, behind them, the filters of the program's handlers.
func (h *handlers) filters(fs ...tpvm.Filter) []tpvm.Filter {
	for _, o := range h.list {
		if o.call != nil {
			fs = append(fs, o.filter)
		}
	}
	return fs
}

// match returns the handler for a message, or nil.
func (h *handlers) match(b *buffer) *handler {
	for i := range h.list {
		if o := &h.list[i]; o.call != nil && b.matches(o.filter) {
			return o
		}
	}
	return nil
}

// display writes the handlers as pvmdisplaymhfinfo does.
func (h *handlers) display(w io.Writer, name, text string, tid int) {
	fmt.Fprintf(w, "\n%s t%x: Display Message Handler Information: ndhandles = %d\tnhandles = %d\tfl_dhandles = %d\n",
		name, tid, len(h.index), len(h.list), h.free)
	fmt.Fprint(w, "pvmdisplaymhfinfo: free list.  head <- ")
	isFree := map[int]bool{}
	for i := h.free; i >= 0; i = h.index[i] {
		fmt.Fprintf(w, "%d ", i)
		isFree[i] = true
	}
	fmt.Fprintf(w, "-< tail\n%s t%x: %s\n", name, tid, text)
	for i, at := range h.index {
		id := i
		if isFree[i] {
			id = at
		}
		if at >= 0 && at < len(h.list) && !isFree[i] {
			o := h.list[at]
			fmt.Fprintf(w, "%s t%x: dhandles[%2d].mhid = %2d  .handle = %2d     handles[%2d].mhid = %2d  .header.src = t%-8x  .header.ctx = %8d  .header.tag= %8d\n",
				name, tid, i, id, at, at, o.id, uint32(o.src), o.ctx, o.tag)
			continue
		}
		fmt.Fprintf(w, "%s t%x: dhandles[%2d].mhid = %2d\n", name, tid, i, id)
	}
	fmt.Fprint(w, "\n\n")
}
