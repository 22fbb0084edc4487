// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"context"
	"errors"
	"testing"
)

// A large buffer that needs new memory is not made once ctx has ended, and the pool stays usable. A
// small one is made: a caller whose ctx has ended does not want to wait, and need not.
func TestGetWithin(t *testing.T) {
	p := New()
	defer p.Close()
	if err := p.Share(); err != nil {
		t.Skip(err)
	}
	ended := errors.New("ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ended)
	for _, n := range []int{1 << 10, 1 << 20, 4 << 20} {
		for _, get := range []func(context.Context, int) (*Buffer, error){p.GetWithin, p.GetWait} {
			b, err := get(ctx, n)
			if err != nil {
				t.Fatalf("%d bytes of new memory: %v", n, err)
			}
			defer b.Release()
		}
	}
	for _, n := range []int{5 << 20, 64 << 20} {
		if _, err := p.GetWithin(ctx, n); !errors.Is(err, ended) {
			t.Errorf("%d bytes: %v", n, err)
		}
		if _, err := p.GetWait(ctx, n); !errors.Is(err, ended) {
			t.Errorf("%d bytes: %v", n, err)
		}
		b, err := p.Get(n)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
		if b, err = p.GetWithin(ctx, n); err != nil {
			t.Fatalf("%d bytes that are mapped: %v", n, err)
		}
		b.Release()
	}
}
