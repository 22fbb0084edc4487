// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// A Queue hands tasks to workers and yields the results. Its methods may be called concurrently.
type Queue[In, Out any] struct {
	c       *rocl.Context
	self    *rocl.Resource
	in      format[In]
	out     format[Out]
	backlog int
	silence time.Duration
	ordered bool

	life context.Context // ends with Close, or when the queue has failed: the cause says why
	end  context.CancelCauseFunc
	wg   sync.WaitGroup

	room  chan struct{} // a token wakes a Put that waits for room
	ready chan struct{} // a token wakes a loop of Results

	mu         sync.Mutex // no other lock is taken while it is held; no call waits while it is held
	board      board[In, Out]
	workers    map[rocl.GID]*employee[In, Out]
	sessions   uint32 // counts sessions
	pending    int    // tasks from Put until they are taken
	putting    int    // calls of Put that wait
	taking     int    // loops of Results that wait
	isFinished bool
	refusals   uint64
	refusal    error
	balancing  *time.Timer // of balance
	isArmed    bool        // balancing runs
}

// A Result is what has become of a task.
type Result[In, Out any] struct {
	Task   In
	Number uint64   // of the task, from 0, in the order of Put
	Out    Out      // if Err is nil
	Err    error    // a *TaskError, a *DeadLetter, or nil
	Worker rocl.GID // that gave the result or the error
	Runs   int      // how often the task was given to a worker that may have begun it
}

// Stats are figures of a queue. Waiting, Working and Ready are tasks at the moment. Put is the
// number of tasks in all: those three, and the results that were taken.
type Stats struct {
	Workers  int    // that take tasks
	Waiting  int    // tasks that wait for a worker
	Working  int    // tasks that are at workers
	Ready    int    // tasks whose result was not taken
	Put      uint64 // tasks that Put has accepted
	Done     uint64 // tasks with a result
	Failed   uint64 // tasks with an error of a handler or a codec
	Dead     uint64 // dead letters
	Lost     uint64 // attempts that ended with the worker
	Again    uint64 // attempts that ended with Again
	Returned uint64 // tasks that workers have given back before they began them
	Refused  uint64 // workers that were refused
	Refusal  error  // why the last worker was refused
}

// Open returns a queue whose workers are the resources of [Serve] that match the pattern a, now and
// later. Close it. ctx limits the opening only. Open fails as rocl.Context.Register does, and with
// ErrOption.
func Open[In, Out any](ctx context.Context, c *rocl.Context, a rocl.Attributes, opts ...Option) (*Queue[In, Out], error) {
	cfg, err := newConfig(opts, true)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, fmt.Errorf("work: open: %w: the context is nil", fs.ErrInvalid)
	}
	pattern, err := attributes(a)
	if err != nil {
		return nil, fmt.Errorf("work: open: %w", err)
	}
	q := &Queue[In, Out]{c: c, in: format[In]{codecFor[In](cfg)}, out: format[Out]{codecFor[Out](cfg)},
		backlog: cfg.backlog, silence: cfg.silence, ordered: cfg.ordered, workers: map[rocl.GID]*employee[In, Out]{},
		room: make(chan struct{}, 1), ready: make(chan struct{}, 1)}
	q.board = board[In, Out]{attempts: cfg.attempts, perWorker: cfg.perWorker, isOrdered: cfg.ordered}
	if q.self, err = c.Register(ctx, nil); err != nil {
		return nil, fmt.Errorf("work: open: %w", err)
	}
	q.life, q.end = context.WithCancelCause(context.Background())
	q.wg.Go(func() { q.watch(pattern) })
	q.wg.Go(q.receive)
	q.wg.Go(q.listen)
	return q, nil
}

