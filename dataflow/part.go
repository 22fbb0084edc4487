// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dataflow/internal/plan"
)

// An Item is one input of a node. From is the number of the channel that it came on: a forward
// channel, or a feedback channel if Back is true.
type Item[T any] struct {
	Value T
	From  int
	Back  bool
}

// An Out sends the results of one node. It is for the goroutine that calls the node, and valid
// until the node has ended. Each call may wait, until ctx ends, for a consumer to take items.
type Out[T any] interface {
	// Send sends v on the forward channel that the policy chooses. It returns Done if every
	// consumer has ended, and fails with ErrChannel if the node has no forward channel, as the last
	// node of a ring.
	Send(ctx context.Context, v T) error
	// SendTo sends v on the forward channel ch. An item for a consumer that has ended is dropped.
	SendTo(ctx context.Context, ch int, v T) error
	// SendBack sends v on the feedback channel ch, and does not wait for the consumer. An item for
	// a consumer that has ended is dropped.
	SendBack(ctx context.Context, ch int, v T) error
	// Flush lets all batches leave.
	Flush(ctx context.Context) error
	// Channels returns how many channels the node sends on.
	Channels() (forward, back int)
}

// A Source sends the items of a stream. It returns nil or Done when the stream has ended.
type Source[T any] func(ctx context.Context, out Out[T]) error

// A Sink takes one item.
type Sink[T any] func(ctx context.Context, in Item[T]) error

// A Stage is called for one input at a time. It ends before its inputs have ended by returning
// [Done]; any other error ends the run. Optional methods are [Starter], [Ender], [Finisher] and
// io.Closer, whose Close is called when the node has ended, for whatever reason.
type Stage[I, O any] interface {
	Process(ctx context.Context, in Item[I], out Out[O]) error
}

// A Starter is a stage that is called before its first input. A stage of a ring needs that to
// begin.
type Starter[O any] interface {
	Start(ctx context.Context, out Out[O]) error
}

// An Ender is a stage that is called once for each input channel, after the channel's last item. It
// may return Done.
type Ender[O any] interface {
	InputEnded(ctx context.Context, from int, back bool, out Out[O]) error
}

// A Finisher is a stage that is called once when all its inputs have ended, or when it has returned
// Done. A stage that sums up sends its result then.
type Finisher[O any] interface {
	Finish(ctx context.Context, out Out[O]) error
}

// Func is a stage that is a function.
type Func[I, O any] func(ctx context.Context, in Item[I], out Out[O]) error

// Process calls f.
func (f Func[I, O]) Process(ctx context.Context, in Item[I], out Out[O]) error {
	return f(ctx, in, out)
}

// None is the input of a source and the output of a sink.
type None struct{}

// A Part is a piece of a graph, with inputs of type I and outputs of type O. It can be used once.
type Part[I, O any] struct{ b *block }

// A Node is a Part of any types, for [Graph.Group].
type Node interface{ part() *block }

func (p Part[I, O]) part() *block { return p.b }

// A block is what a Part refers to.
type block struct {
	plan.Block
	opts options
	body any // of a node: body[I, O]
	make func(r *run, n *plan.Node) node
	errs []error
}

// A body is the code of a node: a source or a stage.
type body[I, O any] struct {
	source Source[O]
	stage  Stage[I, O]
}

// From makes a source.
func From[O any](f Source[O], o ...Option) Part[None, O] {
	return leaf(body[None, O]{source: f}, given(f != nil, o))
}

// Do makes a node of a stage. Each node needs a stage of its own, unless the stage has no state.
func Do[I, O any](s Stage[I, O], o ...Option) Part[I, O] {
	f, isFunc := s.(Func[I, O])
	return leaf(body[I, O]{stage: s}, given(s != nil && (!isFunc || f != nil), o))
}

// To makes a sink.
func To[I any](f Sink[I], o ...Option) Part[I, None] {
	return leaf(body[I, None]{stage: sinkStage[I](f)}, given(f != nil, o))
}

