// SPDX-License-Identifier: Apache-2.0

package ofi_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/ofi/internal/fabric"
	"github.com/rocl-go/rocl/subsys"
)

// BenchmarkRoundTrip measures a payload there and back between two endpoints of this process, each
// polled by a goroutine: over the transport, and beside it over the bare endpoints. The bare loop
// sends the payload as one message.
func BenchmarkRoundTrip(b *testing.B) {
	for _, provider := range []string{"tcp;ofi_rxm", "shm"} {
		for _, size := range []int{64, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d/bare", provider, size), func(b *testing.B) { bareTrip(b, provider, size) })
			b.Run(fmt.Sprintf("%s/%d/transport", provider, size), func(b *testing.B) { trip(b, provider, size) })
		}
	}
}

func bareTrip(b *testing.B, provider string, size int) {
	host := "127.0.0.1"
	if provider == "shm" {
		host = ""
	}
	var e [2]*fabric.Endpoint
	var at [2]fabric.Address
	var mem [2][]byte
	for i := range e {
		var err error
		if e[i], err = fabric.Open(provider, host, 16); errors.Is(err, fabric.ErrUnavailable) {
			b.Skip(err)
		} else if err != nil {
			b.Fatal(err)
		}
		defer e[i].Close()
		if mem[i], err = fabric.Map(2 * size); err != nil {
			b.Fatal(err)
		}
		defer fabric.Unmap(mem[i])
	}
	for i := range e {
		var err error
		if at[i], err = e[i].Insert(e[1-i].Name()); err != nil {
			b.Fatal(err)
		}
		if err := e[i].Recv(0, mem[i][:size], 0); err != nil {
			b.Fatal(err)
		}
	}
	poll := func(i int, done func(op int)) {
		var c [8]fabric.Completion
		n, err := e[i].Poll(c[:])
		if err != nil {
			b.Error(err)
		}
		for _, c := range c[:n] {
			if c.Err != nil {
				b.Error(c.Err)
			}
			done(c.Op)
		}
		if n == 0 {
			runtime.Gosched()
		}
	}
	send := func(i int) {
		for e[i].Send(1, mem[i][size:], 0, at[i]) == fabric.ErrAgain {
			poll(i, func(int) {})
		}
	}
	var stops atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for !stops.Load() {
			poll(1, func(op int) {
				if op == 0 {
					_ = e[1].Recv(0, mem[1][:size], 0)
					send(1)
				}
			})
		}
	}()
	once := func() {
		send(0)
		for isBack := false; !isBack; {
			poll(0, func(op int) { isBack = isBack || op == 0 })
		}
		_ = e[0].Recv(0, mem[0][:size], 0)
	}
	for once(); b.Loop(); { // the first connects
		once()
	}
	stops.Store(true)
	<-stopped
}

func trip(b *testing.B, provider string, size int) {
	var e [2]*end
	for i := range e {
		var err error
		if e[i], err = listen(provider, true); errors.Is(err, subsys.ErrUnavailable) {
			b.Skip(err)
		} else if err != nil {
			b.Fatal(err)
		}
		defer func() {
			if err := e[i].close(); err != nil {
				b.Error(err)
			}
		}()
	}
	back := make(chan struct{}, 1)
	near := newSink()
	near.onFrames = func([]subsys.Frame) { back <- struct{}{} }
	frame := func(e *end) []subsys.Frame {
		buf := must(e.pool.Get(size))
		return []subsys.Frame{{Header: subsys.Header{Type: 16, Len: uint32(size)}, Data: buf.Bytes(), Buf: buf}}
	}
	out, echo := frame(e[0]), frame(e[1])
	defer out[0].Buf.Release()
	defer echo[0].Buf.Release()
	e[1].onAccept = func(c subsys.Conn, s *sink) { s.onFrames = func([]subsys.Frame) { must(c.Send(echo)) } }
	c := must(e[0].port.Dial(context.Background(), e[1].port.Addr(), near))
	c.Start()
	b.ReportAllocs()
	once := func() {
		must(c.Send(out))
		for isBack := false; !isBack; {
			select {
			case <-back:
				isBack = true
			default:
				runtime.Gosched()
			}
		}
	}
	for once(); b.Loop(); {
		once()
	}
}

// BenchmarkPull measures a pull of memory that the target has accessed before, and beside it the
// same read over bare endpoints, into registered memory. Both have a goroutine that polls at the
// origin, and both ends are in this process.
func BenchmarkPull(b *testing.B) {
	for _, provider := range []string{"tcp;ofi_rxm"} {
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d/bare", provider, size), func(b *testing.B) { bareRead(b, provider, size) })
			b.Run(fmt.Sprintf("%s/%d/pull", provider, size), func(b *testing.B) { pull(b, provider, size) })
		}
	}
}

func bareRead(b *testing.B, provider string, size int) {
	var e [2]*fabric.Endpoint
	for i := range e {
		var err error
		if e[i], err = fabric.Open(provider, "127.0.0.1", 16); errors.Is(err, fabric.ErrUnavailable) {
			b.Skip(err)
		} else if err != nil {
			b.Fatal(err)
		}
		defer e[i].Close()
	}
	at := must(e[0].Insert(e[1].Name()))
	must(e[1].Insert(e[0].Name()))
	from, to := make([]byte, size), make([]byte, size)
	r := must(e[1].Expose(from, 0x5eed, true, false))
	defer e[1].Unregister(r)
	var stops atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for c := make([]fabric.Completion, 8); !stops.Load(); {
			if n := must(e[1].Poll(c)); n == 0 {
				runtime.Gosched()
			}
		}
	}()
	c := make([]fabric.Completion, 8)
	once := func() {
		for isDone := false; ; {
			err := e[0].Read(1, to, 0, at, r.Base, r.Key)
			if err != nil && err != fabric.ErrAgain {
				b.Fatal(err)
			}
			for hasBegun := err == nil; !isDone; {
				n := must(e[0].Poll(c))
				for _, c := range c[:n] {
					isDone = isDone || c.Op == 1
				}
				if n == 0 {
					runtime.Gosched()
				}
				if !hasBegun {
					break
				}
			}
			if isDone {
				return
			}
		}
	}
	b.SetBytes(int64(size))
	best := fastest(b)
	for once(); b.Loop(); {
		best(once)
	}
	stops.Store(true)
	<-stopped
}

// fastest returns a function that calls f, and reports the least and the median time that a call
// took: on a busy machine they tell more than the average.
func fastest(b *testing.B) func(f func()) {
	var took []time.Duration
	b.Cleanup(func() {
		if len(took) == 0 { // it has failed before
			return
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[0]), "min-ns")
		b.ReportMetric(float64(took[len(took)/2]), "median-ns")
	})
	return func(f func()) {
		start := time.Now()
		f()
		took = append(took, time.Since(start))
	}
}

func pull(b *testing.B, provider string, size int) {
	origin, target := endpoints(b, provider, rocl.WithPoll(rocl.PollAlways))
	r := must(origin.Expose(bulk.ReadOnly, bulk.Bytes(make([]byte, size))))
	h, dst := r.Handle(), make([]byte, size)
	warm(b, target, h)
	before := target.Stats().Transfers
	b.SetBytes(int64(size))
	b.ReportAllocs()
	best := fastest(b)
	for b.Loop() {
		best(func() { must(target.Pull(context.Background(), h, 0, dst)) })
	}
	if n := target.Stats().Transfers; n != before {
		b.Errorf("%d requests", n-before)
	}
}