// Put adds a task. It waits, until ctx ends, while as many tasks as Backlog says are in the queue.
// A loop over Results may put one task for each result without waiting. The program must not change
// what in refers to before the task has a result.
//
// Put fails with ErrClosed, ErrFinished, or the cause of ctx's end. If Put fails, the task is not
// in the queue.
func (q *Queue[In, Out]) Put(ctx context.Context, in In) error {
	q.mu.Lock()
	for q.pending >= q.backlog && !q.isFinished && q.life.Err() == nil {
		q.putting++
		q.mu.Unlock()
		var err error
		select {
		case <-q.room:
		case <-q.life.Done():
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		q.mu.Lock()
		q.putting--
		if err != nil {
			q.signalRoom()
			q.mu.Unlock()
			return fmt.Errorf("work: put: %w", q.explain(err))
		}
	}
	defer q.mu.Unlock()
	q.signalRoom() // for the next, if more than one waits
	switch {
	case q.life.Err() != nil:
		return context.Cause(q.life)
	case q.isFinished:
		return ErrFinished
	}
	q.pending++
	q.board.put(in)
	if m := q.board.hungriest(); m != nil {
		q.workers[m.id].wakeUp()
	}
	return nil
}

// signalRoom wakes a Put that waits. mu must be held.
func (q *Queue[In, Out]) signalRoom() {
	if q.putting > 0 && (q.pending < q.backlog || q.isFinished) {
		signal(q.room)
	}
}

// signalReady wakes a loop of Results that waits. mu must be held.
func (q *Queue[In, Out]) signalReady() {
	if q.taking > 0 && (q.board.ready.n > 0 || q.isFinished && q.pending == 0) {
		signal(q.ready)
	}
}

// signal puts a token into c.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Finish says that no further task comes: Put fails with ErrFinished from now on, and Results ends
// after the last result.
func (q *Queue[In, Out]) Finish() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.isFinished = true
	q.signalRoom()
	q.signalReady()
}

// Results yields what becomes of the tasks, each once: when it is known, or in the order of Put
// with Ordered. It waits for further tasks until Finish, and then ends after the last one. A loop
// that is left early loses nothing: the next loop goes on. Several loops may run at once and share
// the results; they have no common order.
//
// Results yields one error at its end, with an empty Result, if ctx ends, if the queue is closed
// (ErrClosed), or if the queue has failed, because its context was closed.
func (q *Queue[In, Out]) Results(ctx context.Context) iter.Seq2[Result[In, Out], error] {
	return func(yield func(Result[In, Out], error) bool) {
		var rs []Result[In, Out]
		for {
			var err error
			if rs, err = q.next(ctx, rs[:0]); err != nil {
				yield(Result[In, Out]{}, err)
				return
			}
			if len(rs) == 0 {
				return
			}
			for i := range rs {
				if !yield(rs[i], nil) {
					q.putBack(rs[i+1:])
					return
				}
			}
			clear(rs) // for the garbage collector
		}
	}
}

const mostTaken = 64 // results that a loop takes at once

