// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/dataflow/internal/frames"
	"github.com/rocl-go/rocl/dataflow/internal/plan"
)

// Protocol of elastic farms. The farm watches for workers, and says hello to each by a call. Each
// item is a call too. A worker that is about to leave says so by a call, which the farm answers
// when no item is at the worker. At the end of the run the farm tells each worker.
const (
	tagHello = 16 + iota // farm to worker, call
	tagItem              // farm to worker, call: the item; the reply is a status byte and the outputs, or a text
	tagLeave             // worker to farm, call
	tagEnd               // farm to worker: the run has ended; a status byte and a text
	tagGone              // the farm is gone, by a monitor
)

// The statuses of a reply.
const (
	statusOK = iota
	statusError
	statusPanic
	statusLeaving
)

// Again is what the function of [OnLoss] returns to give the item to another worker.
const Again = verdict("dataflow: give the item to another worker")

// OnLoss is an option of [Elastic]. The farm calls f for each item that a worker had when it was
// lost; err says how. The worker may have begun the item, and may have done all of it. If f returns
// nil, the farm goes on without the outputs of the item. If f returns [Again], another worker gets
// the item. Any other error ends the run. Without OnLoss the farm gives each lost item to another
// worker. Several goroutines may call f at once.
func OnLoss[T any](f func(item T, err error) error) Option {
	return func(o *options) {
		if f != nil {
			o.onLoss = f
		}
	}
}

// Elastic makes a farm whose workers come and go while the graph runs. Each worker is a call of
// [Work], in any process that reaches the context of the run. A worker gets further items when it
// has done some ([OnDemand]; 2 items are the default). A worker that leaves takes no item with it.
// A worker that is lost has the item done again by another one ([OnLoss]), so items are processed
// at least once. While there is no worker, the farm waits.
//
// The run needs a context: [InGroup] or [Using]. name is the name of the node, by which workers
// find it. [Ordered] holds for the farm as for [Farm]. A [Codec] for I or O must be given here and
// to Work.
func Elastic[I, O any](name string, o ...Option) Part[I, O] {
	s := newOptions(append([]Option{Name(name)}, o...))
	e := &elastic[I, O]{onLoss: func(I, error) error { return Again }, window: s.ordered, slots: cmp.Or(s.demand, 2)}
	e.in, e.out = findCodec[I](s), findCodec[O](s)
	if f, ok := s.onLoss.(func(I, error) error); ok {
		e.onLoss = f
	} else if s.onLoss != nil {
		s.errs = append(s.errs, fmt.Errorf("%w: OnLoss has a %T for items of type %s", ErrGraph, s.onLoss, typeName[I]()))
	}
	s.codec, s.ordered, s.choice = e.out, 0, plan.Unset // the choice was that of a worker
	if e.out == nil {
		s.codec = nil
	}
	s.needsContext = true
	return leafOf(body[I, O]{stage: e}, s)
}

// findCodec returns the codec for items of type T, or nil.
func findCodec[T any](o options) rocl.Codec[T] {
	for _, c := range o.codecs {
		if c, ok := c.(rocl.Codec[T]); ok {
			return c
		}
	}
	return nil
}

// A binder is a stage that needs to know of the run and of its node.
type binder interface{ bind(r *run, n *plan.Node) }

// elastic is the stage of an elastic farm.
type elastic[I, O any] struct {
	onLoss func(I, error) error
	window int // of an ordered farm; else 0
	slots  int // items at each worker
	in     rocl.Codec[I]
	out    rocl.Codec[O]

	at   **Visit            // nil without a tracer
	span *map[string]string // that outputs carry; guarded by sending
	r    *run
	node *plan.Node
	now  *farming[I, O] // since Start
}

func (e *elastic[I, O]) bind(r *run, n *plan.Node) {
	e.r, e.node, e.now, e.at, e.span = r, n, nil, nil, nil
}

func (e *elastic[I, O]) sendsLater() bool { return true }