// given returns the options of a node, and refuses the node if its code is not given.
func given(isGiven bool, os []Option) []Option {
	if isGiven {
		return os
	}
	return append(slices.Clip(os), func(o *options) {
		o.errs = append(o.errs, fmt.Errorf("%w: the code of node %q is nil", ErrGraph, o.name))
	})
}

// sinkStage is a sink as a stage.
type sinkStage[I any] func(ctx context.Context, in Item[I]) error

func (f sinkStage[I]) Process(ctx context.Context, in Item[I], _ Out[None]) error { return f(ctx, in) }

// leaf makes a node.
func leaf[I, O any](code body[I, O], os []Option) Part[I, O] { return leafOf(code, newOptions(os)) }

// leafOf makes a node with options.
func leafOf[I, O any](code body[I, O], o options) Part[I, O] {
	b := &block{opts: o, errs: o.errs}
	b.Block = plan.Block{Kind: plan.Leaf, Name: o.name, Choice: o.choice}
	setCode(b, code)
	if _, ok := b.opts.key.(func(O) uint64); b.opts.key != nil && !ok {
		b.errs = append(b.errs, fmt.Errorf("%w: ByKey has a %T for items of type %s", ErrGraph, b.opts.key, b.Out))
	}
	if _, ok := b.opts.codec.(rocl.Codec[O]); b.opts.codec != nil && !ok {
		b.errs = append(b.errs, fmt.Errorf("%w: Codec has a %T for items of type %s", ErrGraph, b.opts.codec, b.Out))
	}
	if b.opts.ordered != 0 {
		b.errs = append(b.errs, fmt.Errorf("%w: Ordered is an option of a Farm", ErrGraph))
	}
	b.Data = b
	return Part[I, O]{b}
}

// setCode sets what a node does, and so the types of its items.
func setCode[I, O any](b *block, code body[I, O]) {
	b.body, b.In, b.Out = code, typeName[I](), typeName[O]()
	b.make = func(r *run, n *plan.Node) node { return newNode(r, n, code) }
}

// typeName returns the name of an item's type, and nothing for None.
func typeName[T any]() string {
	t := reflect.TypeFor[T]()
	if t == reflect.TypeFor[None]() {
		return ""
	}
	return t.String()
}

// compose makes a block of parts.
func compose(kind plan.Kind, left int, os []Option, parts ...*block) *block {
	b := &block{opts: newOptions(os)}
	b.Block = plan.Block{Kind: kind, Left: left, Choice: b.opts.choice, Name: b.opts.name}
	b.errs = b.opts.errs
	for _, p := range parts {
		if p == nil {
			b.errs = append(b.errs, fmt.Errorf("%w: a Part was not made by this package", ErrGraph))
			continue
		}
		b.errs = append(b.errs, p.errs...)
		b.Parts = append(b.Parts, &p.Block)
	}
	b.Data = b
	return b
}

// Pipeline lets q process what p sends.
func Pipeline[A, B, C any](p Part[A, B], q Part[B, C]) Part[A, C] {
	return Part[A, C]{compose(plan.Pipe, 0, nil, p.b, q.b)}
}

// Pipeline3 is a pipeline of three parts.
func Pipeline3[A, B, C, D any](p Part[A, B], q Part[B, C], r Part[C, D]) Part[A, D] {
	return Part[A, D]{compose(plan.Pipe, 0, nil, p.b, q.b, r.b)}
}

// Pipeline4 is a pipeline of four parts.
func Pipeline4[A, B, C, D, E any](p Part[A, B], q Part[B, C], r Part[C, D], s Part[D, E]) Part[A, E] {
	return Part[A, E]{compose(plan.Pipe, 0, nil, p.b, q.b, r.b, s.b)}
}

