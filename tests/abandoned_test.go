// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

// counts is a peer with an rpc server that counts how often the handler of "work" runs.
func counts(t testing.TB, c *lib.Context, who lib.Attrs) {
	var runs atomic.Int64
	try.Get(rpc.NewServer(bg, c, who, rpc.WithCalls(func(s *rpc.Server) error {
		return errors.Join(
			rpc.Register(s, "work", func(context.Context, string) (int64, error) { return runs.Add(1), nil }),
			rpc.Register(s, "runs", func(context.Context, struct{}) (int64, error) { return runs.Load(), nil }))
	})))(t)
	fmt.Println("registered")
	select {}
}

// Calls that are given up while their server's process is stopped leave no goroutines and no queue
// behind. When the server goes on, it runs none of the handlers of calls whose deadline is over. Of
// calls that were cancelled it runs few: those of which it has not heard when their turn has come.
//
// Promise (Package rpc): Calls given up at a stopped server leave no goroutine each. See also
// TestAbandonedCallsNeverRun.
func TestAbandonedCallsAtStoppedServer(t *testing.T) {
	for _, shm := range []string{"", "yes"} {
		for _, how := range []string{"deadline", "cancel"} {
			t.Run(fmt.Sprintf("shm=%s/%s", shm, how), func(t *testing.T) {
				t.Setenv("ROCL_TEST_SHM", shm)
				sock := socket(t)
				start(t, "serving", dirserver, "--socket", sock)
				p := peer(t, "counts", sock, "server")
				c := open(t, sock, overShm()...)
				cl := try.Get(rpc.NewClient(t.Context(), c))(t)
				defer cl.Close()
				f := try.Get(c.Find(eventually.Context(t), lib.Match{"peer": "server"}))(t)
				try.Get(rpc.Call[struct{}, int64](eventually.Context(t), cl, f.ID, "runs", struct{}{}))(t)
				p.signal(t, posix.SIGSTOP)
				before := runtime.NumGoroutine()
				n := 1000
				if *longMemory {
					n = 10_000
				}
				abandon(t, cl, f.ID, how, n, 200)
				eventually.True(t, "the goroutines of the calls end", func() bool { return runtime.NumGoroutine() < before+20 })
				p.signal(t, posix.SIGCONT)
				runs := try.Get(rpc.Call[struct{}, int64](eventually.Context(t), cl, f.ID, "runs", struct{}{}))(t)
				t.Logf("%d handlers ran", runs)
				if how == "deadline" && runs > 0 {
					t.Errorf("%d handlers ran for callers whose deadline was over", runs)
				}
			})
		}
	}
}

// abandon makes n calls, at most atOnce of them at a time, and gives each of them up.
func abandon(t *testing.T, cl *rpc.Client, to lib.GID, how string, n, atOnce int) {
	t.Helper()
	var calls sync.WaitGroup
	for range atOnce {
		calls.Go(func() {
			for range n / atOnce {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				if how == "cancel" {
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(20*time.Millisecond, cancel)
				}
				_, err := rpc.Call[string, int64](ctx, cl, to, "work", "hello")
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
					t.Errorf("a call to a server that is stopped: %v", err)
					return
				}
			}
		})
	}
	calls.Wait()
}
