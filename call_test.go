// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rocltest"
)

// answer replies to each request with its payload, until the resource is closed.
func answer(t testing.TB, r *rocl.Resource) {
	for m, err := range r.Messages(context.Background()) {
		if err == nil {
			err = r.Reply(context.Background(), m, m.Buffer())
		}
		if err != nil {
			t.Error(err)
			return
		}
		m.Release()
	}
}

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
			p, err := a.Buffer(size)
			if err != nil {
				t.Fatal(err)
			}
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
					m, err := one()
					if err != nil {
						t.Fatal(err)
					}
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

// Call returns the right error in each case of failure, and the caller keeps the buffer.
func TestCallFails(t *testing.T) {
	cl := rocltest.Cluster(t, 1)
	for name, opts := range map[string][]rocl.Option{"inproc": nil, "tcp": {rocltest.TCP()}} {
		t.Run(name, func(t *testing.T) {
			a, b := cl.Open(0, opts...), cl.Open(0, opts...)
			me, target := reg(t, a), reg(t, b)
			p, err := a.Buffer(100)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			short, end := context.WithCancelCause(ctx)
			cause := errors.New("no patience")
			received := make(chan *rocl.Message)
			go func() {
				m, err := target.Recv(ctx)
				if err != nil {
					t.Error(err)
				}
				end(cause)
				received <- m
			}()
			if _, err := me.Call(short, target.ID(), 1, p); !errors.Is(err, cause) {
				t.Error(err)
			}
			m := <-received
			if err := target.ReplyBytes(ctx, m, nil); err != nil { // a late reply
				t.Error(err)
			}
			if err := target.ReplyBytes(ctx, m, nil); !errors.Is(err, rocl.ErrNotCall) {
				t.Error(err)
			}
			m.Release()
			go func() {
				m, err := target.Recv(ctx)
				if err != nil {
					t.Error(err)
				}
				m.Release()
			}()
			if _, err := me.Call(ctx, target.ID(), 1, p); !errors.Is(err, rocl.ErrNoReply) {
				t.Error(err)
			}
			go func() {
				m, err := target.Recv(ctx)
				if err != nil {
					t.Error(err)
				}
				if err := target.Close(); err != nil {
					t.Error(err)
				}
				if err := target.ReplyBytes(ctx, m, nil); !errors.Is(err, rocl.ErrClosed) {
					t.Error(err)
				}
				m.Release()
			}()
			if _, err := me.Call(ctx, target.ID(), 1, p); !errors.Is(err, rocl.ErrGone) {
				t.Error(err)
			}
			if _, err := me.Call(ctx, target.ID(), 1, p); !errors.Is(err, rocl.ErrGone) {
				t.Error(err)
			}
			if _, err := me.CallBytes(ctx, a.ID(), 1, nil); !errors.Is(err, rocl.ErrGone) {
				t.Error(err)
			}
			other := reg(t, b)
			go answer(t, other)
			reply, err := me.Call(ctx, other.ID(), 1, p) // the failed call has left the buffer to the caller
			if err != nil {
				t.Fatal(err)
			}
			reply.Release()
			if err := errors.Join(other.Close(), me.Close()); err != nil {
				t.Error(err)
			}
			if _, err := me.CallBytes(ctx, other.ID(), 1, nil); !errors.Is(err, rocl.ErrClosed) {
				t.Error(err)
			}
		})
	}
}
