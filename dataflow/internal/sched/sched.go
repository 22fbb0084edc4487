// SPDX-License-Identifier: Apache-2.0

// Package sched decides for one node on which channel an item leaves, and when its inputs have
// ended. Its types have no goroutines, no locks and no items.
package sched

import (
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/dataflow/internal/plan"
)

// ErrCount is returned by Inputs.End if items are missing, or if a channel ends twice.
var ErrCount = errors.New("dataflow: items of a channel are missing")

// What Choose returns if no channel can take an item.
const (
	Wait   = -1 // until a consumer takes items
	Closed = -2 // each consumer has ended
)

// A Channel is an output channel.
type Channel struct {
	Sent     uint64 // items, with those of an open batch
	Taken    uint64 // of these, the consumer has taken; not more than it really has
	Window   uint64 // how many may be sent and not taken
	IsClosed bool   // the consumer has ended
	IsLocal  bool
}

// HasRoom reports whether the channel can take an item.
func (c *Channel) HasRoom() bool { return c.Sent-c.Taken < c.Window }

// Outputs are the forward channels of a node.
type Outputs struct {
	Ch      []Channel
	Choice  plan.Choice
	Current int // the channel whose batch is open and gets the next item; -1 if there is none
	next    int // where a search begins
}

// Choose returns the channel for the next item, or Wait or Closed. The caller counts the item in
// Sent. Choose is for the choices that ask neither for a key nor for all channels.
func (o *Outputs) Choose() int {
	if len(o.Ch) == 1 {
		return verdict(&o.Ch[0], 0)
	}
	if c := o.Current; c >= 0 && !o.Ch[c].IsClosed && o.Ch[c].HasRoom() {
		return c
	}
	if o.Choice == plan.RoundRobin {
		return o.inTurn()
	}
	best := o.least(o.Choice == plan.PreferLocal)
	if best == Wait || best == Closed {
		best = o.least(false)
	}
	if best >= 0 {
		o.next = (best + 1) % len(o.Ch)
	}
	return best
}

func verdict(c *Channel, i int) int {
	switch {
	case c.IsClosed:
		return Closed
	case !c.HasRoom():
		return Wait
	}
	return i
}

// inTurn returns the next channel whose consumer has not ended.
func (o *Outputs) inTurn() int {
	for range o.Ch {
		c := o.next
		v := verdict(&o.Ch[c], c)
		if v == Wait {
			return Wait
		}
		o.next = (c + 1) % len(o.Ch)
		if v != Closed {
			return v
		}
	}
	return Closed
}

// least returns the channel with the fewest items under way that has room. Among equals it takes
// the channel after the last choice.
func (o *Outputs) least(localOnly bool) int {
	best, fewest, result := -1, uint64(0), Closed
	for i := range o.Ch {
		k := o.next + i
		if k >= len(o.Ch) {
			k -= len(o.Ch)
		}
		c := &o.Ch[k]
		if c.IsClosed || localOnly && !c.IsLocal {
			continue
		}
		result = Wait
		if n := c.Sent - c.Taken; n < c.Window && (best < 0 || n < fewest) {
			best, fewest = k, n
		}
	}
	if best >= 0 {
		return best
	}
	return result
}

// An Input is an input channel.
type Input struct {
	Items uint64 // that have come
	Ended bool
}

// Inputs are the input channels of a node, forward and feedback.
type Inputs struct {
	Ch    []Input
	ended int
}

// End notes the end of a channel on which count items were sent. It fails with ErrCount if another
// number has come.
func (in *Inputs) End(ch int, count uint64) error {
	c := &in.Ch[ch]
	switch {
	case c.Ended:
		return fmt.Errorf("%w: the channel has ended twice", ErrCount)
	case c.Items != count:
		return fmt.Errorf("%w: %d came of %d", ErrCount, c.Items, count)
	}
	c.Ended = true
	in.ended++
	return nil
}

// AllEnded reports whether each channel has ended.
func (in *Inputs) AllEnded() bool { return in.ended == len(in.Ch) }
