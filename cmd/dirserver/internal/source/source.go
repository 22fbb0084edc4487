// SPDX-License-Identifier: Apache-2.0

// Package source gathers what the contexts of a node tell, for the metrics, the page and the
// summaries of dirserver. While nobody asks, it has no context, no goroutine and no timer.
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
	client    *Client
	isCluster bool // views have the nodes of the cluster
	fresh     time.Duration

	mu   sync.Mutex
	last *question // nil if there is none, or its view is old
}

// A question is one view for all that ask at about the same time.
type question struct {
	began time.Time
	done  chan struct{}
	view  *observe.View // set before done is closed
	err   error         // set before done is closed
}

// New returns a Source that asks by the context of client, which the Source does not close.
func New(client *Client) *Source { return &Source{client: client, fresh: fresh} }

// OfCluster makes the views of s have the other nodes of the cluster too, and returns s.
func (s *Source) OfCluster() *Source {
	s.isCluster = true
	return s
}

// View returns a view of the node that is at most a second old. All callers share it, and must not
// change it. View fails with rocl.ErrClosed after the client was closed, with the cause of ctx when
// ctx ends, and if the directory does not answer.
func (s *Source) View(ctx context.Context) (*observe.View, error) {
	s.mu.Lock()
	q := s.last
	if q == nil {
		q = &question{began: time.Now(), done: make(chan struct{})}
		s.last = q
		go s.gather(q)
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
	defer close(q.done)
	ctx, cancel := context.WithTimeout(context.Background(), allTime)
	defer cancel()
	q.err = s.client.Use(ctx, func(ctx context.Context, c *rocl.Context) (err error) {
		q.view, err = observe.Gather(ctx, c, s.isCluster, replyTime)
		return err
	})
	forget := func() {
		s.mu.Lock()
		s.last = nil
		s.mu.Unlock()
	}
	if rest := s.fresh - time.Since(q.began); q.err == nil && rest > 0 {
		time.AfterFunc(rest, forget)
	} else {
		forget()
	}
}
