// SPDX-License-Identifier: Apache-2.0

package search

import (
	"container/heap"
	"time"
)

// An alarm calls ring at a time. The alarms of a node are in a heap: a search of 10,000 nodes has
// as many, and each packet asks for the earliest.
type alarm struct {
	at    time.Time
	order uint64 // of two alarms for one time the older rings first, so that runs repeat
	index int    // in the heap, plus one; 0: not set
	ring  func(now time.Time)
}

// alarms are the alarms of a node, as a heap.
type alarms struct {
	heap []*alarm
	made uint64
}

func (a *alarms) Len() int { return len(a.heap) }
func (a *alarms) Less(i, j int) bool {
	x, y := a.heap[i], a.heap[j]
	if c := x.at.Compare(y.at); c != 0 {
		return c < 0
	}
	return x.order < y.order
}
func (a *alarms) Swap(i, j int) {
	a.heap[i], a.heap[j] = a.heap[j], a.heap[i]
	a.heap[i].index, a.heap[j].index = i+1, j+1
}
func (a *alarms) Push(x any) {
	a.heap = append(a.heap, x.(*alarm))
	x.(*alarm).index = len(a.heap)
}
func (a *alarms) Pop() any {
	last := len(a.heap) - 1
	x := a.heap[last]
	a.heap[last] = nil
	a.heap = a.heap[:last]
	x.index = 0
	return x
}

// set makes x ring at a time, in place of the time it had.
func (a *alarms) set(x *alarm, at time.Time) {
	a.stop(x)
	a.made++
	x.at, x.order = at, a.made
	heap.Push(a, x)
}

// stop unsets x.
func (a *alarms) stop(x *alarm) {
	if x.index > 0 {
		heap.Remove(a, x.index-1)
	}
}

// next returns the earliest time, or zero if no alarm is set.
func (a *alarms) next() time.Time {
	if len(a.heap) == 0 {
		return time.Time{}
	}
	return a.heap[0].at
}

// ring rings the alarms that are due.
func (a *alarms) ring(now time.Time) {
	for len(a.heap) > 0 && !now.Before(a.heap[0].at) {
		heap.Pop(a).(*alarm).ring(now)
	}
}
