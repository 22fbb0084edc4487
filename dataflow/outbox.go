// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl/dataflow/internal/frames"
	"github.com/rocl-go/rocl/dataflow/internal/plan"
	"github.com/rocl-go/rocl/dataflow/internal/sched"
)

// A wire carries batches to an input channel in another group. The credit that comes back is given
// to the output's credit.
type wire[T any] interface {
	// put sends a batch. It must not keep items. It may wait for the link, but not for the
	// consumer. origins has, for each item, the node's input that the node processed when it sent
	// the item, from 1, or 0; it is nil if the node has one input.
	put(items []T, origins []uint16) error
	// end sends the end of the channel, on which count items were sent.
	end(count uint64) error
	// sample sends a sample, whose item has yet to be put.
	sample(s sample) error
}

// An outbox has the output channels of a node. It is the node's Out.
type outbox[T any] struct {
	r         *run
	forward   int // of the outputs, how many are forward channels
	outputs   []*output[T]
	distant   int        // of the forward channels, how many lead to other groups
	reception *reception // of the node if all do, else nil
	limits    batchLimits
	key       func(T) uint64
	span      map[string]string // that the items carry; nil if the node is not at a sampled item
	origin    uint16            // the input of the item that the node processes, from 1; 0 if none

	// mu guards the fields below if isLocked. Otherwise only the node's goroutine uses them.
	isLocked   bool // batches can have more than one item, and the timer lets them leave
	mu         mutex
	state      sched.Outputs // of the forward channels
	one        [1]T          // the batch of one item
	timer      *time.Timer   // lets batches leave
	timerIsSet bool
	err        error // of a batch that the timer let leave
	isFinished bool

	waits   atomic.Uint64 // for credit
	items   int           // that the node will send; 0: unknown
	waiting atomic.Bool   // the node waits for wake
	wake    chan struct{}
}

// An output is one output channel. It leads to an inbox of this group, or to a wire.
type output[T any] struct {
	edge    *plan.Edge
	index   int
	sent    uint64 // items, for the end
	dropped uint64
	credit  *credit
	open    []T      // the batch
	origins []uint16 // of open, if a wire wants them
	holds   bool     // items of a batch of one are held while the consumer is behind
	local   *inbox[T]
	ch      int // of local
	wire    wire[T]
	most    int         // items in a batch
	size    func(T) int // the encoded size of an item, for the limit of bytes; nil if most covers it
	bytes   int         // of open
	left    leaving     // by wire
}

// A credit is what a consumer has taken from one channel.
type credit struct {
	taken  atomic.Uint64
	closed atomic.Bool
	wake   func() // wakes the sender if it waits
}

func (c *credit) give(taken uint64) {
	c.taken.Store(taken)
	c.wake()
}

func (c *credit) close() {
	c.closed.Store(true)
	c.wake()
}

func newOutbox[T any](r *run, n *plan.Node) *outbox[T] {
	o := &outbox[T]{r: r, forward: len(n.Out), wake: make(chan struct{}, 1), mu: newMutex()}
	s := r.sending(n)
	o.limits, o.key, o.items = s.batch, nil, s.items
	if k, ok := s.key.(func(T) uint64); ok {
		o.key = k
	}
	o.state = sched.Outputs{Ch: make([]sched.Channel, len(n.Out)), Choice: s.choice, Current: -1}
	for _, es := range [][]*plan.Edge{n.Out, n.Back} {
		for _, e := range es {
			o.outputs = append(o.outputs, &output[T]{edge: e, index: len(o.outputs), credit: &credit{wake: o.signal}, most: o.limits.count})
		}
	}
	o.isLocked = o.limits.count > 1
	for i, e := range n.Out {
		if !r.isLocal(e) && o.limits.count <= 1 && codecOf[T](e) == nil && isFixed(reflect.TypeFor[T]()) {
			out := o.outputs[i]
			out.holds, o.isLocked = true, true
			out.credit.wake = func() { o.signal(); o.releaseHeld(out) }
		}
		o.state.Ch[i] = sched.Channel{Window: uint64(r.windowOf(e, s)), IsLocal: r.isLocal(e)}
	}
	return o
}

