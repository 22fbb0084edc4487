// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/dataflow/internal/plan"
)

// An ordered farm has a node before the workers, which numbers the inputs, and one behind them,
// which sends the outputs in the order of these numbers:
//
//	split ─► workers ─► merge
//
// The merge keeps outputs whose turn has not come, and the worker gets credit for an output when it
// leaves the merge. So a worker can be ahead of the others by the window of its channels and no
// more. The output whose turn it is always comes through: whatever the same worker has sent before
// it has a smaller number, and has left.

// numbered is an item on its way through an ordered farm.
type numbered[T any] struct {
	Seq   uint64 // the number of the input
	Kind  uint8
	Value T
}

// The kinds of numbered items.
const (
	more  = iota // the input has further outputs
	last         // the input has no further output
	empty        // no item: the input has no output, or no further one
	loose        // the item belongs to no input
)

// numberedCodec encodes numbered items whose values have a codec of their own.
type numberedCodec[T any] struct{ own rocl.Codec[T] }

func (c numberedCodec[T]) Append(p []byte, v numbered[T]) ([]byte, error) {
	p = append(binary.LittleEndian.AppendUint64(p, v.Seq), v.Kind)
	if v.Kind == empty {
		return p, nil
	}
	return c.own.Append(p, v.Value)
}

func (c numberedCodec[T]) Decode(p []byte) (v numbered[T], err error) {
	if len(p) < 9 {
		return v, fmt.Errorf("%w: an item of an ordered farm is cut off", codec.ErrValue)
	}
	v.Seq, v.Kind = binary.LittleEndian.Uint64(p), p[8]
	if v.Kind != empty {
		v.Value, err = c.own.Decode(p[9:])
	}
	return v, err
}

// numberedOf returns the codec of numbered items for that of their values. Both may be nil.
func numberedOf[T any](own any) any {
	if c, ok := own.(rocl.Codec[T]); ok {
		return rocl.Codec[numbered[T]](numberedCodec[T]{c})
	}
	return nil
}

// orderedFarm makes a farm whose outputs leave in the order of its inputs.
func orderedFarm[I, O any](farm *block) Part[I, O] {
	errs, o, n := farm.errs, farm.opts, max(len(farm.Parts), 1)
	if o.choice == plan.Broadcast || o.choice == plan.OneToOne {
		errs = append(errs, fmt.Errorf("%w: an ordered farm cannot have the policy %v", ErrGraph, o.choice))
	}
	if _, ok := o.codec.(rocl.Codec[I]); o.codec != nil && !ok {
		errs = append(errs, fmt.Errorf("%w: the Codec of a farm has a %T for items of type %s", ErrGraph, o.codec, typeName[I]()))
	}
	each := max(1, (o.ordered/n-1)/2)                   // the window of each channel
	behind := max(1, o.ordered/n-1-max(each, o.demand)) // of a channel to the merge
	for _, p := range farm.Parts {
		b := p.Data.(*block)
		code, ok := b.body.(body[I, O])
		if !ok || code.stage == nil {
			errs = append(errs, fmt.Errorf("%w: the workers of an ordered farm must be single stages; see Fuse", ErrGraph))
			continue
		}
		b.opts.codec, b.opts.window = numberedOf[O](b.opts.codec), behind
		setCode(b, body[numbered[I], numbered[O]]{stage: &numberedStage[I, O]{stage: code.stage}})
	}
	so := options{choice: o.choice, demand: o.demand, window: each, batch: o.batch, codec: numberedOf[I](o.codec)}
	var mo options
	if o.name != "" {
		so.name, mo.name = o.name+"-split", o.name+"-merge"
	}
	if f, ok := o.key.(func(I) uint64); ok {
		so.key = func(v numbered[I]) uint64 { return f(v.Value) }
	}
	split := leafOf(body[I, numbered[I]]{stage: &splitter[I]{}}, so)
	merge := leafOf(body[numbered[O], O]{stage: &merger[O]{}}, mo)
	split.b.Joins, merge.b.Joins = plan.Before, plan.Behind
	workers := compose(plan.Farm, 0, nil)
	workers.Parts = farm.Parts
	all := compose(plan.Pipe, 0, nil, split.b, workers, merge.b)
	all.errs = append(all.errs, errs...)
	return Part[I, O]{all}
}

