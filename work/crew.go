// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// An employee is a worker as its queue knows it. The goroutine of employ makes one session after
// another with it, and sends in the session. The goroutine of receive ends a session. The queue's
// mu guards the fields.
type employee[In, Out any] struct {
	id       rocl.GID
	isListed bool               // the watch says that the worker exists
	m        *member[In, Out]   // nil between sessions
	lost     error              // why the last session has ended
	ctx      context.Context    // of the session
	cancel   context.CancelFunc // of ctx
	heard    time.Time          // when the worker last sent something, or got its first task
	saysLeft bool               // left is to be sent
	leaves   uint32             // the session in which the worker has last said that it leaves

	// The goroutine of serve sends, or that of receive while the other one is asleep.
	isSending bool
	sender    sender[In, Out] // belongs to the sending goroutine
	isAsleep  bool            // the goroutine of serve waits for wake
	wake      *sync.Cond
}

// again is after which time a queue says hello again to a worker that it has given up and that is
// still found.
const again = time.Second

// watch employs each worker that appears.
func (q *Queue[In, Out]) watch(pattern *rocl.List) {
	for ev, err := range q.c.Watch(q.life, pattern, rocl.Want()) {
		if err != nil {
			q.fail(fmt.Errorf("work: watch for workers: %w", err))
			return
		}
		q.mu.Lock()
		switch e := q.workers[ev.ID]; {
		case ev.Kind == rocl.Synced:
		case e != nil:
			e.isListed = ev.Kind != rocl.Gone
		case ev.Kind != rocl.Gone:
			e := &employee[In, Out]{id: ev.ID, isListed: true, wake: sync.NewCond(&q.mu)}
			q.workers[ev.ID] = e
			q.wg.Go(func() { q.employ(e) })
		}
		q.mu.Unlock()
	}
}