// outputOf returns the output of an edge.
func (o *outbox[T]) outputOf(e *plan.Edge) *output[T] {
	if e.IsBack {
		return o.outputs[o.forward+e.FromCh]
	}
	return o.outputs[e.FromCh]
}

// window returns how many items may be under way on an edge. Feedback has no limit.
func (o *outbox[T]) window(e *plan.Edge) int {
	if e.IsBack {
		return math.MaxInt
	}
	return int(o.state.Ch[e.FromCh].Window)
}

// connect connects an edge with the inbox of a node of this group.
func (o *outbox[T]) connect(e *plan.Edge, to receiver) {
	out, in := o.outputOf(e), to.(*inbox[T])
	out.local, out.ch = in, in.indexOf(e)
	in.accept(e, out.credit, grain(o.window(e)))
}

// grain returns after how many items the sender is told that they were taken: often enough that it
// does not run out of credit, and seldom enough that it costs little.
func grain(window int) int { return min(window/8, 256) }

// signal wakes the node if it waits.
func (o *outbox[T]) signal() {
	if o.waiting.Load() {
		select {
		case o.wake <- struct{}{}:
		default:
		}
	}
}

// lock takes mu if other goroutines let batches leave.
func (o *outbox[T]) lock() {
	if o.isLocked {
		o.mu.Lock()
	}
}

func (o *outbox[T]) unlock() {
	if o.isLocked {
		o.mu.Unlock()
	}
}

// refresh reads what the consumers have taken.
func (o *outbox[T]) refresh() {
	for i := range o.state.Ch {
		c := o.outputs[i].credit
		o.state.Ch[i].Taken, o.state.Ch[i].IsClosed = c.taken.Load(), c.closed.Load()
	}
}

// Send implements Out.
func (o *outbox[T]) Send(ctx context.Context, v T) error {
	o.lock()
	defer o.unlock()
	switch {
	case o.isFinished:
		return Done
	case o.forward == 0:
		return fmt.Errorf("%w: Send at a node without forward channels, which has %d for SendBack", ErrChannel, len(o.outputs))
	case o.state.Choice == plan.ByKey:
		return o.sendOn(ctx, int(o.key(v)%uint64(o.forward)), v)
	case o.state.Choice == plan.Broadcast:
		return o.sendAll(ctx, v)
	}
	if ch := o.state.Current; ch >= 0 && o.state.Ch[ch].HasRoom() {
		return o.add(o.outputs[ch], v)
	}
	for {
		o.refresh()
		switch ch := o.state.Choose(); ch {
		case sched.Closed:
			return Done
		case sched.Wait:
			if err := o.await(ctx, func() bool { return o.state.Choose() != sched.Wait }); err != nil {
				return err
			}
		default:
			return o.add(o.outputs[ch], v)
		}
	}
}

// sendAll sends v on each channel whose consumer has not ended.
func (o *outbox[T]) sendAll(ctx context.Context, v T) error {
	o.refresh()
	closed := 0
	for ch := range o.state.Ch {
		if o.state.Ch[ch].IsClosed {
			closed++
		} else if err := o.sendOn(ctx, ch, v); err != nil {
			return err
		}
	}
	if closed == o.forward {
		return Done
	}
	return nil
}

// SendTo implements Out.
func (o *outbox[T]) SendTo(ctx context.Context, ch int, v T) error {
	if ch < 0 || ch >= o.forward {
		return fmt.Errorf("%w: forward channel %d of %d", ErrChannel, ch, o.forward)
	}
	o.lock()
	defer o.unlock()
	return o.sendOn(ctx, ch, v)
}

// sendOn sends v on a forward channel, and drops it if the consumer has ended.
func (o *outbox[T]) sendOn(ctx context.Context, ch int, v T) error {
	if o.isFinished {
		return Done
	}
	c := &o.state.Ch[ch]
	if o.outputs[ch].credit.closed.Load() {
		o.outputs[ch].dropped++
		return nil
	}
	if !c.HasRoom() {
		o.refresh()
	}
	if !c.HasRoom() {
		if err := o.await(ctx, func() bool { return c.HasRoom() || c.IsClosed }); err != nil {
			return err
		}
	}
	return o.add(o.outputs[ch], v)
}

