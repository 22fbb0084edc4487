// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// summariesIdle is how long the daemon keeps its context after the last question for a summary.
const summariesIdle = 30 * time.Second

// summaries sums up what goes on on the node, with a context that exists only while somebody asks.
type summaries struct {
	socket string

	mu      sync.Mutex // held while a summary is made
	c       *rocl.Context
	idle    *time.Timer // closes c; nil before the first summary
	isEnded bool
}

// make is the function of directory.WithSummary.
func (s *summaries) make(ctx context.Context, contexts []rocl.GID) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.isEnded:
		return nil, rocl.ErrClosed
	case s.c == nil:
		c, err := rocl.Open(ctx, rocl.WithSocket(s.socket), rocl.JoinOnly())
		if err != nil {
			return nil, err
		}
		s.c = c
	}
	if s.idle == nil {
		s.idle = time.AfterFunc(summariesIdle, s.rest)
	} else {
		s.idle.Reset(summariesIdle)
	}
	self := s.c.ID()
	return s.c.Summarize(ctx, slices.DeleteFunc(contexts, func(id rocl.GID) bool { return id == self }))
}

// rest closes the context: nobody has asked for a while.
func (s *summaries) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close()
}

// end ends what make may do, and closes the context.
func (s *summaries) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isEnded = true
	if s.idle != nil {
		s.idle.Stop()
	}
	s.close()
}

// close closes the context, if there is one. mu must be held.
func (s *summaries) close() {
	if s.c != nil {
		s.c.Close() // nothing is sent that could be lost
		s.c = nil
	}
}
