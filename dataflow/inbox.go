// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl/dataflow/internal/frames"
	"github.com/rocl-go/rocl/dataflow/internal/plan"
	"github.com/rocl-go/rocl/dataflow/internal/sched"
)

// An inbox has the items that have come to a node. All channels of the node share it. Senders put
// items in under one lock. The consumer, which is the node's goroutine, takes out all that is
// there.
type inbox[T any] struct {
	name    string
	forward int // of the inputs, how many are forward channels
	inputs  []*input

	mu          sync.Mutex
	fresh, back queue[T]
	state       sched.Inputs // counted when items and ends come in
	asleep      bool         // the consumer waits for wake
	stopped     bool         // the run has ended
	isClosed    bool         // the consumer has ended: items are dropped
	dropped     uint64

	distant   int        // of the inputs, how many come from other groups
	reception *reception // of the node if all do, else nil
	r         *run

	wake      chan struct{}
	backReady atomic.Bool // back is not empty

	// The consumer's.
	freshNow, backNow cursor[T]
}

// An input is one input channel.
type input struct {
	from   int
	isBack bool
	index  int
	edge   *plan.Edge

	batches uint64 // guarded by mu of the inbox
	marks   []mark // for the oldest item; guarded by mu of the inbox

	// The consumer's.
	taken  uint64        // items that it has taken
	seen   atomic.Uint64 // of these, those that Stats sees: all when the consumer waits, and from the first Stats on
	asked  atomic.Bool   // Stats has been called
	told   atomic.Uint64 // of these, those of which the sender was told; others may read it
	grain  atomic.Uint64 // the sender is told after so many items
	isLazy atomic.Bool   // the sender need not be told when the consumer is about to sleep
	credit creditor

	samples samples // if the run has a tracer
}

// A creditor is told how many items the consumer has taken in all, and that it has ended.
type creditor interface {
	give(taken uint64)
	close()
}

// took notes that the consumer has taken an item.
func (i *input) took() {
	i.taken++
	if i.asked.Load() {
		i.seen.Store(i.taken)
	}
	if i.taken-i.told.Load() >= i.grain.Load() {
		i.tell()
	}
}

// tell tells the sender what the consumer has taken.
func (i *input) tell() {
	i.told.Store(i.taken)
	i.credit.give(i.taken)
}

// A queue has items of several channels in the order in which they came. Each span says from which
// channel the next items are. A span without items is the end of its channel.
type queue[T any] struct {
	items []T
	spans []span
}

type span struct{ input, n int }

// add adds items of one channel.
func (q *queue[T]) add(ch int, items []T) {
	q.items = append(q.items, items...)
	if k := len(q.spans) - 1; k >= 0 && q.spans[k].input == ch && q.spans[k].n > 0 {
		q.spans[k].n += len(items)
		return
	}
	q.spans = append(q.spans, span{ch, len(items)})
}

// A cursor is the place in a queue that the consumer has taken out.
type cursor[T any] struct {
	queue[T]
	span, at int
}

// next returns up to limit items of one channel. No items are the end of the channel.
func (c *cursor[T]) next(limit int) (ch int, items []T, ok bool) {
	if c.span == len(c.spans) {
		return 0, nil, false
	}
	s := &c.spans[c.span]
	n := min(s.n, limit)
	items = c.items[c.at : c.at+n]
	c.at += n
	if s.n -= n; s.n == 0 {
		c.span++
	}
	return s.input, items, true
}

// swap exchanges the queue that was used up for another.
func (c *cursor[T]) swap(q *queue[T]) {
	clear(c.items) // for the garbage collector
	c.items, c.spans = c.items[:0], c.spans[:0]
	c.queue, *q = *q, c.queue
	c.span, c.at = 0, 0
}

func newInbox[T any](n *plan.Node) *inbox[T] {
	in := &inbox[T]{name: n.Name, forward: len(n.In), wake: make(chan struct{}, 1)}
	for _, es := range [][]*plan.Edge{n.In, n.InBack} {
		for _, e := range es {
			in.inputs = append(in.inputs, &input{from: e.ToCh, isBack: e.IsBack, index: len(in.inputs), edge: e})
		}
	}
	in.state.Ch = make([]sched.Input, len(in.inputs))
	return in
}

// indexOf returns the index of an edge's input.
func (in *inbox[T]) indexOf(e *plan.Edge) int {
	if e.IsBack {
		return in.forward + e.ToCh
	}
	return e.ToCh
}

// accept sets who is told of what the consumer takes from an edge.
func (in *inbox[T]) accept(e *plan.Edge, c creditor, grain int) {
	i := in.inputs[in.indexOf(e)]
	i.credit = c
	i.grain.Store(uint64(max(grain, 1)))
}