// next waits for results, and takes some. It returns none at the end.
func (q *Queue[In, Out]) next(ctx context.Context, rs []Result[In, Out]) ([]Result[In, Out], error) {
	q.mu.Lock()
	for q.board.ready.n == 0 && !(q.isFinished && q.pending == 0) && q.life.Err() == nil {
		q.taking++
		q.mu.Unlock()
		var err error
		select {
		case <-q.ready:
		case <-q.life.Done():
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		q.mu.Lock()
		q.taking--
		if err != nil {
			q.signalReady()
			q.mu.Unlock()
			return nil, fmt.Errorf("work: results: %w", q.explain(err))
		}
	}
	defer q.mu.Unlock()
	switch {
	case q.isFinished && q.pending == 0:
		q.signalReady() // for the next, if more than one waits
		return nil, nil
	case q.life.Err() != nil:
		return nil, context.Cause(q.life)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("work: results: %w", context.Cause(ctx))
	}
	for range min(q.board.ready.n, mostTaken) {
		t := q.board.ready.popFront()
		rs = append(rs, Result[In, Out]{t.in, t.number, t.out, t.err, t.by, t.runs})
		q.board.discard(t)
	}
	q.pending -= len(rs)
	q.signalRoom()
	q.signalReady()
	return rs, nil
}

// putBack puts results back that a loop has not yielded.
func (q *Queue[In, Out]) putBack(rs []Result[In, Out]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := len(rs) - 1; i >= 0; i-- {
		r := &rs[i]
		q.board.ready.pushFront(&task[In, Out]{in: r.Task, number: r.Number, out: r.Out, err: r.Err, by: r.Worker, runs: r.Runs, isDone: true})
	}
	q.pending += len(rs)
	q.signalReady()
}

// Do puts the tasks of seq, calls Finish, and yields the results as Results does. A goroutine runs
// seq. If the loop is left early, that goroutine ends at its next task, and Do returns when it has
// ended.
func (q *Queue[In, Out]) Do(ctx context.Context, seq iter.Seq[In]) iter.Seq2[Result[In, Out], error] {
	return func(yield func(Result[In, Out], error) bool) {
		var wg sync.WaitGroup
		defer wg.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		wg.Go(func() {
			for in := range seq {
				if q.Put(ctx, in) != nil {
					return // Results says why
				}
			}
			if ctx.Err() == nil {
				q.Finish()
			}
		})
		for r, err := range q.Results(ctx) {
			if !yield(r, err) {
				return
			}
		}
	}
}

// explain adds to the cause with which a wait has ended how many workers there are. It is called
// with mu held, or after the wait.
func (q *Queue[In, Out]) explain(err error) error {
	if s := q.statsLocked(); s.Workers == 0 && s.Refusal != nil {
		return fmt.Errorf("%w: there is no worker; one was refused: %w", err, s.Refusal)
	} else if s.Workers == 0 {
		return fmt.Errorf("%w: there is no worker", err)
	}
	return err
}

// Stats returns the present figures.
func (q *Queue[In, Out]) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.statsLocked()
}

func (q *Queue[In, Out]) statsLocked() Stats {
	b := &q.board
	s := b.stats
	for _, m := range b.members {
		if !m.isLeaving {
			s.Workers++
		}
	}
	s.Waiting, s.Ready = b.fresh.n+b.suspects.n, q.pending-b.fresh.n-b.suspects.n-s.Working
	s.Refused, s.Refusal = q.refusals, q.refusal
	return s
}

// Close ends the queue, with the tasks that are under way: the contexts of their handlers end. Put
// and Results fail with ErrClosed. A second Close does nothing.
func (q *Queue[In, Out]) Close() error {
	q.fail(ErrClosed)
	err := q.self.Close() // tells the workers, whose monitors report it
	q.wg.Wait()
	return err
}

// fail ends the queue with an error.
func (q *Queue[In, Out]) fail(err error) {
	q.end(err)
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.workers {
		e.wakeUp()
	}
	if q.balancing != nil {
		q.balancing.Stop()
	}
}

// receive handles the messages of the workers.
func (q *Queue[In, Out]) receive() {
	var rs []outcome[Out]
	for m, err := range q.self.Messages(q.life) {
		if err != nil {
			q.fail(fmt.Errorf("work: the queue cannot receive: %w", err))
			return
		}
		rs = q.handle(m, rs)
		m.Release()
	}
	q.fail(fmt.Errorf("work: %w: the queue's context", rocl.ErrClosed)) // unless Close was called
}

