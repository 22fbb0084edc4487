// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"context"
	"fmt"
	"iter"
	"strconv"

	"github.com/rocl-go/rocl"
)

// TaskInfo describes a task or a thread of the virtual machine.
type TaskInfo struct {
	ID       TID
	Parent   TID // zero: started by hand
	Name     string
	Host     string
	Node     string // the number of the host's node
	PID      int    // the number of a task's process; 0: a thread
	IsThread bool
}

// Tasks returns the tasks and threads of the virtual machine.
func (t *Thread) Tasks(ctx context.Context) iter.Seq2[TaskInfo, error] {
	return t.list(ctx, typeTask, typeThread)
}

// Programs returns the programs that were started and have not enrolled. Each has the identifier of
// its start; see [Program.ID].
func (t *Thread) Programs(ctx context.Context) iter.Seq2[TaskInfo, error] {
	return t.list(ctx, typeStart)
}

// list yields the resources of these types in the virtual machine.
func (t *Thread) list(ctx context.Context, types ...string) iter.Seq2[TaskInfo, error] {
	return func(yield func(TaskInfo, error) bool) {
		for _, typ := range types {
			for f, err := range t.task.c.FindAll(ctx, t.task.match(typ, nil)) {
				if err != nil {
					if !yield(TaskInfo{}, fmt.Errorf("tpvm: list the tasks: %w", err)) {
						return
					}
					continue
				}
				if !yield(taskInfo(f, typ), nil) {
					return
				}
			}
		}
	}
}

func taskInfo(f rocl.Found, typ string) TaskInfo {
	i := TaskInfo{ID: f.ID, Name: attr(f, attrName), Host: attr(f, attrHost), Node: attr(f, attrNode), IsThread: typ == typeThread}
	i.Parent, _ = rocl.ParseGID(attr(f, attrParent))
	i.PID, _ = strconv.Atoi(attr(f, attrPID))
	return i
}

// attr returns the value of an attribute, or "" if there is none.
func attr(f rocl.Found, name string) string {
	v, _ := f.Attrs.Get(name)
	return string(v)
}
