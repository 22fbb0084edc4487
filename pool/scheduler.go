// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
)

// Scheduler chooses the pool that a stream serves next.
type Scheduler interface {
	// Next returns the index of the pool from which the stream takes its next unit. [Pool.Ready]
	// tells which pools have units. If the chosen pool has none, or the index is out of range, the
	// stream takes a unit from the first pool that has one. So a scheduler can order units but
	// cannot lose any. Several streams may share a scheduler only if several goroutines may call
	// its Next at a time.
	Next(pools []*Pool) int
}

type inOrder struct{}

// InOrder returns a scheduler that takes units from the first pool that has one. A pool is not
// served while those before it always have units.
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
// with weight 2 is chosen twice as often as a pool with weight 1. Pools without a given weight have
// weight 1. A weight below 1 counts as 1, and a weight above 1,000,000 counts as 1,000,000.
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

// describe returns the name and the weights by which a [StreamConfig] with n pools describes a
// scheduler.
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
