// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
)

// Serve is a worker: it registers a resource with the attributes a, by which queues find it, and
// does their tasks with f until ctx ends. Then it takes leave: tasks that f has not begun go back
// to their queues at once, running ones are finished within the time of [Grace], and Serve returns
// nil when the queues have the results, or have ended. Several queues share the worker: it takes
// their tasks in turn.
//
// The ctx of f has the values of the ctx of Serve. It ends, with the cause ErrLost, when the queue
// has ended or has given the worker up: nothing waits for the result then. An error of f is the
// result of the task, unless it matches [Again]. A panic is an error that matches ErrPanic.
//
// Serve fails as rocl.Context.Register does, and with ErrOption, with rocl.ErrClosed if c is
// closed, or with ErrGrace. With ErrGrace, handlers that do not heed the end of their context still
// run.
func Serve[In, Out any](ctx context.Context, c *rocl.Context, a rocl.Attributes, f func(context.Context, In) (Out, error), opts ...Option) error {
	cfg, err := newConfig(opts, false)
	if err != nil {
		return err
	}
	if c == nil {
		return fmt.Errorf("work: serve: %w: the context is nil", fs.ErrInvalid)
	}
	if f == nil {
		return fmt.Errorf("work: serve: %w: the handler is nil", fs.ErrInvalid)
	}
	attrs, err := attributes(a)
	if err != nil {
		return fmt.Errorf("work: serve: %w", err)
	}
	s := &server[In, Out]{f: f, in: format[In]{codecFor[In](cfg)}, out: format[Out]{codecFor[Out](cfg)}, handlers: cfg.handlers,
		base: context.WithoutCancel(ctx), sessions: map[rocl.GID]*session{}}
	s.work.L, s.quiet.L = &s.mu, &s.mu
	if s.self, err = c.Register(ctx, attrs); err != nil {
		return fmt.Errorf("work: serve: %w", err)
	}
	if err = s.run(ctx, *cfg.grace); err != nil {
		return fmt.Errorf("work: serve: %w", err)
	}
	return nil
}

// A server is a worker.
type server[In, Out any] struct {
	f        func(context.Context, In) (Out, error)
	in       format[In]
	out      format[Out]
	handlers int
	self     *rocl.Resource
	base     context.Context // of handlers
	life     context.Context // ends receives and sends
	wg       sync.WaitGroup  // goroutines, except handlers

	mu        sync.Mutex // no call that waits is made while it is held
	sessions  map[rocl.GID]*session
	turns     deque[*session] // sessions that have jobs, in turn
	work      sync.Cond       // there is a job, or stopped
	quiet     sync.Cond       // a session has come nearer to its end, or has ended
	running   int             // handlers
	isLeaving bool
	isExpired bool // the time of grace is over
	isStopped bool // nothing is received any more
}

// A session has the tasks of one queue. The server's mu guards it.
type session struct {
	queue  rocl.GID
	number uint32
	ctx    context.Context // of handlers
	end    context.CancelCauseFunc

	jobs    deque[job]
	inTurn  bool // the session is in turns
	running int  // handlers
	isEnded bool // the queue is gone, or has begun another session
	hasLeft bool // the queue sends no further task

	out       []byte        // results to be sent
	results   int           // of out
	full      deque[[]byte] // batches of results to be sent before
	spare     []byte        // the memory of a batch that was sent
	isSending bool
	sent      time.Time   // when a batch was last sent
	timer     *time.Timer // sends out
	isArmed   bool        // timer runs
}

// A job is a task that was not begun.
type job struct {
	id    uint64
	value []byte
	batch *batch
}

// A batch is a message with tasks. Its memory is released when all have been decoded.
type batch struct {
	m    *rocl.Message
	left atomic.Int32
}

func (b *batch) done() {
	if b.left.Add(-1) == 0 {
		b.m.Release()
	}
}

