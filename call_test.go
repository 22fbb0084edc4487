// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
)

// A call allocates no memory, neither in the caller nor in the receiver.
//
// Promise (Calls): A call allocates nothing on either side. See also TestLocksOfCall.
func TestCallAllocates(t *testing.T) {
	if watched {
		t.Skip("the race detector makes pools forget, a rocldebug build remembers places")
	}
	ctx := context.Background()
	cl := rocltest.Cluster(t, 1)
	for name, opts := range map[string][]rocl.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
		a, b := cl.Open(0, opts...), cl.Open(0, opts...)
		me, target := reg(t, a), reg(t, b)
		go func() {
			for m, err := range target.Messages(ctx) {
				if err != nil || target.ReplyBytes(ctx, m, m.Bytes()) != nil {
					return
				}
				m.Release()
			}
		}()
		for _, size := range []int{64, 600_000} { // the larger size is sent in pieces
			p := try.Get(a.Buffer(size))(t)
			payload := make([]byte, size)
			for kind, one := range map[string]func() (*rocl.Message, error){
				"CallBytes": func() (*rocl.Message, error) { return me.CallBytes(ctx, target.ID(), 1, payload) },
				"Call": func() (*rocl.Message, error) {
					p.Retain() // for the next call
					return me.Call(ctx, target.ID(), 1, p)
				},
				"StartCall": func() (*rocl.Message, error) {
					p.Retain()
					call, err := me.StartCall(ctx, target.ID(), 1, p)
					if err != nil {
						return nil, err
					}
					return call.Wait(ctx)
				},
			} {
				times, do := 2000, func() {
					m := try.Get(one())(t)
					m.Release()
				}
				if size > 64 {
					times = 100
				}
				for range 200 {
					do()
				}
				if n := testing.AllocsPerRun(times, do); n >= 1 {
					t.Errorf("%s: %v allocations a %s of %d bytes", name, n, kind, size)
				}
			}
			p.Release()
		}
		if err := target.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