// Farm makes n parts side by side. Each gets the items that the policy of the stage before, or that
// of the farm, chooses for it.
func Farm[I, O any](n int, worker func(i int) Part[I, O], o ...Option) Part[I, O] {
	parts := make([]*block, max(n, 0))
	for i := range parts {
		if worker != nil {
			parts[i] = worker(i).b
		}
	}
	b := compose(plan.Farm, 0, o, parts...)
	for _, p := range b.Parts {
		if p.Kind == plan.Leaf {
			p.Name = cmp.Or(p.Name, b.Name)
		}
	}
	if n < 1 {
		b.errs = append(b.errs, fmt.Errorf("%w: a farm of %d workers", ErrGraph, n))
	}
	if _, ok := b.opts.key.(func(I) uint64); b.opts.key != nil && !ok {
		b.errs = append(b.errs, fmt.Errorf("%w: ByKey has a %T for items of type %s", ErrGraph, b.opts.key, typeName[I]()))
	}
	if b.opts.ordered > 0 {
		return orderedFarm[I, O](b)
	}
	return Part[I, O]{b}
}

// AllToAll connects each part of left with each of right. The options say how left sends.
func AllToAll[I, M, O any](left []Part[I, M], right []Part[M, O], o ...Option) Part[I, O] {
	var parts []*block
	for _, p := range left {
		parts = append(parts, p.b)
	}
	for _, p := range right {
		parts = append(parts, p.b)
	}
	b := compose(plan.AllToAll, len(left), o, parts...)
	if len(left) == 0 || len(right) == 0 {
		b.errs = append(b.errs, fmt.Errorf("%w: AllToAll of %d and %d parts", ErrGraph, len(left), len(right)))
	}
	if _, ok := b.opts.key.(func(M) uint64); b.opts.key != nil && !ok {
		b.errs = append(b.errs, fmt.Errorf("%w: ByKey has a %T for items of type %s", ErrGraph, b.opts.key, typeName[M]()))
	}
	return Part[I, O]{b}
}

// Loop connects the outputs of p back to its inputs, with feedback channels. Otherwise the loop is
// like p.
func Loop[T any](p Part[T, T]) Part[T, T] { return Part[T, T]{compose(plan.Loop, 0, nil, p.b)} }

// Ring is a loop that is connected with nothing else. Its last nodes have no forward channels, so
// they send by SendBack. Its first nodes begin as Starters.
func Ring[T any](p Part[T, T]) Part[None, None] {
	return Part[None, None]{compose(plan.Ring, 0, nil, p.b)}
}

// Fuse lets one goroutine call both nodes: what p sends, q processes at once. p and q must be
// single nodes, or fused. The channels of the node are the inputs of p and the outputs of q. The
// node has the name of q, or else that of p. If q returns Done, its outputs end, and p goes on
// until its own end.
func Fuse[A, B, C any](p Part[A, B], q Part[B, C]) Part[A, C] {
	var pb body[A, B]
	var qb body[B, C]
	okP, okQ := false, false
	if p.b != nil && q.b != nil {
		pb, okP = p.b.body.(body[A, B])
		qb, okQ = q.b.body.(body[B, C])
	}
	if !okP || !okQ || qb.stage == nil {
		b := compose(plan.Pipe, 0, nil, p.b, q.b)
		b.errs = append(b.errs, fmt.Errorf("%w: Fuse needs two single nodes, the second with an input", ErrGraph))
		return Part[A, C]{b}
	}
	code := body[A, C]{stage: &fused[A, B, C]{first: pb.stage, second: qb.stage}}
	if pb.source != nil {
		code = body[A, C]{source: func(ctx context.Context, out Out[C]) error {
			m := &middle[B, C]{second: qb.stage, out: out}
			err := m.start(ctx)
			if err == nil {
				err = pb.source(ctx, m)
			}
			if err == nil || errors.Is(err, Done) {
				err = m.end(ctx)
			}
			return errors.Join(err, closeStage(qb.stage))
		}}
	}
	o := q.b.opts
	if o.name == "" {
		o.name = p.b.opts.name
	}
	f := leafOf(code, o)
	f.b.errs = append(f.b.errs, errors.Join(p.b.errs...), errors.Join(q.b.errs...))
	return f
}

// fused is a stage of two stages.
type fused[A, B, C any] struct {
	first  Stage[A, B]
	second Stage[B, C]
	mid    middle[B, C]
}

// An ending is an Out whose channels can be ended.
type ending interface {
	finish(ctx context.Context) error
}