// run receives and works until ctx ends, and takes leave.
func (s *server[In, Out]) run(ctx context.Context, grace time.Duration) (err error) {
	life, end := context.WithCancel(s.base)
	s.life = life
	received := make(chan struct{})
	s.wg.Go(func() { defer close(received); err = s.receive() })
	for range s.handlers {
		go s.handle()
	}
	select {
	case <-ctx.Done():
	case <-received:
	}
	defer time.AfterFunc(grace, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.isExpired = true
		s.quiet.Broadcast()
	}).Stop()
	s.leave(grace)
	end()
	<-received
	s.mu.Lock()
	lost := s.running
	for _, ses := range s.sessions {
		cause := ErrLost
		if s.isExpired {
			cause = ErrGrace
		}
		s.drop(ses, cause)
	}
	s.work.Broadcast()
	for s.running > 0 && !s.isExpired {
		s.quiet.Wait()
	}
	isExpired := s.isExpired
	s.mu.Unlock()
	s.wg.Wait()
	switch {
	case err == nil && isExpired && lost > 0:
		err = fmt.Errorf("%w: %d", ErrGrace, lost)
	case err == nil && ctx.Err() == nil:
		err = fmt.Errorf("%w: the worker's context", rocl.ErrClosed)
	}
	return errors.Join(err, s.self.Close())
}

// leave gives back what was not begun, and waits until the queues have everything else, or the
// worker has stopped.
func (s *server[In, Out]) leave(grace time.Duration) {
	s.mu.Lock()
	s.isLeaving = true
	for _, ses := range s.sessions {
		s.giveBack(ses, ses.jobs.n)
		s.wg.Go(func() { // the queue answers when it has sent its last task
			_ = s.self.SendAndForget(s.life, ses.queue, tagOf(kindLeaving, ses.number), nil) // the monitor tells if the queue is gone
		})
	}
	for !s.isExpired && !s.isStopped && !s.isQuiet() {
		s.quiet.Wait()
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.life, grace)
	defer cancel()
	_ = s.self.Flush(ctx) // a queue that has ended needs no result
}

// isQuiet reports whether each queue has everything. mu must be held.
func (s *server[In, Out]) isQuiet() bool {
	for _, ses := range s.sessions {
		if !ses.hasLeft || ses.running > 0 || ses.isSending || len(ses.out) > 0 || ses.full.n > 0 {
			return false
		}
	}
	return true
}

// receive handles the messages of queues. It returns nil if it has ended with life, or the resource
// is closed.
func (s *server[In, Out]) receive() error {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.isStopped = true
		s.quiet.Broadcast()
	}()
	for m, err := range s.self.Messages(s.life) {
		if err != nil {
			return err
		}
		kind, number := splitTag(m.Tag())
		if kind == kindHello && m.IsCall() {
			s.hello(m, number)
			continue
		}
		s.mu.Lock()
		ses := s.sessions[m.From()]
		switch {
		case ses == nil || ses.number != number:
			if kind == kindTasks || kind == kindPing {
				s.answer(m.From(), tagOf(kindBye, number))
			}
		case kind == kindGone && m.IsGone():
			s.drop(ses, fmt.Errorf("%w: queue %v: %w", ErrLost, ses.queue, m.GoneErr()))
		case kind == kindTasks:
			s.accept(ses, m)
			s.mu.Unlock()
			continue // the batch releases m
		case kind == kindRecall && m.Len() == 4:
			s.giveBack(ses, int(min(binary.LittleEndian.Uint32(m.Bytes()), mostSlots)))
			ses.add(0, statusRecalled, nil)
			s.flush(ses)
		case kind == kindLeft:
			ses.hasLeft = true
			s.quiet.Broadcast()
		case kind == kindPing:
			s.answer(m.From(), tagOf(kindPong, number))
		}
		s.mu.Unlock()
		m.Release()
	}
	return nil
}

// answer sends a message without a payload, unless there is no room for it: the queue asks again.
func (s *server[In, Out]) answer(to rocl.GID, tag uint64) { _ = trySend(s.self, to, tag, nil) }

// hello begins a session with a queue, in place of an earlier one. It releases m.
func (s *server[In, Out]) hello(m *rocl.Message, number uint32) {
	reply := binary.LittleEndian.AppendUint32([]byte{helloOK}, uint32(s.handlers))
	ses := &session{queue: m.From(), number: number}
	if _, ok := checkSample(m.Bytes(), s.in); !ok {
		ses, reply = nil, appendTypes[In, Out]([]byte{helloTypes})
	} else {
		reply = sample(reply, s.out)
		ses.ctx, ses.end = context.WithCancelCause(s.base)
		ses.timer = time.AfterFunc(time.Hour, func() { s.onTimer(ses) })
		ses.timer.Stop()
	}
	s.mu.Lock()
	switch {
	case ses == nil:
	case s.isLeaving:
		ses.end(nil)
		ses, reply = nil, []byte{helloLeaving}
	default:
		if old := s.sessions[ses.queue]; old != nil {
			s.drop(old, fmt.Errorf("%w: queue %v has given this worker up", ErrLost, ses.queue))
		}
		s.sessions[ses.queue] = ses
	}
	s.mu.Unlock()
	s.wg.Go(func() { // may wait for the link
		defer m.Release()
		if ses != nil && !s.monitor(ses) {
			return
		}
		_ = s.self.ReplyBytes(s.life, m, reply) // the monitor tells if the queue is gone
	})
}

