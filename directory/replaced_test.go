// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"errors"
	"flag"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/resource"
)

var replacements = flag.Int("replacements", 20, "how many times TestReplacedUnderLoad replaces the server")

// hang is how long a test waits for what should happen at once.
const hang = 30 * time.Second

// Callers of a client return, however often its server is replaced.
func TestReplacedUnderLoad(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	path := sock(t)
	s := serve(t, path)
	c := joined(t, path)
	const callers = 50
	var wg sync.WaitGroup
	var done [callers]atomic.Uint64
	ctx, cancel := context.WithCancel(t.Context())
	for i := range callers {
		id := c.Self().WithSerial(uint32(i + 1))
		l := list(t, resource.Attrs{"type": "lamp"})
		wg.Go(func() {
			for ctx.Err() == nil {
				_, err := c.Register(ctx, id, l)
				if err == nil {
					_, err = c.Find(ctx, l)
				}
				if err == nil {
					err = c.Delete(ctx, id)
				}
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				done[i].Add(1)
			}
		})
	}
	for range *replacements {
		s.Close()
		s = serve(t, path)
		for i := range callers {
			before := done[i].Load()
			for end := time.Now().Add(hang); done[i].Load() == before; time.Sleep(100 * time.Microsecond) {
				if time.Now().After(end) {
					t.Errorf("caller %d hangs after its server was replaced", i)
					cancel()
					wg.Wait()
					return
				}
			}
		}
	}
	cancel()
	wg.Wait()
}

// Several goroutines may notice the end of a connection, in any order. A caller that waits for the
// next connection is woken.
func TestLostIsNoticedTwice(t *testing.T) {
	path := sock(t)
	serve(t, path)
	c := joined(t, path)
	lc := c.conn
	c.lost(lc)
	waits := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		c.mu.Lock()
		ch := c.joined
		c.mu.Unlock()
		close(begun)
		select {
		case <-ch:
			waits <- nil
		case <-time.After(hang):
			waits <- errors.New("a caller waits for a connection that has been made")
		}
	}()
	<-begun
	c.lost(lc)
	lc.c.Close()
	if err := <-waits; err != nil {
		t.Error(err)
	}
}