// handle handles a message. rs is memory for results, which it returns.
func (q *Queue[In, Out]) handle(msg *rocl.Message, rs []outcome[Out]) []outcome[Out] {
	kind, session := splitTag(msg.Tag())
	var ok bool
	if kind == kindResults {
		rs, ok = q.outcomes(msg.Bytes(), rs[:0])
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.workers[msg.From()]
	if e == nil || e.m == nil || e.m.session != session {
		return rs // of a worker that was given up
	}
	before := e.heard
	e.heard = time.Now()
	switch {
	case kind == kindGone && msg.IsGone():
		q.lose(e, msg.GoneErr())
	case kind == kindBye:
		q.lose(e, errForgotten)
	case kind == kindResults && !ok:
		q.lose(e, errProtocol)
	case kind == kindLeaving:
		q.board.leave(e.m)
		e.saysLeft = true
		e.wakeUp()
		q.kick() // if it was to take suspects
	case kind == kindResults:
		if n := len(rs); n > 0 && e.m.busy > 0 {
			e.m.measure(e.heard.Sub(before), n)
		}
		q.settle(e, rs)
	}
	clear(rs) // for the garbage collector
	return rs
}

// An outcome is one entry of a message with results.
type outcome[Out any] struct {
	id     uint64
	status byte
	out    Out
	err    error
}

// outcomes decodes the entries of a message.
func (q *Queue[In, Out]) outcomes(p []byte, rs []outcome[Out]) (_ []outcome[Out], ok bool) {
	for len(p) > 0 {
		id, status, value, rest, ok := cutResult(p)
		if !ok {
			return rs, false
		}
		p = rest
		r := outcome[Out]{id: id, status: status}
		switch status {
		case statusOK:
			if err := q.out.decode(value, &r.out); err != nil {
				r.status, r.err = statusValue, &TaskError{Text: "the result: " + textOf(err), is: rocl.ErrValue}
			}
		case statusReturned, statusRecalled:
		default:
			r.err = &TaskError{Text: string(value), is: known[status]}
		}
		rs = append(rs, r)
	}
	return rs, true
}

// settle applies the outcomes that a worker has sent. mu must be held, and may be
// released meanwhile.
func (q *Queue[In, Out]) settle(e *employee[In, Out], rs []outcome[Out]) {
	b, m := &q.board, e.m
	before := b.fresh.n
	for i := range rs {
		r := &rs[i]
		switch r.status {
		case statusRecalled:
			m.isRecalling = false
			m.isVain = b.fresh.n == before
			continue
		case statusReturned:
			b.giveBack(m, r.id)
			continue
		}
		t := b.release(m, r.id)
		if t == nil {
			continue
		}
		m.isVain = false
		t.by = m.id
		switch failure, _ := r.err.(*TaskError); {
		case failure == nil:
			t.out = r.out
			b.stats.Done++
			b.end(t, nil)
		case r.status == statusAgain:
			failure.Worker = m.id
			b.stats.Again++
			b.retry(t, failure, false)
		default:
			failure.Worker = m.id
			b.stats.Failed++
			b.end(t, failure)
		}
	}
	q.signalReady()
	if b.fresh.n > before || b.suspects.n > 0 {
		q.kick()
	}
	for e.m == m && e.isAsleep && !e.isSending && q.wants(e) && q.give(e, false) {
	}
	if e.m == m && e.isAsleep {
		q.rest(e)
	}
}

// kick wakes workers for tasks that were added. mu must be held.
func (q *Queue[In, Out]) kick() {
	b := &q.board
	for range b.fresh.n {
		m := b.hungriest()
		if m == nil {
			break
		}
		q.workers[m.id].wakeUp()
	}
	if b.suspects.n == 0 {
		return
	}
	if b.isolating != nil {
		q.workers[b.isolating.id].wakeUp()
	}
	if m := b.hungriest(); m != nil {
		q.workers[m.id].wakeUp()
	}
}

// lose ends the session of a worker. mu must be held.
func (q *Queue[In, Out]) lose(e *employee[In, Out], reason error) {
	if reason == nil {
		reason = errors.New("it is gone")
	}
	q.board.lose(e.m, reason)
	e.m, e.lost = nil, reason
	e.cancel()
	e.wakeUp()
	q.signalReady()
	q.kick()
}

// balanceAfter is how long a worker has nothing to do before another one is asked to give back
// tasks that it has not begun. Tasks that take less are not worth it.
const balanceAfter = time.Millisecond

// armBalance lets balance run soon if m has nothing to do. mu must be held.
func (q *Queue[In, Out]) armBalance(m *member[In, Out]) {
	if m.busy > 0 || q.isArmed || q.board.stats.Working == 0 {
		return
	}
	q.isArmed = true
	if q.balancing == nil {
		q.balancing = time.AfterFunc(balanceAfter, q.balance)
	} else {
		q.balancing.Reset(balanceAfter)
	}
}

// balance asks workers to give back tasks for those that have nothing to do.
func (q *Queue[In, Out]) balance() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.isArmed = false
	if q.life.Err() == nil {
		q.board.recall(func(m *member[In, Out]) { q.workers[m.id].wakeUp() })
	}
}