// A splitter numbers items.
type splitter[T any] struct{ next uint64 }

func (s *splitter[T]) Start(context.Context, Out[numbered[T]]) error {
	s.next = 0
	return nil
}

func (s *splitter[T]) Process(ctx context.Context, in Item[T], out Out[numbered[T]]) error {
	s.next++
	return out.Send(ctx, numbered[T]{Seq: s.next - 1, Value: in.Value})
}

// A numberedStage is a worker of an ordered farm. It gives each output the number of the input.
type numberedStage[I, O any] struct {
	stage Stage[I, O]
	out   numberedOut[O]
}

// begin sets the Out.
func (w *numberedStage[I, O]) begin(out Out[numbered[O]], seq uint64, isLoose bool) {
	w.out.out, w.out.seq, w.out.isLoose = out, seq, isLoose
}

func (w *numberedStage[I, O]) Start(ctx context.Context, out Out[numbered[O]]) error {
	w.out = numberedOut[O]{}
	w.begin(out, 0, true)
	if s, ok := w.stage.(Starter[O]); ok {
		return s.Start(ctx, &w.out)
	}
	return nil
}

func (w *numberedStage[I, O]) Process(ctx context.Context, in Item[numbered[I]], out Out[numbered[O]]) error {
	w.begin(out, in.Value.Seq, false)
	err := w.stage.Process(ctx, Item[I]{in.Value.Value, in.From, in.Back}, &w.out)
	if err != nil && !errors.Is(err, Done) {
		return err
	}
	return errors.Join(w.out.endInput(ctx), err)
}

func (w *numberedStage[I, O]) InputEnded(ctx context.Context, from int, back bool, out Out[numbered[O]]) error {
	w.begin(out, 0, true)
	if s, ok := w.stage.(Ender[O]); ok {
		return s.InputEnded(ctx, from, back, &w.out)
	}
	return nil
}

func (w *numberedStage[I, O]) Finish(ctx context.Context, out Out[numbered[O]]) error {
	w.begin(out, 0, true)
	if s, ok := w.stage.(Finisher[O]); ok {
		return s.Finish(ctx, &w.out)
	}
	return nil
}

func (w *numberedStage[I, O]) Close() error { return closeStage(w.stage) }

// A numberedOut is the Out of a worker of an ordered farm. It keeps an output until it knows
// whether the input has a further one.
type numberedOut[T any] struct {
	out        Out[numbered[T]]
	seq        uint64
	isLoose    bool
	kept       T
	hasKept    bool
	isFinished bool // by a fused stage that is done
}

// endInput sends the last output of an input.
func (o *numberedOut[T]) endInput(ctx context.Context) error {
	v := numbered[T]{Seq: o.seq, Kind: empty}
	if o.hasKept {
		v.Kind, v.Value = last, o.kept
	}
	var none T
	o.kept, o.hasKept = none, false
	return o.out.Send(ctx, v)
}

func (o *numberedOut[T]) Send(ctx context.Context, v T) error {
	switch {
	case o.isFinished:
		return Done
	case o.isLoose:
		return o.out.Send(ctx, numbered[T]{Kind: loose, Value: v})
	case !o.hasKept:
		o.kept, o.hasKept = v, true
		return nil
	}
	v, o.kept = o.kept, v
	return o.out.Send(ctx, numbered[T]{Seq: o.seq, Kind: more, Value: v})
}

func (o *numberedOut[T]) SendTo(ctx context.Context, ch int, v T) error {
	if ch != 0 {
		return fmt.Errorf("%w: forward channel %d of 1", ErrChannel, ch)
	}
	return o.Send(ctx, v)
}

func (o *numberedOut[T]) SendBack(_ context.Context, ch int, _ T) error {
	return fmt.Errorf("%w: feedback channel %d of 0", ErrChannel, ch)
}

