// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
)

// Scheduler says which pool a stream serves next.
type Scheduler interface {
	// Next returns the index of the pool from which the stream is to take its next unit, as
	// [Pool.Ready] tells which have one. Where that pool has none, or there is no such index, the
	// stream takes a unit from the first pool that has one, so that a scheduler can order units but
	// cannot lose any. Several streams may have one scheduler only if
	// its Next may be called by several goroutines at a time.
	Next(pools []*Pool) int
}

type inOrder struct{}

// InOrder returns a scheduler that takes units from the first pool that has one. A pool gets nothing
// while those before it always have units.
func InOrder() Scheduler { return inOrder{} }

func (inOrder) Next([]*Pool) int { return -1 }

type roundRobin struct{ last atomic.Uint32 }

// RoundRobin returns a scheduler that takes a unit from each pool in turn.
func RoundRobin() Scheduler { return new(roundRobin) }

func (r *roundRobin) Next(pools []*Pool) int {
	last := int(r.last.Load())
	for i := range pools {
		k := (last + 1 + i) % len(pools)
		if pools[k].Ready() > 0 {
			r.last.Store(uint32(k))
			return k
		}
	}
	return -1
}

type weightedRandom struct{ weights []int }

// WeightedRandom returns a scheduler that chooses at random among the pools that have units. A pool
// with weight 2 is chosen twice as often as one with weight 1, which is the weight of pools beyond
// those given. A weight below 1 counts as 1, and one above 1,000,000 as that.
func WeightedRandom(weights ...int) Scheduler { return &weightedRandom{slices.Clone(weights)} }

func (w *weightedRandom) weight(i int) int {
	if i < len(w.weights) {
		return min(max(1, w.weights[i]), maxWeight)
	}
	return 1
}

func (w *weightedRandom) Next(pools []*Pool) int {
	chosen, sum := -1, int64(0)
	for i, p := range pools {
		if p.Ready() == 0 {
			continue
		}
		weight := int64(w.weight(i))
		sum += weight
		if rand.Int64N(sum) < weight {
			chosen = i
		}
	}
	return chosen
}

// describe returns what a [StreamConfig] has for a scheduler, of a stream with n pools.
func describe(s Scheduler, n int) (name string, weights []int) {
	switch s := s.(type) {
	case inOrder:
		return ScheduleInOrder, nil
	case *roundRobin:
		return ScheduleRoundRobin, nil
	case *weightedRandom:
		for i := range n {
			weights = append(weights, s.weight(i))
		}
		return ScheduleWeighted, weights
	}
	return ScheduleOther, nil
}
