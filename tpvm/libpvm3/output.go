// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"

	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/libpvm3/internal/numbers"
)

// catchOutput makes w get the output of the tasks that this one spawns, as pvm_catchout does: each
// line behind the number of its task, with a line at the beginning and the end of the output.
func (l *library) catchOutput(w io.Writer) error {
	c := &catcher{n: l.numbers, w: w, showTids: func() bool { return l.options[optShowTids] != 0 }, begun: map[string]bool{}}
	return l.task.CatchLines(c.write, false)
}

// A catcher writes the output of tasks as PVM does.
type catcher struct {
	n        *numbers.Numbers
	w        io.Writer
	showTids func() bool
	begun    map[string]bool // the labels of programs whose beginning was written
}

func (c *catcher) write(o *tpvm.Output) {
	who := o.Label
	if tid, err := c.n.Number(context.Background(), o.Task); err == nil && tid != 0 {
		who = fmt.Sprintf("t%x", tid)
	} else if o.Kind == tpvm.OutputBegin {
		return // the beginning is written when the task is known
	}
	prefix := "[" + who + "] "
	if !c.showTids() {
		prefix = ""
	}
	if !c.begun[o.Label] && prefix != "" {
		fmt.Fprintf(c.w, "%sBEGIN\n", prefix)
	}
	c.begun[o.Label] = true
	switch o.Kind {
	case tpvm.OutputLine:
		fmt.Fprintf(c.w, "%s%s\n", prefix, o.Text)
	case tpvm.OutputEnd:
		if prefix != "" {
			fmt.Fprintf(c.w, "%sEOF\n", prefix)
		}
		delete(c.begun, o.Label)
	}
}