// put adds items of an input, and reports whether that woke the consumer. It copies them and does
// not wait.
func (in *inbox[T]) put(ch int, items []T) (isWoken bool) {
	in.mu.Lock()
	in.state.Ch[ch].Items += uint64(len(items))
	in.inputs[ch].batches++
	switch {
	case in.isClosed:
		in.dropped += uint64(len(items))
		frames.Discard(items)
	case ch >= in.forward:
		in.back.add(ch, items)
		in.backReady.Store(true)
	default:
		in.fresh.add(ch, items)
	}
	return in.unlockAndWake()
}

// end adds the end of an input on which count items were sent.
func (in *inbox[T]) end(ch int, count uint64) error {
	in.mu.Lock()
	err := in.state.End(ch, count)
	if ch >= in.forward {
		in.back.spans = append(in.back.spans, span{ch, 0})
		in.backReady.Store(true)
	} else {
		in.fresh.spans = append(in.fresh.spans, span{ch, 0})
	}
	in.unlockAndWake()
	if err != nil {
		return fmt.Errorf("channel %d of %s: %w", ch, in.name, err)
	}
	return nil
}

// unlockAndWake releases mu, and wakes the consumer if it sleeps.
func (in *inbox[T]) unlockAndWake() (isWoken bool) {
	wake := in.asleep
	in.asleep = false
	in.mu.Unlock()
	if wake {
		in.wake <- struct{}{}
	}
	return wake
}

// stop ends the consumer's waits.
func (in *inbox[T]) stop() {
	in.mu.Lock()
	in.stopped = true
	in.unlockAndWake()
}

// next returns items of one input, and waits for them. No items are the input's end. If the run has
// been stopped, there is no input. Feedback comes first, and is looked for before each fresh item.
func (in *inbox[T]) next() (*input, []T) {
	limit := int(^uint(0) >> 1)
	hasBack := in.forward < len(in.inputs)
	if hasBack {
		limit = 1
	}
	for {
		if hasBack {
			if ch, items, ok := in.backNow.next(limit); ok {
				return in.inputs[ch], items
			}
			if in.backReady.Load() {
				in.mu.Lock()
				in.takeBackLocked()
				in.mu.Unlock()
				continue
			}
		}
		if ch, items, ok := in.freshNow.next(limit); ok {
			return in.inputs[ch], items
		}
		if !in.fill() {
			return nil, nil
		}
	}
}

// takeBackLocked takes out the feedback. mu must be held.
func (in *inbox[T]) takeBackLocked() {
	in.backNow.swap(&in.back)
	in.backReady.Store(false)
}

// fill takes out what has come, and waits for something. It reports false if the run has been
// stopped.
func (in *inbox[T]) fill() bool {
	for {
		in.mu.Lock()
		switch {
		case in.stopped:
			in.mu.Unlock()
			return false
		case len(in.back.spans) != 0:
			in.takeBackLocked()
			in.mu.Unlock()
			return true
		case len(in.fresh.spans) != 0:
			in.freshNow.swap(&in.fresh)
			in.mu.Unlock()
			return true
		}
		in.mu.Unlock()
		for _, i := range in.inputs {
			i.seen.Store(i.taken)
			if i.told.Load() != i.taken && !i.isLazy.Load() {
				i.tell()
			}
		}
		if in.reception != nil {
			if err := in.reception.wait(in.r.ctx, in.hasCome); err != nil {
				if in.r.ctx.Err() == nil {
					in.r.fail(nil, err)
				}
				return false
			}
			continue
		}
		in.r.push() // messages to other groups leave
		in.mu.Lock()
		in.asleep = !in.hasComeLocked()
		sleeps := in.asleep
		in.mu.Unlock()
		if sleeps {
			<-in.wake
		}
	}
}

// hasCome reports whether the consumer need not wait.
func (in *inbox[T]) hasCome() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.hasComeLocked()
}

// hasComeLocked is hasCome with mu held.
func (in *inbox[T]) hasComeLocked() bool {
	return in.stopped || len(in.back.spans) != 0 || len(in.fresh.spans) != 0
}

// close drops what comes from now on, and tells the senders. The consumer calls it as it ends.
func (in *inbox[T]) close() {
	in.drop()
	for _, i := range in.inputs {
		i.credit.close()
	}
}

// drop drops what waits, and what comes from now on.
func (in *inbox[T]) drop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.isClosed = true
	in.dropped += uint64(len(in.fresh.items) + len(in.back.items))
	for _, items := range [][]T{in.freshNow.items[in.freshNow.at:], in.backNow.items[in.backNow.at:], in.fresh.items, in.back.items} {
		frames.Discard(items)
	}
	in.fresh, in.back, in.freshNow, in.backNow = queue[T]{}, queue[T]{}, cursor[T]{}, cursor[T]{}
}