func (e *elastic[I, O]) carry(at **Visit, span *map[string]string) bool {
	e.at, e.span = at, span
	return true
}

// farming is an elastic farm while it runs.
type farming[I, O any] struct {
	*elastic[I, O]
	self   *rocl.Resource
	ctx    context.Context
	cancel context.CancelFunc
	jobs   chan job[I]
	room   chan struct{}  // one token for each item in an ordered farm
	wg     sync.WaitGroup // goroutines
	next   uint64         // the number of the next job
	isDone atomic.Bool    // every consumer has ended

	mu      sync.Mutex
	workers map[rocl.GID]*worker
	undone  int           // jobs
	ending  bool          // there will be no further job
	idle    chan struct{} // closed when ending, and no job is undone

	sending sync.Mutex // guards emit, and is held while the consumers give no credit
	emit    emitter[O]
}

// A job is an item with its number.
type job[I any] struct {
	seq   uint64
	item  I
	visit *Visit // nil if the item is not sampled
}

// A worker is known by a farm.
type worker struct {
	id      rocl.GID
	leaving bool           // under the farm's mu: it gets no further item
	left    chan struct{}  // closed with leaving
	calls   sync.WaitGroup // under way; added to under mu, unless leaving
}

// leave lets the worker get no further item. The farm's mu must be held.
func (w *worker) leave() {
	if !w.leaving {
		w.leaving = true
		close(w.left)
	}
}

// farmAttributes returns by what the workers of a farm are found.
func farmAttributes(w WorkFor) rocl.Attrs {
	return rocl.Attrs{"type": "dataflow-worker", "graph": w.Graph, "run": cmp.Or(w.Run, w.Graph), "farm": w.Farm}
}

func (e *elastic[I, O]) Start(ctx context.Context, out Out[O]) error {
	if e.r.c == nil {
		return fmt.Errorf("%w: the elastic farm %q needs a context: see InGroup and Using", ErrGraph, e.node.Name)
	}
	f := &farming[I, O]{elastic: e, jobs: make(chan job[I]), idle: make(chan struct{}), workers: map[rocl.GID]*worker{}}
	f.emit = emitter[O]{out: out, span: e.span, window: e.window, done: map[uint64]outputs[O]{}}
	if e.window > 0 {
		f.room = make(chan struct{}, e.window)
	}
	f.ctx, f.cancel = context.WithCancel(ctx)
	at := WorkFor{e.r.plan.Name, e.r.cfg.Run, e.node.Name}
	a := farmAttributes(at)
	a["type"] = "dataflow-farm"
	var err error
	if f.self, err = e.r.c.Register(ctx, a); err != nil {
		f.cancel()
		return err
	}
	e.now = f
	f.wg.Go(func() { f.watch(farmAttributes(at)) })
	f.wg.Go(func() { f.fail(f.self.Handle(f.ctx, f.onLeave, rocl.EachInOwn())) })
	return nil
}

// fail ends the run, unless the farm has ended.
func (f *farming[I, O]) fail(err error) {
	if err != nil && f.ctx.Err() == nil {
		f.r.fail(f.node, err)
	}
}

// watch greets each worker that appears.
func (f *farming[I, O]) watch(a rocl.Attrs) {
	for ev, err := range f.r.c.Watch(f.ctx, a) {
		switch {
		case err != nil:
			f.fail(err)
			return
		case ev.Kind == rocl.Appeared:
			in, _ := ev.Attrs.Get("in")
			out, _ := ev.Attrs.Get("out")
			if string(in) != typeName[I]() || string(out) != typeName[O]() {
				f.fail(fmt.Errorf("%w: farm %s has items %s and %s, its worker %v has %s and %s",
					ErrHash, f.node.Name, typeName[I](), typeName[O](), ev.ID, in, out))
				return
			}
			f.wg.Go(func() { f.greet(ev.ID) })
		}
	}
}

