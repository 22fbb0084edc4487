// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

// A snapshot of a server's context shows the handlers that run, and how long
// the oldest has run; that of a client's context shows the names of the calls that wait.
func TestHandlersInSnapshots(t *testing.T) {
	bubble(t, func(t *testing.T, home, other *rocl.Context) {
		o, began, release := hold()
		s := try.Get(rpc.NewServer(t.Context(), home, nil, o))(t)
		c := client(t, other)
		handlers := func(want rocl.HandlerSnapshot) {
			t.Helper()
			for _, r := range home.Snapshot().Resources {
				if r.Resource == s.ID() && len(r.Handlers) == 1 {
					h := r.Handlers[0]
					h.Took, h.Total = nil, 0
					if !reflect.DeepEqual(h, want) {
						t.Errorf("the handlers show as %+v, not %+v", h, want)
					}
					return
				}
			}
			t.Fatal("the server has no handlers")
		}
		handlers(rocl.HandlerSnapshot{Name: "hold"})
		running := rpc.Go[int, int](t.Context(), c, s.ID(), "hold", 1)
		<-began
		time.Sleep(3 * time.Second) // virtual time: the age of the handler
		later := rpc.Go[int, int](t.Context(), c, s.ID(), "hold", 2)
		<-began
		handlers(rocl.HandlerSnapshot{Name: "hold", Running: 2, Oldest: 3 * time.Second})
		calls := other.Snapshot().Calls
		if len(calls) != 2 || calls[0].Name != "hold" || calls[0].To != s.ID() || calls[0].From != c.ID() {
			t.Errorf("the calls show as %+v", calls)
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := rpc.Go[int, int](ctx, c, s.ID(), "hold", 3)
		<-began
		cancel()
		_, err := gone.Wait(t.Context())
		try.Fails(err)(t, context.Canceled, "a call that was cancelled")
		synctest.Wait()
		handlers(rocl.HandlerSnapshot{Name: "hold", Running: 2, Oldest: 3 * time.Second, Ended: 1, Errors: 1})
		close(release)
		try.Gives(running.Wait(t.Context()))(t, 1)
		try.Gives(later.Wait(t.Context()))(t, 2)
		synctest.Wait()
		handlers(rocl.HandlerSnapshot{Name: "hold", Ended: 3, Errors: 1})
		try.OK(t, s.Close(t.Context()))
	})
}
