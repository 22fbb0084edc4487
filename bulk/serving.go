// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// share limits the requests of one target that are served at a time to a quarter of all.
const share = 4

// A serving counts the requests that are being served. It keeps targets from making an origin start
// goroutines without limit, and one target from using up the limit.
type serving struct {
	mu    sync.Mutex
	all   int
	peers map[rocl.GID]int // by context
}

// begin counts a request from a resource. It reports false if most requests are being served, or if
// those of the resource's context have reached their share.
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

// The pauses between two attempts of a request that an origin was too busy to serve.
const (
	busyFirst = time.Millisecond
	busyMost  = 50 * time.Millisecond
)

// silentMost is how many times an origin may release a request without a reply before the transfer
// fails. An origin does so if it has no room even for the reply that it is busy.
const silentMost = 10

// isBusy reports whether err says that the origin had no time or no room for a request, or that
// this context has no memory for one now.
func isBusy(err error) bool {
	return errors.Is(err, errBusy) || errors.Is(err, rocl.ErrNoReply) || errors.Is(err, rocl.ErrLimit) && !errors.Is(err, rocl.ErrTooLarge)
}

// patiently calls do again, after a pause, while the origin is too busy. It returns the cause of
// ctx when ctx ends.
func patiently(ctx context.Context, do func() error) error {
	silent := 0
	for pause := busyFirst; ; pause = min(2*pause, busyMost) {
		err := do()
		if !isBusy(err) {
			return err
		}
		if errors.Is(err, rocl.ErrNoReply) {
			silent++
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
