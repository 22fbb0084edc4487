// SPDX-License-Identifier: Apache-2.0

package search

import (
	"container/heap"
	"time"
)

// An Alarm calls Ring at a time.
type Alarm struct {
	Ring  func(now time.Time)
	At    time.Time // changed by Alarms.Set only
	order uint64    // of two alarms for one time the older rings first, so that runs repeat
	index int       // in the heap, plus one; 0: not set
}

// Alarms are a heap of alarms: a search of 10,000 nodes has as many, and each packet asks for the
// earliest. The zero value has none.
type Alarms struct {
	heap byTime
	made uint64
}

// Set makes x ring at a time, in place of the time it had.
func (a *Alarms) Set(x *Alarm, at time.Time) {
	a.Stop(x)
	a.made++
	x.At, x.order = at, a.made
	heap.Push(&a.heap, x)
}

// Stop unsets x.
func (a *Alarms) Stop(x *Alarm) {
	if x.index > 0 {
		heap.Remove(&a.heap, x.index-1)
	}
}

// Next returns the earliest alarm, nil if none is set.
func (a *Alarms) Next() *Alarm {
	if len(a.heap) == 0 {
		return nil
	}
	return a.heap[0]
}

// byTime implements heap.Interface.
type byTime []*Alarm

func (h byTime) Len() int { return len(h) }
func (h byTime) Less(i, j int) bool {
	if c := h[i].At.Compare(h[j].At); c != 0 {
		return c < 0
	}
	return h[i].order < h[j].order
}
func (h byTime) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}
func (h *byTime) Push(x any) {
	*h = append(*h, x.(*Alarm))
	x.(*Alarm).index = len(*h)
}
func (h *byTime) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	x.index = 0
	return x
}
