// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// left describes what searches have left in memory, or is "".
func left(c *Cluster) string {
	c.searches.mu.Lock()
	defer c.searches.mu.Unlock()
	parts, searches := c.searches.node.Pending()
	if next := c.searches.node.Next(); parts+searches > 0 || !next.IsZero() {
		return fmt.Sprintf("%d parts, %d searches, an alarm: %v", parts, searches, !next.IsZero())
	}
	return ""
}

// Thousands of questions are given up at any moment, by goroutines that sleep and by goroutines
// that poll. Two members are asked, one of which does not answer. A thousand questions at a time
// are all answered. Nothing is left of the questions.
//
// Promise (Cluster searches): Thousands of questions at once are all answered. Questions given up
// leave nothing behind. See also TestAskAtOnce.
func TestManyAtOnce(t *testing.T) {
	for _, poll := range []time.Duration{0, 200 * time.Microsecond} {
		var sure atomic.Bool
		a, b, c := three(t, func(c *Config) { unhurried(c); c.Poll, c.Patience = poll, time.Minute }, unhurried, func(c *Config) { unhurried(c); c.Sure = sure.Load })
		before := runtime.NumGoroutine()
		slots := make(chan struct{}, 200)
		var wg sync.WaitGroup
		for i := range 5_000 {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%100)*100*time.Microsecond)
				defer cancel()
				try.Fails(a.Find(ctx, pattern(resource.Match{"a": "b"})))(t, context.DeadlineExceeded)
			})
		}
		wg.Wait()
		eventually.True(t, "nothing is left", func() bool { return left(a) == "" })
		eventually.True(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+5 })
		sure.Store(true)
		ids := map[int]resource.GID{}
		for i := range 10 {
			ids[i] = put(t, []*Cluster{b, c}[i%2], uint32(i+1), resource.Attrs{"i": fmt.Sprint(i)})
		}
		for i := range 1000 {
			wg.Go(func() {
				r, err := asks(t, a, resource.Match{"i": fmt.Sprint(i % 20)})
				if id, there := ids[i%20]; there && (err != nil || r.ID != id) || !there && !errors.Is(err, directory.ErrNotFound) {
					t.Errorf("%d: %v: %v", i%20, r.ID, err)
				}
			})
		}
		wg.Wait()
		eventually.True(t, "nothing is left", func() bool { return left(a) == "" })
		for _, c := range []*Cluster{a, b, c} {
			c.Close()
		}
	}
}