func (f *fused[A, B, C]) bind(r *run, n *plan.Node) {
	for _, s := range []any{f.first, f.second} {
		if b, ok := s.(binder); ok {
			b.bind(r, n)
		}
	}
}

func (f *fused[A, B, C]) carry(at **Visit, span *map[string]string) bool {
	first, second := carry(f.first, at, span), carry(f.second, at, span)
	return first || second
}

func (f *fused[A, B, C]) sendsLater() bool { return sendsLater(f.first) || sendsLater(f.second) }

func (f *fused[A, B, C]) Start(ctx context.Context, out Out[C]) error {
	f.mid = middle[B, C]{second: f.second, out: out}
	if err := f.mid.start(ctx); err != nil {
		return err
	}
	if s, ok := f.first.(Starter[B]); ok {
		return s.Start(ctx, &f.mid)
	}
	return nil
}

func (f *fused[A, B, C]) Process(ctx context.Context, in Item[A], _ Out[C]) error {
	return f.first.Process(ctx, in, &f.mid)
}

func (f *fused[A, B, C]) InputEnded(ctx context.Context, from int, back bool, _ Out[C]) error {
	if s, ok := f.first.(Ender[B]); ok {
		return s.InputEnded(ctx, from, back, &f.mid)
	}
	return nil
}

func (f *fused[A, B, C]) Finish(ctx context.Context, _ Out[C]) error {
	if s, ok := f.first.(Finisher[B]); ok {
		if err := s.Finish(ctx, &f.mid); err != nil {
			return err
		}
	}
	return f.mid.end(ctx)
}

func (f *fused[A, B, C]) Close() error {
	return errors.Join(closeStage(f.first), closeStage(f.second))
}

// closeStage closes a stage that can be closed.
func closeStage(s any) error {
	if c, ok := s.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// middle is the Out of the first of two fused stages. It calls the second.
type middle[B, C any] struct {
	second Stage[B, C]
	out    Out[C]
	ended  bool
}

func (m *middle[B, C]) start(ctx context.Context) error {
	if s, ok := m.second.(Starter[C]); ok {
		return m.check(ctx, s.Start(ctx, m.out))
	}
	return nil
}

// check ends the outputs of the second stage if it has returned Done.
func (m *middle[B, C]) check(ctx context.Context, err error) error {
	if !errors.Is(err, Done) {
		return err
	}
	m.ended = true
	return m.out.(ending).finish(ctx)
}

// end tells the second stage that its input has ended.
func (m *middle[B, C]) end(ctx context.Context) error {
	if m.ended {
		return nil
	}
	m.ended = true
	if s, ok := m.second.(Ender[C]); ok {
		if err := s.InputEnded(ctx, 0, false, m.out); err != nil && !errors.Is(err, Done) {
			return err
		}
	}
	if s, ok := m.second.(Finisher[C]); ok {
		if err := s.Finish(ctx, m.out); err != nil {
			return err
		}
	}
	return m.out.(ending).finish(ctx)
}

// finish is end, for a second stage that is fused itself.
func (m *middle[B, C]) finish(ctx context.Context) error { return m.end(ctx) }

func (m *middle[B, C]) Send(ctx context.Context, v B) error {
	if m.ended {
		return Done
	}
	return m.check(ctx, m.second.Process(ctx, Item[B]{Value: v}, m.out))
}

func (m *middle[B, C]) SendTo(ctx context.Context, ch int, v B) error {
	if ch != 0 {
		return fmt.Errorf("%w: forward channel %d of 1", ErrChannel, ch)
	}
	if err := m.Send(ctx, v); !errors.Is(err, Done) {
		return err
	}
	return nil
}

func (m *middle[B, C]) SendBack(_ context.Context, ch int, _ B) error {
	return fmt.Errorf("%w: feedback channel %d of 0", ErrChannel, ch)
}

func (m *middle[B, C]) Flush(ctx context.Context) error {
	if m.ended {
		return nil
	}
	return m.out.Flush(ctx)
}

func (m *middle[B, C]) Channels() (forward, back int) { return 1, 0 }
