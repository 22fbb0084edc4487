// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// A server that follows another one denies no resource of a context that lives and has not joined
// yet, even if all other contexts have joined: the process of that context may be waiting for a
// processor. A context that has ended is not waited for.
func TestLateContextIsAwaited(t *testing.T) {
	path := sock(t)
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	early, ended := joined(t, path), joined(t, path)
	come, dials := make(chan struct{}), 0
	late, err := Join(t.Context(), func(ctx context.Context) (net.Conn, error) {
		if dials++; dials > 1 {
			select {
			case <-come:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return DialSocket(path)(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	id := late.Self().WithSerial(1)
	if _, err := late.Register(t.Context(), id, list(t, resource.Attrs{"type": "lamp"})); err != nil {
		t.Fatal(err)
	}
	ended.Close()
	first.Close()
	s := serve(t, path)
	// The context early has joined by now.
	if _, err := early.Update(t.Context(), id, 0, list(t, resource.Attrs{"a": "b"})); err == nil {
		t.Error("changed what is another's")
	}
	for time.Since(*s.begun.Load()) < 2*settleTime {
		time.Sleep(settleStep)
	}
	if s.Settled() && time.Since(*s.begun.Load()) < offerSilence {
		t.Error("settled without a context that lives")
	}
	close(come)
	if a, err := early.Find(t.Context(), list(t, resource.Attrs{"type": "lamp"})); err != nil || a.ID != id {
		t.Errorf("what it has: %v, %v", a.ID, err)
	}
	if s.awaits() {
		t.Error("nobody else lives, and somebody is awaited")
	}
}