// monitor watches the queue of a session, until the session ends.
func (s *server[In, Out]) monitor(ses *session) (ok bool) {
	_, err := s.self.Monitor(ses.ctx, ses.queue, tagOf(kindGone, ses.number))
	if err == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(ses, fmt.Errorf("%w: queue %v: %w", ErrLost, ses.queue, err))
	return false
}

// drop ends a session with its tasks. mu must be held.
func (s *server[In, Out]) drop(ses *session, cause error) {
	if ses.isEnded {
		return
	}
	ses.isEnded = true
	ses.end(cause)
	ses.timer.Stop()
	for ses.jobs.n > 0 {
		ses.jobs.popFront().batch.done()
	}
	ses.out, ses.full = nil, deque[[]byte]{}
	if s.sessions[ses.queue] == ses {
		delete(s.sessions, ses.queue)
	}
	s.quiet.Broadcast()
}

// accept adds the tasks of a message. mu must be held.
func (s *server[In, Out]) accept(ses *session, m *rocl.Message) {
	b := &batch{m: m}
	n := int32(0)
	b.left.Store(1) // until all are counted
	defer b.done()
	for p := m.Bytes(); len(p) > 0; {
		id, value, rest, ok := cutTask(p)
		if !ok {
			s.answer(ses.queue, tagOf(kindBye, ses.number))
			s.drop(ses, fmt.Errorf("%w: queue %v: %w", ErrLost, ses.queue, errProtocol))
			return
		}
		p = rest
		b.left.Add(1)
		ses.jobs.pushBack(job{id, value, b})
		n++
	}
	if s.isLeaving {
		s.giveBack(ses, int(n))
		return
	}
	if !ses.inTurn && ses.jobs.n > 0 {
		ses.inTurn = true
		s.turns.pushBack(ses)
	}
	if n == 1 {
		s.work.Signal()
	} else {
		s.work.Broadcast()
	}
}

// giveBack gives the last n tasks that were not begun back to their queue. mu must be held.
func (s *server[In, Out]) giveBack(ses *session, n int) {
	for ; n > 0 && ses.jobs.n > 0; n-- {
		j := ses.jobs.popBack()
		j.batch.done()
		ses.add(j.id, statusReturned, nil)
	}
	s.flush(ses)
}

// handle does one task after another.
func (s *server[In, Out]) handle() {
	var scratch []byte
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		ses, j, ok := s.next()
		if !ok {
			return
		}
		ses.running++
		s.running++
		s.mu.Unlock()
		status, value := s.do(ses, j, scratch[:0])
		s.mu.Lock()
		s.running--
		ses.running--
		if !ses.isEnded {
			s.result(ses, j.id, status, value)
		}
		if s.isLeaving {
			s.quiet.Broadcast()
		}
		if scratch = value; cap(scratch) > 2*mostBatch {
			scratch = nil
		}
	}
}

// next waits for a job. Sessions get a handler in turn. mu must be held, and is released meanwhile.
func (s *server[In, Out]) next() (ses *session, j job, ok bool) {
	for {
		for s.turns.n > 0 {
			ses := s.turns.popFront()
			if ses.inTurn = ses.jobs.n > 0; !ses.inTurn {
				continue
			}
			j := ses.jobs.popFront()
			s.turns.pushBack(ses)
			return ses, j, true
		}
		if s.isStopped {
			return nil, job{}, false
		}
		s.work.Wait()
	}
}