func (o *numberedOut[T]) Flush(ctx context.Context) error { return o.out.Flush(ctx) }

func (o *numberedOut[T]) Channels() (forward, back int) { return 1, 0 }

// finish ends the outputs of a fused stage. The inputs that follow have no outputs.
func (o *numberedOut[T]) finish(context.Context) error {
	o.isFinished = true
	return nil
}

// A holder is a stage that decides itself when an input counts as taken. It calls taken once for
// each. hold is called before Start, and also says how many forward input channels there are.
type holder interface {
	hold(taken func(from int), channels int)
}

// A merger sends numbered items in order.
type merger[T any] struct {
	taken func(from int)
	next  uint64          // the number whose turn it is
	from  map[uint64]int  // the channel on which the items of a number come
	kept  [][]numbered[T] // of each channel, the items whose turn has not come, in order
	ended []bool          // channels
	gaps  bool            // a channel has ended, so numbers may be missing

	// Nil without a tracer.
	at    **Visit
	span  *map[string]string
	spans map[uint64]map[string]string // of sampled items, by number
}

func (m *merger[T]) sendsLater() bool { return true }

func (m *merger[T]) hold(taken func(from int), channels int) {
	*m = merger[T]{taken: taken, from: map[uint64]int{}, kept: make([][]numbered[T], channels), ended: make([]bool, channels)}
}

func (m *merger[T]) carry(at **Visit, span *map[string]string) bool {
	m.at, m.span, m.spans = at, span, map[uint64]map[string]string{}
	return true
}

func (m *merger[T]) Process(ctx context.Context, in Item[numbered[T]], out Out[T]) error {
	v := in.Value
	if m.at != nil && *m.at != nil { // not loose: nothing is sampled outside of the worker's Process
		m.spans[v.Seq] = (*m.at).Meta
	}
	if v.Kind == loose || v.Seq == m.next {
		if err := m.emit(ctx, in.From, v, out); err != nil {
			return err
		}
	} else {
		m.from[v.Seq] = in.From
		m.kept[in.From] = append(m.kept[in.From], v)
	}
	return m.drain(ctx, out)
}

// emit sends one item, and counts it as taken.
func (m *merger[T]) emit(ctx context.Context, from int, v numbered[T], out Out[T]) error {
	m.taken(from)
	if m.span != nil {
		*m.span = nil
		if v.Kind != loose {
			*m.span = m.spans[v.Seq]
		}
	}
	if v.Kind == last || v.Kind == empty {
		delete(m.from, v.Seq)
		delete(m.spans, v.Seq)
		m.next++
	}
	if v.Kind == empty {
		return nil
	}
	return out.Send(ctx, v.Value)
}

// drain sends the items that are kept and whose turn has come.
func (m *merger[T]) drain(ctx context.Context, out Out[T]) error {
	for {
		ch, ok := m.from[m.next]
		switch {
		case ok && len(m.kept[ch]) != 0 && m.kept[ch][0].Seq == m.next:
			v := m.kept[ch][0]
			m.kept[ch][0] = numbered[T]{} // for the garbage collector
			m.kept[ch] = m.kept[ch][1:]
			if err := m.emit(ctx, ch, v, out); err != nil {
				return err
			}
		case ok || !m.gaps || !m.skip():
			return nil
		}
	}
}

// skip passes numbers that will not come: each channel has ended or has only greater ones. A worker
// that is done before its inputs have ended leaves such gaps.
func (m *merger[T]) skip() bool {
	least, ok := uint64(0), false
	for ch, items := range m.kept {
		switch {
		case len(items) == 0 && !m.ended[ch]:
			return false
		case len(items) != 0 && (!ok || items[0].Seq < least):
			least, ok = items[0].Seq, true
		}
	}
	if ok {
		m.next = least
	}
	return ok
}

func (m *merger[T]) InputEnded(ctx context.Context, from int, _ bool, out Out[T]) error {
	m.ended[from], m.gaps = true, true
	return m.drain(ctx, out)
}