// employ makes one session after another with a worker, as long as the worker exists.
func (q *Queue[In, Out]) employ(e *employee[In, Out]) {
	for {
		err := q.session(e)
		q.mu.Lock()
		if q.life.Err() != nil || !e.isListed || errors.Is(err, errRefused) || errors.Is(err, ErrTypes) || errors.Is(err, rocl.ErrGone) && !errors.Is(err, rocl.ErrNodeDead) {
			delete(q.workers, e.id)
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		select {
		case <-time.After(again):
		case <-q.life.Done():
		}
	}
}

// errRefused is the end of a session that the worker has refused.
var errRefused = errors.New("work: refused")

// session says hello to a worker and sends tasks to it, until the session ends.
func (q *Queue[In, Out]) session(e *employee[In, Out]) error {
	ctx, cancel := context.WithCancel(q.life)
	defer cancel()
	q.mu.Lock()
	q.sessions++
	number := q.sessions
	q.mu.Unlock()
	handlers, err := q.hello(ctx, e.id, number)
	q.mu.Lock()
	defer q.mu.Unlock()
	if errors.Is(err, ErrTypes) {
		q.refusals++
		q.refusal = err
	}
	if err != nil {
		return err
	}
	e.m = q.board.newMember(e.id, number, handlers)
	e.lost, e.ctx, e.cancel, e.saysLeft, e.heard = nil, ctx, cancel, false, time.Now()
	if e.leaves == number { // the message came before the reply
		q.board.leave(e.m)
		e.saysLeft = true
	}
	q.mu.Unlock()
	_, err = q.self.Monitor(ctx, e.id, tagOf(kindGone, number)) // ends with ctx
	q.mu.Lock()
	if err != nil && e.m != nil {
		q.lose(e, err)
	}
	q.serve(e)
	return e.lost
}

// hello begins a session, and returns how many handlers the worker has.
func (q *Queue[In, Out]) hello(ctx context.Context, id rocl.GID, session uint32) (handlers int, err error) {
	reply, err := q.self.CallBytes(ctx, id, tagOf(kindHello, session), appendTypes[In, Out](sample(nil, q.in)))
	if err != nil {
		return 0, err
	}
	defer reply.Release()
	p := reply.Bytes()
	switch {
	case len(p) == 1 && p[0] == helloLeaving:
		return 0, errRefused
	case len(p) >= 5 && p[0] == helloOK:
		if rest, ok := checkSample(p[5:], q.out); ok && len(rest) == 0 {
			return int(min(binary.LittleEndian.Uint32(p[1:]), mostSlots)), nil
		}
		p = nil
	}
	return 0, fmt.Errorf("%w: worker %v has %s, the queue %s", ErrTypes, id, p[min(1, len(p)):], appendTypes[In, Out](nil))
}

// serve sends tasks to a worker until its session ends. mu must be held; serve releases it while it
// sends and waits.
func (q *Queue[In, Out]) serve(e *employee[In, Out]) {
	for e.m != nil && q.life.Err() == nil {
		if q.give(e, true) {
			continue
		}
		e.isAsleep = true
		q.rest(e)
		for e.isAsleep || e.isSending {
			e.wake.Wait()
		}
		if e.m != nil {
			q.board.sated(e.m)
		}
	}
	e.m = nil
}

// wakeUp wakes the goroutine of serve. mu must be held.
func (e *employee[In, Out]) wakeUp() {
	e.isAsleep = false
	e.wake.Signal()
}

// wants reports whether a worker should be sent something. A worker that has tasks gets further
// ones when there is room for several: not every task shall be a message of its own. mu must be
// held.
func (q *Queue[In, Out]) wants(e *employee[In, Out]) bool {
	b := &q.board
	return b.suspects.n > 0 || b.fresh.n > 0 && b.room(e.m) >= max(b.window(e.m)/4, 1) || e.m.recalls > 0 || e.saysLeft
}

// rest notes that a worker sleeps, if it waits for tasks. mu must be held.
func (q *Queue[In, Out]) rest(e *employee[In, Out]) {
	if q.board.fresh.n == 0 && q.board.room(e.m) > 0 && !e.m.isLeaving {
		q.board.starve(e.m)
		q.armBalance(e.m)
	}
}

// give sends a worker the tasks that it can take, and what else it is to be told. It reports
// whether there was something to be sent. If it may not wait and the worker has no room, the tasks
// are given back, and the goroutine of serve tries again. mu must be held, and is released
// meanwhile.
func (q *Queue[In, Out]) give(e *employee[In, Out], waits bool) bool {
	m, s := e.m, &e.sender
	isIdle := m.busy == 0
	s.tasks = q.board.take(m, s.tasks[:0])
	recalls, saysLeft := m.recalls, e.saysLeft
	if len(s.tasks) == 0 && recalls == 0 && !saysLeft {
		return false
	}
	m.recalls, e.saysLeft = 0, false
	if isIdle {
		e.heard = time.Now()
	}
	e.isSending = true
	s.q, s.id, s.session, s.ctx, s.waits, s.err = q, e.id, m.session, e.ctx, waits, nil
	q.mu.Unlock()
	s.send(recalls, saysLeft)
	q.mu.Lock()
	e.isSending = false
	if !e.isAsleep {
		e.wake.Signal() // in case that the goroutine of serve waits for the end of this send
	}
	clear(s.tasks) // for the garbage collector
	if e.m != m {
		return true
	}
	for _, f := range slices.Backward(s.failed) {
		switch t := q.board.release(m, f.id); {
		case t == nil:
		case f.err != nil:
			q.board.stats.Failed++
			q.board.end(t, f.err)
			q.signalReady()
		default: // it was not sent
			t.runs--
			q.board.again(t)
		}
	}
	switch {
	case s.err == nil:
	case !waits && (errors.Is(s.err, rocl.ErrFull) || errors.Is(s.err, rocl.ErrLimit)):
		m.recalls, e.saysLeft = recalls, saysLeft
		e.wakeUp()
	case m.busy == 0 || !errors.Is(s.err, rocl.ErrGone) && !errors.Is(s.err, rocl.ErrUnreachable):
		q.lose(e, s.err)
	default:
		q.board.leave(m) // the monitor reports the end behind the last result
		q.kick()
	}
	return true
}

// A sender sends to a worker in a session.
type sender[In, Out any] struct {
	q       *Queue[In, Out]
	id      rocl.GID
	session uint32
	ctx     context.Context // of the session
	waits   bool            // for room
	tasks   []assignment[In, Out]
	batch   []byte
	failed  []failure
	err     error // of the first send that failed, except for tasks that are too large
}

// A failure is a task that was not sent: because of err, or because its message was not if err is
// nil.
type failure struct {
	id  uint64
	err error
}

// send sends the tasks, and what else the worker is to be told. It sets failed and err.
func (s *sender[In, Out]) send(recalls int, saysLeft bool) {
	s.failed = s.failed[:0]
	first := 0 // of the tasks in batch
	s.batch = s.batch[:0]
	for i := range s.tasks {
		a := &s.tasks[i]
		p, err := appendTask(s.q.in, s.batch, a.id, &a.in)
		if err != nil {
			s.failed = append(s.failed, failure{a.id, &TaskError{Text: "the task: " + textOf(err), is: known[statusOf(valueOr(err))]}})
			continue
		}
		if len(p) > mostBatch && len(s.batch) > 0 { // the task goes into a message of its own
			s.leave(s.batch, s.tasks[first:i])
			p, first = append(s.batch[:0], p[len(s.batch):]...), i
		}
		s.batch = p
	}
	s.leave(s.batch, s.tasks[first:])
	if cap(s.batch) > 2*mostBatch {
		s.batch = nil
	}
	if recalls > 0 {
		s.say(kindRecall, binary.LittleEndian.AppendUint32(nil, uint32(recalls)))
	}
	if saysLeft {
		s.say(kindLeft, nil)
	}
}

// leave sends a batch. If that fails, its tasks were not sent.
func (s *sender[In, Out]) leave(batch []byte, tasks []assignment[In, Out]) {
	if len(batch) == 0 {
		return
	}
	err := s.say(kindTasks, batch)
	if err == nil {
		return
	}
	for _, a := range tasks {
		f := failure{id: a.id}
		if errors.Is(err, rocl.ErrTooLarge) {
			f.err = &TaskError{Text: "the task: " + textOf(err), is: rocl.ErrTooLarge}
		}
		s.failed = append(s.failed, f)
	}
}

func (s *sender[In, Out]) say(kind byte, p []byte) error {
	if s.err != nil {
		return s.err
	}
	var err error
	if s.waits {
		err = sendWait(s.ctx, s.q.self, s.id, tagOf(kind, s.session), p)
	} else {
		err = trySend(s.q.self, s.id, tagOf(kind, s.session), p)
	}
	if !errors.Is(err, rocl.ErrTooLarge) {
		s.err = err
	}
	return err
}

// trySend sends a copy of p, unless there is no room for it.
func trySend(from *rocl.Resource, to rocl.GID, tag uint64, p []byte) error {
	b, err := from.Context().Buffer(len(p))
	if err != nil {
		return err
	}
	copy(b.Bytes(), p)
	if err = from.TrySend(to, tag, b); err != nil {
		b.Release()
	}
	return err
}

// sendWait sends a copy of p, and waits for memory and for room.
func sendWait(ctx context.Context, from *rocl.Resource, to rocl.GID, tag uint64, p []byte) error {
	b, err := from.Context().BufferWait(ctx, len(p))
	if err != nil {
		return err
	}
	copy(b.Bytes(), p)
	if err = from.Send(ctx, to, tag, b); err != nil {
		b.Release()
	}
	return err
}

// valueOr returns which known error an error of encoding is.
func valueOr(err error) error {
	if errors.Is(err, rocl.ErrTooLarge) {
		return rocl.ErrTooLarge
	}
	return rocl.ErrValue
}

// listen asks workers that have tasks and are silent whether they live, and gives up those that do
// not answer.
func (q *Queue[In, Out]) listen() {
	tick := time.NewTicker(max(q.silence/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-q.life.Done():
			return
		}
		type ping struct {
			id  rocl.GID
			tag uint64
		}
		var pings []ping
		now := time.Now()
		q.mu.Lock()
		for _, e := range q.workers {
			switch quiet := now.Sub(e.heard); {
			case e.m == nil || e.m.busy == 0:
			case quiet >= q.silence:
				q.lose(e, fmt.Errorf("no answer for %v", q.silence))
			case quiet >= q.silence/4:
				pings = append(pings, ping{e.id, tagOf(kindPing, e.m.session)})
			}
		}
		q.mu.Unlock()
		for _, p := range pings {
			_ = trySend(q.self, p.id, p.tag, nil) // if there is no room, the worker is to take what it has
		}
	}
}