// greet says hello to a worker. From then on it gets items.
func (f *farming[I, O]) greet(id rocl.GID) {
	w := &worker{id: id, left: make(chan struct{})}
	f.mu.Lock()
	f.workers[id] = w // before the call, so that the worker can leave as soon as it has answered
	f.mu.Unlock()
	m, err := f.self.CallBytes(f.ctx, id, tagHello, nil)
	if err != nil {
		return // it is gone, and had no item
	}
	status := m.Bytes()
	m.Release()
	if len(status) != 1 || status[0] != statusOK {
		return
	}
	for range f.slots {
		f.wg.Go(func() { f.serve(w) })
	}
}

// onLeave answers a worker that leaves, when it has no item any more.
func (f *farming[I, O]) onLeave(m *rocl.Message) {
	f.mu.Lock()
	w := f.workers[m.From()]
	delete(f.workers, m.From())
	if w != nil {
		w.leave()
	}
	f.mu.Unlock()
	if w != nil {
		w.calls.Wait()
	}
	_ = f.self.ReplyBytes(f.ctx, m, nil) // the worker has ended if it does not come
}

// serve gives a worker one item after another.
func (f *farming[I, O]) serve(w *worker) {
	for {
		var j job[I]
		select {
		case j = <-f.jobs:
		case <-w.left:
			return
		case <-f.ctx.Done():
			return
		}
		f.mu.Lock()
		isLeaving := w.leaving
		if !isLeaving {
			w.calls.Add(1)
		}
		f.mu.Unlock()
		if isLeaving {
			f.again(j)
			return
		}
		outputs, err := f.do(w, j)
		w.calls.Done()
		switch {
		case err == nil:
			f.finish(j, outputs)
		case f.ctx.Err() != nil:
			return
		case rocl.IsEnd(err), errors.Is(err, rocl.ErrNoReply):
			f.lost(w, j, err)
			return
		default:
			f.fail(err)
			return
		}
	}
}

// again gives a job to another worker. It waits for one.
func (f *farming[I, O]) again(j job[I]) {
	select {
	case f.jobs <- j:
	case <-f.ctx.Done():
	}
}

// lost does with the job of a lost worker what the farm's option says.
func (f *farming[I, O]) lost(w *worker, j job[I], err error) {
	f.mu.Lock()
	w.leave()
	delete(f.workers, w.id)
	f.mu.Unlock()
	switch err := f.onLoss(j.item, fmt.Errorf("%w: worker %v: %w", ErrLost, w.id, err)); {
	case err == nil:
		f.finish(j, outputs[O]{})
	case errors.Is(err, Again):
		f.again(j)
	default:
		f.fail(err)
	}
}

// do lets a worker do a job, and the tracer see that.
func (f *farming[I, O]) do(w *worker, j job[I]) (os outputs[O], err error) {
	if j.visit == nil {
		os.items, err = f.call(f.ctx, w, j.item)
		return os, err
	}
	v := *j.visit // the job may come again
	err = f.r.visit(f.ctx, &v, func(ctx context.Context) (err error) {
		os.items, err = f.call(ctx, w, j.item)
		return err
	})
	os.span = v.Meta
	return os, err
}

// call lets a worker process an item, and returns the outputs.
func (f *farming[I, O]) call(ctx context.Context, w *worker, item I) ([]O, error) {
	b, err := rocl.EncodeValue(ctx, f.r.c, item, f.elastic.in)
	if err != nil {
		return nil, err
	}
	m, err := f.self.Call(ctx, w.id, tagItem, b)
	if err != nil {
		b.Release()
		return nil, err
	}
	defer m.Release()
	p := m.Bytes()
	switch {
	case len(p) == 0:
		return nil, errors.New("dataflow: a worker's reply is empty")
	case p[0] == statusOK:
		return frames.New(f.elastic.out).Many(p[1:])
	}
	failure := &distantError{text: fmt.Sprintf("worker %v: %s", w.id, p[1:])}
	if p[0] == statusPanic {
		failure.is = []error{ErrPanic}
	}
	return nil, failure
}

