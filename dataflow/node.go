// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/rocl-go/rocl/dataflow/internal/plan"
)

// A node is a node of a run, whatever its types.
type node interface {
	run(ctx context.Context) error
	receiver() receiver
	sender() sender
}

// A receiver is the inbox of a node.
type receiver interface {
	// accept sets who is told of what the node takes from an edge.
	accept(e *plan.Edge, c creditor, grain int)
	// acceptRemote prepares an edge that enters the group.
	acceptRemote(e *plan.Edge, r *remote)
	stop()
	// stats fills in the figures of the node's input channels.
	stats(es []EdgeStats)
}

// A sender is the outbox of a node.
type sender interface {
	// connect connects an edge within the group.
	connect(e *plan.Edge, to receiver)
	// connectRemote prepares an edge that leaves the group.
	connectRemote(e *plan.Edge, r *remote)
	// stats fills in the figures of the node's output channels.
	stats(es []EdgeStats)
}

// typedNode is a node with inputs of type I and outputs of type O.
type typedNode[I, O any] struct {
	code body[I, O]
	in   *inbox[I]
	out  *outbox[O]
	r    *run
}

func newNode[I, O any](r *run, n *plan.Node, code body[I, O]) node {
	if b, ok := code.stage.(binder); ok {
		b.bind(r, n)
	}
	in := newInbox[I](n)
	in.r = r
	return &typedNode[I, O]{code: code, in: in, out: newOutbox[O](r, n), r: r}
}

func (n *typedNode[I, O]) receiver() receiver { return n.in }
func (n *typedNode[I, O]) sender() sender     { return n.out }

// run calls the node until it has ended.
func (n *typedNode[I, O]) run(ctx context.Context) (err error) {
	defer n.in.drop()
	defer n.out.abandon()
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v\n%s", ErrPanic, v, debug.Stack())
		}
	}()
	if n.code.source != nil {
		var out Out[O] = n.out
		if n.r.tracer != nil {
			out = &sampling[O]{outbox: n.out, name: n.in.name}
		}
		err = n.code.source(ctx, out)
	} else {
		err = n.process(ctx)
	}
	if err != nil && !errors.Is(err, Done) {
		return err
	}
	if err := n.out.finish(ctx); err != nil {
		return err
	}
	n.in.close()
	return nil
}

// process calls a stage until its inputs have ended or it is done.
func (n *typedNode[I, O]) process(ctx context.Context) (err error) {
	defer func() {
		if cerr := closeStage(n.code.stage); err == nil || errors.Is(err, Done) {
			err = cerr
		}
	}()
	if err = n.inputs(ctx); err != nil && !errors.Is(err, Done) {
		return err
	}
	if s, ok := n.code.stage.(Finisher[O]); ok {
		return s.Finish(ctx, n.out)
	}
	return nil
}

// inputs gives the stage all its inputs.
func (n *typedNode[I, O]) inputs(ctx context.Context) error {
	var out Out[O] = n.out
	stage := n.code.stage
	h, holds := stage.(holder)
	if holds {
		h.hold(func(from int) { n.in.inputs[from].took() }, n.in.forward)
	}
	hasOrigins := !sendsLater(stage)
	called := stage
	if n.r.tracer != nil {
		called = n.traced()
	}
	if s, ok := stage.(Starter[O]); ok {
		if err := s.Start(ctx, out); err != nil {
			return err
		}
	}
	ender, _ := stage.(Ender[O])
	for ended := 0; ended < len(n.in.inputs); {
		in, items := n.in.next()
		if in == nil {
			return context.Cause(n.r.ctx)
		}
		if hasOrigins {
			n.out.origin = uint16(in.index + 1)
		}
		for i := range items {
			if !holds {
				in.took()
			}
			if err := called.Process(ctx, Item[I]{items[i], in.from, in.isBack}, out); err != nil {
				return err
			}
		}
		if len(items) != 0 {
			continue
		}
		ended++
		if hasOrigins {
			n.out.origin = 0
		}
		if ender != nil {
			if err := ender.InputEnded(ctx, in.from, in.isBack, out); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendsLater reports whether a stage sends what it makes of an item later than in Process, perhaps
// in another goroutine. A fused stage may be one.
func sendsLater(stage any) bool {
	s, ok := stage.(interface{ sendsLater() bool })
	return ok && s.sendsLater()
}
