// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl/codec"
)

// A Visit is a sampled item at a node.
type Visit struct {
	Graph, Run, Group, Node string // Group is empty without groups
	IsSource                bool   // the node sends the item; otherwise it processes the item
	From                    int    // as in Item
	Back                    bool
	// Meta is what the sender's span carries; at a source it is nil. Before the tracer calls next,
	// it replaces Meta by a map of what its own span carries. The items that the node sends
	// meanwhile take that with them, also to other groups. If Meta is nil, they are not sampled. A
	// map in Meta must not be changed.
	Meta map[string]string
}

// A Tracer follows sampled items. It is called for each visit, and calls next, which lets the node
// process the item, or send it if the node is a source. The node gets the ctx that next is given.
// The tracer returns what next returns. Several goroutines may call it at once.
type Tracer func(ctx context.Context, v *Visit, next func(ctx context.Context) error) error

// Trace lets Run follow one item in every that each source of this process sends, beginning with
// the first. t is called for such an item at its source, and at each node that it comes to. What a
// node sends while it processes a sampled item is sampled too, in any group that has a tracer. What
// it sends at another time, such as at the end of its inputs, is not. The two nodes that [Ordered]
// adds carry spans on: the first has visits of its own. For [Elastic] a visit lasts until the
// worker has replied. Package otelflow has a tracer for OpenTelemetry.
func Trace(t Tracer, every int) RunOption {
	return func(o *runOptions) { o.tracer, o.oneIn = t, max(every, 1) }
}

// visit calls the tracer.
func (r *run) visit(ctx context.Context, v *Visit, next func(ctx context.Context) error) error {
	v.Graph, v.Run, v.Group = r.plan.Name, r.cfg.Run, r.group
	return r.tracer(ctx, v, next)
}

// A sample says that an item of a channel is sampled. It goes before the item.
type sample struct {
	Item uint64 // its number on the channel, from 0
	Meta map[string]string
}

// samples are the sampled items of one input to which the node has yet to come.
type samples struct {
	seen uint64        // items to which the node has come; the node's
	next atomic.Uint64 // the number of the first sample, from 1; 0 if there is none

	mu    sync.Mutex
	queue []sample
}

// add adds a sample. They must come in the order of their items.
func (s *samples) add(v sample) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.queue); n != 0 && v.Item <= s.queue[n-1].Item {
		return fmt.Errorf("dataflow: the span of item %d comes behind that of item %d", v.Item, s.queue[n-1].Item)
	}
	s.queue = append(s.queue, v)
	s.next.Store(s.queue[0].Item + 1)
	return nil
}

// take counts an item, and reports whether it is sampled.
func (s *samples) take() (meta map[string]string, ok bool) {
	if s.seen++; s.seen != s.next.Load() {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	meta, s.queue = s.queue[0].Meta, s.queue[1:]
	if len(s.queue) == 0 {
		s.next.Store(0)
	} else {
		s.next.Store(s.queue[0].Item + 1)
	}
	return meta, true
}

// A sampling is the Out of a source, of whose items some are sampled.
type sampling[T any] struct {
	*outbox[T]
	name string
	sent int
}

// isNext counts an item, and reports whether it is sampled.
func (s *sampling[T]) isNext() bool {
	s.sent++
	return (s.sent-1)%s.r.oneIn == 0
}

func (s *sampling[T]) visit(ctx context.Context, send func(ctx context.Context) error) error {
	return s.carrying(ctx, &Visit{Node: s.name, IsSource: true}, send)
}

func (s *sampling[T]) Send(ctx context.Context, v T) error {
	if !s.isNext() {
		return s.outbox.Send(ctx, v)
	}
	return s.visit(ctx, func(ctx context.Context) error { return s.outbox.Send(ctx, v) })
}

func (s *sampling[T]) SendTo(ctx context.Context, ch int, v T) error {
	if !s.isNext() {
		return s.outbox.SendTo(ctx, ch, v)
	}
	return s.visit(ctx, func(ctx context.Context) error { return s.outbox.SendTo(ctx, ch, v) })
}

func (s *sampling[T]) SendBack(ctx context.Context, ch int, v T) error {
	if !s.isNext() {
		return s.outbox.SendBack(ctx, ch, v)
	}
	return s.visit(ctx, func(ctx context.Context) error { return s.outbox.SendBack(ctx, ch, v) })
}

// carrying lets the items that f sends carry the span of a visit.
func (o *outbox[T]) carrying(ctx context.Context, v *Visit, f func(ctx context.Context) error) error {
	return o.r.visit(ctx, v, func(ctx context.Context) error {
		o.span = v.Meta
		defer func() { o.span = nil }()
		return f(ctx)
	})
}

// sample tells the consumer of a channel that the next item carries the span.
func (o *outbox[T]) sample(out *output[T]) error {
	if out.local != nil {
		return out.local.inputs[out.ch].samples.add(sample{out.sent, o.span})
	}
	return out.wire.sample(sample{out.sent, o.span})
}

// A carrier is a stage that sends the outputs of an item later than in Process, so that it carries
// the spans on itself. at is the visit in Process, or nil. The outputs carry what is in span.
type carrier interface {
	// carry reports whether the stage is such a carrier: a fused stage may be one.
	carry(at **Visit, span *map[string]string) bool
}

// carry calls the carry of a stage that has one.
func carry(stage any, at **Visit, span *map[string]string) bool {
	c, ok := stage.(carrier)
	return ok && c.carry(at, span)
}

// A tracedStage calls a stage, and for sampled items the tracer.
type tracedStage[I, O any] struct {
	Stage[I, O]
	n         *typedNode[I, O]
	isCarrier bool
	at        *Visit // for a carrier
}

func (n *typedNode[I, O]) traced() Stage[I, O] {
	s := &tracedStage[I, O]{Stage: n.code.stage, n: n}
	s.isCarrier = carry(s.Stage, &s.at, &n.out.span)
	return s
}

func (s *tracedStage[I, O]) Process(ctx context.Context, in Item[I], out Out[O]) error {
	ch := in.From
	if in.Back {
		ch += s.n.in.forward
	}
	meta, ok := s.n.in.inputs[ch].samples.take()
	s.at = nil
	if !ok {
		return s.Stage.Process(ctx, in, out)
	}
	v := &Visit{Node: s.n.in.name, From: in.From, Back: in.Back, Meta: meta}
	if s.isCarrier {
		s.at = v
		return s.Stage.Process(ctx, in, out)
	}
	return s.n.out.carrying(ctx, v, func(ctx context.Context) error { return s.Stage.Process(ctx, in, out) })
}

// sample implements wire.
func (w *remoteWire[T]) sample(s sample) error {
	p, err := codec.Append(nil, &s)
	if err != nil {
		return err
	}
	return w.tell(kindSample, p)
}

// handleSample notes what another group says of an item that it will send.
func (m *remote) handleSample(x *remoteEdge, p []byte) error {
	var s sample
	if err := codec.Decode(p, &s); err != nil {
		return fmt.Errorf("decode the span of an item: %w", err)
	}
	if s.Item < x.items.Load() {
		return fmt.Errorf("dataflow: the span of item %d comes behind the item", s.Item)
	}
	if m.r.tracer == nil {
		return nil
	}
	return x.samples.add(s)
}