// finish sends the outputs of a job.
func (f *farming[I, O]) finish(j job[I], os outputs[O]) {
	f.sending.Lock()
	left, err := f.emit.add(f.ctx, j.seq, os)
	f.sending.Unlock()
	if errors.Is(err, Done) {
		f.isDone.Store(true)
	} else if err != nil {
		f.fail(err)
		return
	}
	for range left {
		<-f.room
	}
	f.count(-1)
}

// count counts jobs that are not done.
func (f *farming[I, O]) count(more int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.undone += more; f.undone == 0 && f.ending {
		close(f.idle)
	}
}

// An emitter sends the outputs of jobs, in the order of the jobs if it has a window.
type emitter[O any] struct {
	out    Out[O]
	span   *map[string]string // that the outputs carry; nil without a tracer
	window int
	next   uint64                // the job whose turn it is
	done   map[uint64]outputs[O] // of jobs whose turn has not come
}

// outputs are what a job has made, and the span that they carry.
type outputs[O any] struct {
	items []O
	span  map[string]string
}

// add adds the outputs of a job. It returns how many jobs have left an ordered farm, and Done if
// every consumer has ended.
func (e *emitter[O]) add(ctx context.Context, seq uint64, os outputs[O]) (left int, err error) {
	if e.window == 0 {
		return 0, e.send(ctx, os)
	}
	e.done[seq] = os
	for {
		os, ok := e.done[e.next]
		if !ok || err != nil && !errors.Is(err, Done) {
			return left, err
		}
		delete(e.done, e.next)
		e.next++
		left++
		err = e.send(ctx, os)
	}
}

func (e *emitter[O]) send(ctx context.Context, os outputs[O]) error {
	if e.span != nil {
		*e.span = os.span
		defer func() { *e.span = nil }()
	}
	for _, v := range os.items {
		if err := e.out.Send(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// Process gives an item to a worker, and waits for one that can take it.
func (e *elastic[I, O]) Process(ctx context.Context, in Item[I], _ Out[O]) error {
	f := e.now
	if f.isDone.Load() {
		return Done
	}
	if f.room != nil {
		select {
		case f.room <- struct{}{}:
		case <-f.ctx.Done():
			return context.Cause(f.ctx)
		}
	}
	f.count(1)
	f.next++
	j := job[I]{seq: f.next - 1, item: in.Value}
	if e.at != nil {
		j.visit = *e.at
	}
	select {
	case f.jobs <- j:
		return nil
	case <-f.ctx.Done():
		return context.Cause(f.ctx)
	}
}

// Finish waits until all items are done.
func (e *elastic[I, O]) Finish(ctx context.Context, _ Out[O]) error {
	f := e.now
	f.count(1)
	f.mu.Lock()
	f.ending = true
	f.mu.Unlock()
	f.count(-1)
	select {
	case <-f.idle:
		return nil
	case <-f.ctx.Done():
		return context.Cause(ctx)
	}
}

// Close tells the workers that the run has ended, and ends the farm.
func (e *elastic[I, O]) Close() error {
	f := e.now
	if f == nil {
		return nil
	}
	e.now = nil
	var failure []byte
	if err := e.r.failure(); err != nil {
		failure = encodeFailure(err)
	} else if cause := context.Cause(e.r.ctx); cause != nil { // the run does not know yet
		failure = encodeFailure(&RunError{Graph: e.r.plan.Name, Group: e.r.group, Err: cause})
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.ctx), time.Second)
	defer cancel()
	f.mu.Lock()
	workers := slices.Collect(maps.Keys(f.workers))
	f.mu.Unlock()
	for _, id := range workers {
		_ = f.self.SendBytes(ctx, id, tagEnd, failure) // otherwise the worker's monitor tells it
	}
	f.cancel()
	f.wg.Wait()
	return f.self.Close()
}
