// SPDX-License-Identifier: Apache-2.0

package buffers_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A buffer that is sent to several targets is being sent until the last send ends.
func TestSeveralSends(t *testing.T) {
	p := buffers.New()
	defer p.Close()
	b := try.Get(p.Get(10))(t)
	b.BeginSend()
	b.BeginSend()
	b.SetDelivered() // a third one, within the process
	for range 2 {
		if b.State() != buffers.Sending || b.Done() {
			t.Fatalf("the buffer is %v", b.State())
		}
		b.EndSend()
	}
	b.EndSend() // of a send that was not counted
	if b.State() != buffers.Delivered || !b.Done() {
		t.Errorf("the buffer is %v", b.State())
	}
	b.Release()
	if b = try.Get(p.Get(10))(t); b.State() != buffers.Owned {
		t.Fatalf("a buffer that is used again is %v", b.State())
	}
	b.Release()
}

// Each goroutine in Wait returns once, at the end of the last send or of its context.
func TestWait(t *testing.T) {
	p := buffers.New()
	defer p.Close()
	b := try.Get(p.Get(10))(t)
	for range 1000 {
		b.BeginSend()
		b.BeginSend()
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				try.Check(t, b.Wait(context.Background()))
			})
			wg.Go(func() {
				if err := b.Wait(ctx); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
		b.EndSend()
		cancel()
		b.EndSend()
		wg.Wait()
	}
	b.Release()
}
