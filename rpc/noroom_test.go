// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
	"github.com/rocl-go/rocl/subsys/shm"
)

// A caller learns why the server could not take its arguments, also if the server has no memory for
// the reply when it finds out, or has to map memory for it.
func TestReasonWithoutMemory(t *testing.T) {
	for name, opts := range map[string]func() rocl.Option{"tcp": rocltest.TCP, "shm": func() rocl.Option { return rocl.WithTransports(shm.New()) }} {
		t.Run(name, func(t *testing.T) {
			n := rocltest.Cluster(t, 1)
			at, from := n.Open(0, opts(), rocl.WithMemory(1<<20)), n.Open(0, opts())
			s, err := rpc.NewServer(deadline(t), at, nil)
			if err != nil {
				t.Fatal(err)
			}
			c, err := rpc.NewClient(deadline(t), from)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := errors.Join(c.Close(), s.Close(deadline(t))); err != nil {
					t.Error(err)
				}
			}()
			if err := rpc.Register(s, "len", func(_ context.Context, p []byte) (int, error) { return len(p), nil }); err != nil {
				t.Fatal(err)
			}
			call := func() error {
				_, err := rpc.Call[[]byte, int](deadline(t), c, s.ID(), "len", make([]byte, 2<<20))
				return err
			}
			if err := call(); !errors.Is(err, rocl.ErrTooLarge) {
				t.Error(err)
			}
			var all []*rocl.Buffer
			for size := 256 << 10; size > 0; size /= 2 {
				for {
					b, err := at.Buffer(size)
					if err != nil {
						break
					}
					all = append(all, b)
				}
			}
			ended := make(chan error, 1)
			go func() { ended <- call() }()
			select {
			case err = <-ended:
				t.Error("the call has ended without memory for the reason:", err)
			case <-time.After(50 * time.Millisecond): // in which a call that does not wait for memory would end
			}
			for _, b := range all {
				b.Release()
			}
			if err == nil {
				err = <-ended
			}
			if !errors.Is(err, rocl.ErrTooLarge) {
				t.Error(err)
			}
		})
	}
}
