// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A mutex has one holder, and virtual time goes on while others wait for it.
func TestMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mu, n := newMutex(), 0
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				for range 10 {
					mu.Lock()
					was := n
					time.Sleep(time.Second) // of virtual time
					n = was + 1
					mu.Unlock()
				}
			})
		}
		start := time.Now()
		wg.Wait()
		try.Equal(t, n, 100)
		try.Equal(t, time.Since(start), 100*time.Second)
		try.Equal(t, mu.TryLock(), true)
		try.Equal(t, mu.TryLock(), false)
	})
}