// SendBack implements Out.
func (o *outbox[T]) SendBack(_ context.Context, ch int, v T) error {
	back := len(o.outputs) - o.forward
	if ch < 0 || ch >= back {
		return fmt.Errorf("%w: feedback channel %d of %d", ErrChannel, ch, back)
	}
	o.lock()
	defer o.unlock()
	if o.isFinished {
		return Done
	}
	out := o.outputs[o.forward+ch]
	if out.credit.closed.Load() {
		out.dropped++
		return nil
	}
	if err := o.flush(); err != nil {
		return err
	}
	if err := o.count(out); err != nil {
		return err
	}
	return o.leaveOne(out, v)
}

// count counts an item that leaves next on a channel. The span of the item leaves before it.
func (o *outbox[T]) count(out *output[T]) (err error) {
	if o.span != nil {
		err = o.sample(out)
	}
	out.sent++
	return err
}

// Channels implements Out.
func (o *outbox[T]) Channels() (forward, back int) { return o.forward, len(o.outputs) - o.forward }

// Flush implements Out.
func (o *outbox[T]) Flush(context.Context) error {
	o.lock()
	defer o.unlock()
	defer o.r.push()
	return o.flush()
}

// add adds an item to the batch of a forward channel, and lets a full batch leave.
func (o *outbox[T]) add(out *output[T], v T) error {
	if err := o.count(out); err != nil {
		return err
	}
	o.state.Ch[out.index].Sent++
	if o.limits.count <= 1 {
		if out.holds && (len(out.open) != 0 || o.isBehind(out)) {
			return o.hold(out, v)
		}
		return o.leaveOne(out, v)
	}
	if out.size != nil {
		out.bytes += out.size(v)
	}
	out.append(v, o.origin)
	if len(out.open) >= out.most || out.bytes >= o.limits.bytes {
		return o.leave(out)
	}
	o.state.Current = out.index
	o.setTimer(o.limits.delay)
	return nil
}

// setTimer lets the batches leave after d, or earlier if that is set.
func (o *outbox[T]) setTimer(d time.Duration) {
	switch {
	case o.timerIsSet:
		return
	case o.timer == nil:
		o.timer = time.AfterFunc(d, o.onTimer)
	default:
		o.timer.Reset(d)
	}
	o.timerIsSet = true
}

// Items that would leave one by one for another group are held, at most holdMost of them, while
// half of the window is under way, if that is holdAbove items. A message costs as much as many
// items, and the consumer does not wait for the held ones. A consumer may tell what it has taken
// only after a quarter of the window, so fewer items under way do not say that it is behind.
const (
	holdAbove = 64
	holdMost  = 256
)

// isFixed reports whether the values of a type have one encoded size.
func isFixed(t reflect.Type) bool {
	switch k := t.Kind(); k {
	case reflect.Array:
		return isFixed(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if !isFixed(t.Field(i).Type) {
				return false
			}
		}
		return true
	default:
		return k >= reflect.Bool && k <= reflect.Complex128 && k != reflect.Uintptr
	}
}

// isBehind reports whether the consumer of a channel has many items to take.
func (o *outbox[T]) isBehind(out *output[T]) bool {
	c := &o.state.Ch[out.index]
	most := max(c.Window/2, holdAbove)
	if c.Sent-c.Taken > most {
		c.Taken = out.credit.taken.Load()
	}
	return c.Sent-c.Taken > most
}

// hold holds an item, and lets the held ones leave if they are many.
func (o *outbox[T]) hold(out *output[T], v T) error {
	out.append(v, o.origin)
	size := max(int(unsafe.Sizeof(v)), 1)
	if len(out.open) >= min(holdMost, max(o.limits.bytes/size, 1)) {
		return o.leave(out)
	}
	o.setTimer(min(o.limits.delay, defaultDelay))
	return nil
}

