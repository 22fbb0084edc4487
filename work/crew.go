// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// An employee is a worker as its queue knows it. The goroutine of employ makes one session after
// another with it, and sends in the session. The goroutine of receive ends a session. The queue's mu
// guards the fields.
type employee[In, Out any] struct {
	id       rocl.GID
	isListed bool               // the watch says that the worker exists
	m        *member[In, Out]   // nil between sessions
	lost     error              // why the last session has ended
	cancel   context.CancelFunc // ends a send of the session
	heard    time.Time          // when the worker last sent something, or got its first task
	saysLeft bool               // left is to be sent
	isAsleep bool               // the sending goroutine waits for wake
	wake     *sync.Cond
}

// grain returns how much room a worker that has tasks must have before it gets more: not every task
// shall be a message of its own.
func (e *employee[In, Out]) grain(perWorker int) int { return max(perWorker/4, 1) }

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
	e.lost, e.cancel, e.saysLeft, e.heard = nil, cancel, false, time.Now()
	q.mu.Unlock()
	stop, err := q.self.Monitor(ctx, e.id, tagOf(kindGone, number))
	q.mu.Lock()
	if err != nil && e.m != nil {
		q.lose(e, err)
	} else if err == nil {
		defer stop()
	}
	q.serve(ctx, e)
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
func (q *Queue[In, Out]) serve(ctx context.Context, e *employee[In, Out]) {
	s := sender[In, Out]{q: q, id: e.id, session: q.sessionOf(e)}
	for e.m != nil && q.life.Err() == nil {
		m := e.m
		isIdle := m.busy == 0
		s.tasks = q.board.take(m, s.tasks[:0])
		recalls, saysLeft := m.recalls, e.saysLeft
		m.recalls, e.saysLeft = 0, false
		if len(s.tasks) == 0 && recalls == 0 && !saysLeft {
			e.isAsleep = true
			if q.board.fresh.n == 0 && q.board.room(m) > 0 {
				q.starve(e)
			}
			e.wake.Wait()
			e.isAsleep = false
			if e.m == m {
				q.board.sated(m)
			}
			continue
		}
		if isIdle {
			e.heard = time.Now()
		}
		q.mu.Unlock()
		s.send(ctx, recalls, saysLeft)
		q.mu.Lock()
		for _, f := range s.failed {
			t := q.board.releaseIf(e.m, m, f.id)
			switch {
			case t == nil:
			case f.err != nil:
				q.board.stats.Failed++
				q.board.end(t, f.err)
				q.signalReady()
			default: // it was not sent
				t.runs--
				q.board.fresh.pushFront(t)
				q.kick()
			}
		}
		clear(s.tasks) // for the garbage collector
		switch {
		case !s.isBroken || e.m != m:
		case m.busy == 0:
			q.lose(e, rocl.ErrUnreachable)
		default:
			q.board.leave(m) // the monitor reports the end behind the last result
		}
	}
	e.m = nil
}

// sessionOf returns the number of the session with a worker. mu must be held.
func (q *Queue[In, Out]) sessionOf(e *employee[In, Out]) uint32 {
	if e.m == nil {
		return 0
	}
	return e.m.session
}

// A sender sends to a worker in a session.
type sender[In, Out any] struct {
	q        *Queue[In, Out]
	id       rocl.GID
	session  uint32
	tasks    []assignment[In, Out]
	batch    []byte
	failed   []failure
	isBroken bool // a send has failed
}

// A failure is a task that was not sent. If err is nil, because its message was not.
type failure struct {
	id  uint64
	err error
}

// send sends the tasks, and what else the worker is to be told. It sets failed and isBroken.
func (s *sender[In, Out]) send(ctx context.Context, recalls int, saysLeft bool) {
	s.failed = s.failed[:0]
	first := 0 // of the tasks in batch
	s.batch = s.batch[:0]
	for i := range s.tasks {
		a := &s.tasks[i]
		p, err := appendTask(s.q.in, s.batch, a.id, &a.in)
		if err != nil {
			s.failed = append(s.failed, failure{a.id, &TaskError{Text: "the task: " + textOf(err), is: valueOr(err)}})
			continue
		}
		if len(p) > mostBatch && len(s.batch) > 0 { // the task goes into a message of its own
			s.leave(ctx, s.batch, s.tasks[first:i])
			p, first = append(s.batch[:0], p[len(s.batch):]...), i
		}
		s.batch = p
	}
	s.leave(ctx, s.batch, s.tasks[first:])
	if cap(s.batch) > 2*mostBatch {
		s.batch = nil
	}
	if recalls > 0 {
		s.say(ctx, kindRecall, binary.LittleEndian.AppendUint32(nil, uint32(recalls)))
	}
	if saysLeft {
		s.say(ctx, kindLeft, nil)
	}
}

// leave sends a batch. If that fails, its tasks were not sent.
func (s *sender[In, Out]) leave(ctx context.Context, batch []byte, tasks []assignment[In, Out]) {
	if len(batch) == 0 {
		return
	}
	err := s.say(ctx, kindTasks, batch)
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

func (s *sender[In, Out]) say(ctx context.Context, kind byte, p []byte) error {
	if s.isBroken {
		return rocl.ErrGone
	}
	err := s.q.self.SendBytes(ctx, s.id, tagOf(kind, s.session), p)
	s.isBroken = err != nil && !errors.Is(err, rocl.ErrTooLarge)
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
			b, err := q.c.Buffer(0)
			if err == nil && q.self.TrySend(p.id, p.tag, b) != nil {
				b.Release()
			}
		}
	}
}
