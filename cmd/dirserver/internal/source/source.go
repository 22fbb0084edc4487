// SPDX-License-Identifier: Apache-2.0

// Package source gathers what the contexts of a node tell, for the metrics and the page of
// dirserver. While nobody asks, it has no context, no goroutine and no timer.
package source

import (
	"context"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/observe"
)

const (
	fresh     = time.Second     // for how long one view answers all that ask
	idle      = time.Minute     // how long the context stays open after the last question
	replyTime = time.Second     // in which a context must answer; it is silent otherwise
	allTime   = 5 * time.Second // the longest time until a view is there, with the opening of the context
)

// A Source gathers views of a node on demand. Its methods may be called concurrently.
type Source struct {
	open func(context.Context) (*rocl.Context, error)
	life context.Context // ends with Close
	end  context.CancelFunc

	fresh, idle time.Duration

	running sync.WaitGroup // goroutines; begun with mu held, before Close
	mu      sync.Mutex
	c       *rocl.Context // nil while closed; used by the goroutine of last while that is not done
	last    *question     // nil before the first
	close   *time.Timer   // closes c; nil while c is nil
}

// A question is one view for all that ask at about the same time.
type question struct {
	began time.Time
	done  chan struct{}
	view  *observe.View // set before done is closed
	err   error         // set before done is closed
}

func (q *question) isDone() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// New returns a Source that opens its context by open when a view is asked for. It closes the
// context when no view has been asked for during a minute.
func New(open func(context.Context) (*rocl.Context, error)) *Source {
	s := &Source{open: open, fresh: fresh, idle: idle}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// View returns a view of the node that is at most a second old. All callers share it, and must not
// change it. View fails with rocl.ErrClosed after Close, with the cause of ctx when ctx ends, and
// if the directory does not answer.
func (s *Source) View(ctx context.Context) (*observe.View, error) {
	s.mu.Lock()
	if s.life.Err() != nil {
		s.mu.Unlock()
		return nil, rocl.ErrClosed
	}
	q := s.last
	if q == nil || q.isDone() && time.Since(q.began) >= s.fresh {
		q = &question{began: time.Now(), done: make(chan struct{})}
		s.last = q
		s.running.Go(func() { s.gather(q) })
	}
	s.mu.Unlock()
	select {
	case <-q.done:
		return q.view, q.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// gather answers the question q.
func (s *Source) gather(q *question) {
	ctx, cancel := context.WithTimeout(s.life, allTime)
	defer cancel()
	s.mu.Lock()
	c := s.c
	s.mu.Unlock()
	if c == nil {
		c, q.err = s.open(ctx)
	}
	if q.err == nil {
		q.view, q.err = observe.Gather(ctx, c, false, replyTime)
	}
	if q.err != nil && c != nil { // the next question opens another one
		c.Close()
		c = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.c = c
	if s.close != nil {
		s.close.Stop()
		s.close = nil
	}
	if c != nil && s.life.Err() == nil {
		s.close = time.AfterFunc(s.idle, func() { s.rest(q) })
	}
	close(q.done)
}

// rest closes the context if nobody has asked since the question q.
func (s *Source) rest(q *question) {
	s.mu.Lock()
	if s.last != q || s.life.Err() != nil {
		s.mu.Unlock()
		return
	}
	s.running.Add(1)
	defer s.running.Done()
	c := s.c
	s.c, s.close, s.last = nil, nil, nil
	s.mu.Unlock()
	c.Close()
}

// Close ends the Source. Views that are being gathered fail.
func (s *Source) Close() {
	s.mu.Lock()
	s.end()
	if s.close != nil {
		s.close.Stop()
	}
	s.mu.Unlock()
	s.running.Wait()
	s.mu.Lock()
	c := s.c
	s.c, s.last = nil, nil
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
}
