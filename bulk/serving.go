// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// share is which part of the requests that are served at a time those of one target may be: a quarter.
const share = 4

// A serving counts the requests that are being served, so that targets cannot make an origin start goroutines
// without end, and one target cannot take the place of all others.
type serving struct {
	mu    sync.Mutex
	all   int
	peers map[rocl.GID]int // by context
}

// begin counts a request from a resource, unless there are as many as most, or its context has its share.
func (s *serving) begin(from rocl.GID, most int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	peer := from.Context()
	if s.all >= most || s.peers[peer] >= max(most/share, 1) {
		return false
	}
	if s.peers == nil {
		s.peers = map[rocl.GID]int{}
	}
	s.all++
	s.peers[peer]++
	return true
}

func (s *serving) end(from rocl.GID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	peer := from.Context()
	s.all--
	if s.peers[peer]--; s.peers[peer] == 0 {
		delete(s.peers, peer)
	}
}

func (s *serving) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}

// Between two attempts at what an origin is too busy for.
const (
	busyFirst = time.Millisecond
	busyMost  = 50 * time.Millisecond
)

// silentMost is how many times an origin may release a request without a reply, as it does where it has no room even
// to say that it is busy.
const silentMost = 10

// patiently calls do again as long as the origin is too busy, until ctx ends.
func patiently(ctx context.Context, do func() error) error {
	silent := 0
	for pause := busyFirst; ; pause = min(2*pause, busyMost) {
		err := do()
		if errors.Is(err, rocl.ErrNoReply) {
			silent++
		} else if !errors.Is(err, errBusy) {
			return err
		}
		if silent == silentMost {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