// releaseHeld lets held items leave at once if their consumer has few to take. It is called when
// credit comes, and must not wait: if the node is sending, its next item or the timer does it.
func (o *outbox[T]) releaseHeld(out *output[T]) {
	if !o.mu.TryLock() {
		return
	}
	defer o.mu.Unlock()
	if len(out.open) != 0 && o.timerIsSet && !o.isBehind(out) {
		o.timer.Reset(0)
	}
}

// leaveOne lets one item leave.
func (o *outbox[T]) leaveOne(out *output[T], v T) error {
	o.one[0] = v
	if out.local != nil {
		out.local.put(out.ch, o.one[:])
		return nil
	}
	out.left.count(1)
	out.noteOrigin(o.origin)
	err := out.wire.put(o.one[:], out.origins)
	out.origins = out.origins[:0]
	return err
}

// append adds an item to the batch.
func (out *output[T]) append(v T, origin uint16) {
	out.noteOrigin(origin)
	out.open = append(out.open, v)
}

// noteOrigin notes the origin of the next item of the batch.
func (out *output[T]) noteOrigin(input uint16) {
	if out.origins != nil {
		out.origins = append(out.origins, input)
	}
}

// leave lets the batch of a channel leave.
func (o *outbox[T]) leave(out *output[T]) error {
	o.state.Current = -1
	var err error
	if out.local != nil {
		out.local.put(out.ch, out.open)
	} else {
		out.left.count(len(out.open))
		err = out.wire.put(out.open, out.origins)
	}
	clear(out.open) // for the garbage collector
	out.open, out.origins, out.bytes = out.open[:0], out.origins[:0], 0
	return err
}

// flush lets all batches leave.
func (o *outbox[T]) flush() error {
	if o.err != nil {
		return o.err
	}
	for _, out := range o.outputs[:o.forward] {
		if len(out.open) != 0 {
			if err := o.leave(out); err != nil {
				return err
			}
		}
	}
	return nil
}

// onTimer lets the batches leave that are open when the delay is over.
func (o *outbox[T]) onTimer() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.timerIsSet = false
	if !o.isFinished {
		o.err = o.flush()
		o.r.push()
	}
}

// await waits until ready, which it calls after each refresh, reports true.
func (o *outbox[T]) await(ctx context.Context, ready func() bool) error {
	if err := o.flush(); err != nil {
		return err
	}
	o.waits.Add(1)
	if o.reception != nil {
		return o.receive(ctx, ready)
	}
	for {
		o.waiting.Store(true)
		o.refresh()
		if ready() {
			o.waiting.Store(false)
			return nil
		}
		o.unlock()
		o.r.push()
		var err error
		select {
		case <-o.wake:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-o.r.ctx.Done():
			err = context.Cause(o.r.ctx)
		}
		o.lock()
		o.waiting.Store(false)
		if err != nil {
			return err
		}
	}
}

// receive is await for a node whose credit comes only in messages.
func (o *outbox[T]) receive(ctx context.Context, ready func() bool) error {
	o.unlock()
	defer o.lock()
	either := ctx
	if ctx.Done() != o.r.ctx.Done() {
		var cancel context.CancelFunc
		either, cancel = context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(o.r.ctx, cancel)()
	}
	err := o.reception.wait(either, func() bool {
		o.lock()
		defer o.unlock()
		o.refresh()
		return ready()
	})
	switch {
	case err == nil || either.Err() == nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return context.Cause(o.r.ctx)
}

// finish lets the batches leave and ends all channels. The second time it does nothing.
func (o *outbox[T]) finish(context.Context) error {
	o.lock()
	defer o.unlock()
	if o.isFinished {
		return nil
	}
	err := o.flush()
	o.isFinished = true
	if o.timer != nil {
		o.timer.Stop()
	}
	for _, out := range o.outputs {
		if err != nil {
			break
		}
		if out.local != nil {
			err = out.local.end(out.ch, out.sent)
		} else {
			err = out.wire.end(out.sent)
		}
	}
	return err
}

// abandon stops the timer of a node that has failed.
func (o *outbox[T]) abandon() {
	o.lock()
	defer o.unlock()
	o.isFinished = true
	if o.timer != nil {
		o.timer.Stop()
	}
	for _, out := range o.outputs {
		frames.Discard(out.open)
		out.open = nil
	}
}