// do does a task, and returns what has become of it. The value lies in p, if that has room.
func (s *server[In, Out]) do(ses *session, j job, p []byte) (status byte, value []byte) {
	hasReturned := false
	defer func() {
		if hasReturned {
			return
		}
		v := recover() // nil after runtime.Goexit, which cannot be stopped
		text := fmt.Appendf(p[:0], "%v: %v\n%s", ErrPanic, v, debug.Stack())
		status, value = statusPanic, text[:min(len(text), mostText)]
		if v == nil {
			s.replace(ses, j, status, value)
		}
	}()
	var in In
	err := s.in.decode(j.value, &in)
	j.batch.done()
	if err != nil {
		hasReturned = true
		return statusValue, append(p, textOf(fmt.Errorf("the task: %w", err))...)
	}
	out, err := s.f(ses.ctx, in)
	hasReturned = true
	if err != nil {
		status, text := describe(err)
		return status, append(p, text...)
	}
	if value, err = s.out.append(p, &out); err == nil {
		err = checkLength(len(value) + resultHead)
	}
	if err != nil {
		return statusOf(valueOr(err)), append(p[:0], textOf(fmt.Errorf("the result: %w", err))...)
	}
	return statusOK, value
}

// replace continues in another goroutine: the handler has ended its own.
func (s *server[In, Out]) replace(ses *session, j job, status byte, value []byte) {
	s.mu.Lock() // released by handle
	s.running--
	ses.running--
	if !ses.isEnded {
		s.result(ses, j.id, status, value)
	}
	s.quiet.Broadcast()
	go s.handle()
}

// Results leave in batches: when as many are done as wait to be done, so that further tasks come
// meanwhile, when the batch is full, or when lingers is over since the last batch.
const (
	lingers    = 100 * time.Microsecond
	fewResults = 16
)

// result adds what has become of a task to the batch, which leaves if it is time. mu must be held,
// and may be released meanwhile.
func (s *server[In, Out]) result(ses *session, id uint64, status byte, value []byte) {
	ses.add(id, status, value)
	switch {
	case ses.jobs.n <= ses.results && ses.results >= fewResults || ses.jobs.n == 0 || ses.full.n > 0 || time.Since(ses.sent) >= lingers:
		s.flush(ses)
	case !ses.isArmed:
		ses.isArmed = true
		ses.timer.Reset(lingers)
	}
}

// add adds what has become of a task to the batch. The server's mu must be held.
func (ses *session) add(id uint64, status byte, value []byte) {
	if ses.isEnded {
		return
	}
	if n := resultHead + len(value); len(ses.out) > 0 && len(ses.out)+n > mostBatch {
		ses.full.pushBack(ses.out)
		ses.out, ses.spare, ses.results = ses.spare, nil, 0
	}
	ses.results++
	ses.out = appendResult(ses.out, id, status, value)
}

func (s *server[In, Out]) onTimer(ses *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ses.isArmed = false
	s.flush(ses)
}

// flush sends the results of a session, unless a goroutine does. mu must be held, and is released
// meanwhile.
func (s *server[In, Out]) flush(ses *session) {
	if !ses.isSending {
		ses.isSending = true
		s.send(ses, false)
	}
}

// send sends the results of a session. If it may not wait and there is no room at the queue,
// another goroutine goes on. mu must be held, and is released meanwhile.
func (s *server[In, Out]) send(ses *session, waits bool) {
	for !ses.isEnded && (ses.full.n > 0 || len(ses.out) > 0) {
		var p []byte
		if ses.full.n > 0 {
			p = ses.full.popFront()
		} else {
			p, ses.out, ses.spare, ses.results = ses.out, ses.spare, nil, 0
		}
		ses.sent = time.Now()
		s.mu.Unlock()
		var err error
		if waits {
			err = sendWait(ses.ctx, s.self, ses.queue, tagOf(kindResults, ses.number), p)
		} else {
			err = trySend(s.self, ses.queue, tagOf(kindResults, ses.number), p)
		}
		s.mu.Lock()
		if err == nil && cap(p) <= 2*mostBatch {
			ses.spare = p[:0]
		}
		switch {
		case err == nil || ses.isEnded:
		case !waits:
			ses.full.pushFront(p)
			s.wg.Go(func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.send(ses, true)
			})
			return
		case errors.Is(err, rocl.ErrTooLarge): // one result, or the batch would be small
			if id, status, _, _, ok := cutResult(p); ok && status == statusOK {
				ses.add(id, statusTooLarge, []byte("the result: "+textOf(err)))
			}
		default: // the queue is gone, or learns by a ping that this session has ended
			s.drop(ses, fmt.Errorf("%w: queue %v: %w", ErrLost, ses.queue, err))
		}
	}
	ses.isSending = false
	s.quiet.Broadcast()
}
