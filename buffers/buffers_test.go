// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t testing.TB, p *Pool, n int) *Buffer {
	t.Helper()
	b := try.Get(p.Get(n))(t)
	if b.Len() != n || len(b.Bytes()) != n || b.Cap() < n || b.Refs() != 1 || b.State() != Owned {
		t.Fatalf("a buffer of %d, cap %d, refs %d, %v for %d bytes", b.Len(), b.Cap(), b.Refs(), b.State(), n)
	}
	return b
}

// getAll gets buffers of n bytes until the limit is reached.
func getAll(t testing.TB, p *Pool, n int) (all []*Buffer) {
	t.Helper()
	for {
		b, err := p.Get(n)
		if errors.Is(err, ErrLimit) {
			return all
		}
		try.OK(t, err)
		all = append(all, b)
	}
}

func releaseAll(all []*Buffer) {
	for _, b := range all {
		b.Release()
	}
}

// wantNothingLeft closes a pool whose buffers were all released. It unmaps all memory.
func wantNothingLeft(t testing.TB, p *Pool) {
	t.Helper()
	try.Check(t, p.Close())
	if s := p.Stats(); s.Mapped != 0 || s.Arenas != 0 || s.InUse != 0 {
		t.Errorf("after the end: %+v", s)
	}
}

var sizes = []int{0, 1, 63, 64, 65, 4096, 100_000, 1 << 20, 1<<20 + 1, 3 << 20}

// mark writes m at both ends of b and at some places between. That is enough to see that two
// buffers overlap, and fast under the race detector.
func mark(b []byte, m byte) {
	for i := 0; i < len(b); i += stride {
		b[i] = m
	}
	if len(b) > 0 {
		b[len(b)-1] = m
	}
}

func marked(b []byte, m byte) (found byte, ok bool) {
	for i := 0; i < len(b); i += stride {
		if b[i] != m {
			return b[i], false
		}
	}
	return 0, true
}

const stride = 64 // the least distance between buffers

// No two buffers share memory, and each keeps its contents.
//
// Promise (Buffers): No two buffers share memory, and closing a pool takes no memory from a reader.
// See also TestCloseWhileHeld.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := New()
		type held struct {
			b    *Buffer
			mark byte
			refs int
		}
		var hs []*held
		next := byte(1)
		t.Repeat(map[string]func(*rapid.T){
			"get": func(t *rapid.T) {
				n := rapid.SampledFrom(sizes).Draw(t, "n")
				b := try.Get(p.Get(n))(t)
				mark(b.Bytes(), next)
				hs = append(hs, &held{b, next, 1})
				next++
			},
			"slice": func(t *rapid.T) {
				if len(hs) == 0 {
					return
				}
				h := rapid.SampledFrom(hs).Draw(t, "h")
				off := rapid.IntRange(0, h.b.Len()/stride).Draw(t, "off") * stride
				s := h.b.Slice(off, h.b.Len()-off)
				hs = append(hs, &held{s, h.mark, 1})
			},
			"retain": func(t *rapid.T) {
				if len(hs) > 0 {
					h := rapid.SampledFrom(hs).Draw(t, "h")
					h.b.Retain()
					h.refs++
				}
			},
			"release": func(t *rapid.T) {
				if len(hs) == 0 {
					return
				}
				i := rapid.IntRange(0, len(hs)-1).Draw(t, "i")
				hs[i].b.Release()
				if hs[i].refs--; hs[i].refs == 0 {
					hs = append(hs[:i], hs[i+1:]...)
				}
			},
			"": func(t *rapid.T) {
				for _, h := range hs {
					if c, ok := marked(h.b.Bytes(), h.mark); !ok {
						t.Fatalf("a buffer marked %d holds %d", h.mark, c)
					}
				}
			},
		})
		for _, h := range hs {
			for range h.refs {
				h.b.Release()
			}
		}
		try.OK(t, p.Close())
		if s := p.Stats(); s.InUse != 0 || s.DoubleReleases != 0 || s.Mapped != 0 {
			t.Fatalf("%+v after all was released", s)
		}
	})
}

func TestConcurrent(t *testing.T) {
	p := New()
	ch := make(chan *Buffer, 100)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 5000 {
				b, err := p.Get(64 << (i % 8))
				if err != nil {
					t.Error(err)
					return
				}
				b.Bytes()[0] = byte(g)
				ch <- b
			}
		})
		wg.Go(func() {
			for range 5000 {
				(<-ch).Release()
			}
		})
	}
	wg.Wait()
	wantNothingLeft(t, p)
}

func TestLimit(t *testing.T) {
	p := New(WithLimit(1 << 20))
	bs := getAll(t, p, 64<<10)
	if len(bs) < 8 || len(bs) > 16 {
		t.Errorf("%d buffers of 64 KiB within 1 MiB", len(bs))
	}
	releaseAll(bs)
	wantNothingLeft(t, p)
	try.Fails(p.Get(1))(t, ErrClosed, "get from a closed pool")
}

// Memory cut for buffers of one size serves another size when none of these buffers is in use.
func TestLimitAcrossSizes(t *testing.T) {
	p := New(WithLimit(1 << 20))
	for round := range 3 {
		for _, n := range []int{64, 100_000, 4096, 1 << 20, 700} {
			b := try.Get(p.Get(n))(t, "round %d, %d bytes", round, n)
			b.Release()
		}
	}
	small := get(t, p, 64)
	try.Fails(p.Get(1<<20))(t, ErrLimit, "the whole limit while a buffer is out")
	small.Release()
	wantNothingLeft(t, p)
}

// A size beyond the part of the limit that Get may ever use is refused at once.
//
// Promise (Buffers): A buffer larger than three quarters of `WithMemory` is refused with
// `ErrTooLarge`. A smaller one is given when the program has released enough. See also
// TestBufferBeyondMemory.
func TestGetWaitNeverFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(WithLimit(64 << 10))
		defer p.Close()
		try.Fails(p.GetWait(t.Context(), 64<<10+1))(t, ErrTooLarge)
		p.ReserveForGood(8 << 10)
		if _, err := p.GetWait(t.Context(), 48<<10+1); !errors.Is(err, ErrTooLarge) || !errors.Is(err, ErrLimit) {
			t.Error(err)
		}
		p.Reserve(8 << 10)
		time.AfterFunc(time.Hour, func() { p.Reserve(-8 << 10) })
		try.Get(p.GetWait(t.Context(), 48<<10))(t).Release()
	})
}

// Misuse is detected and counted, and gives no buffer to two owners.
func TestMisuse(t *testing.T) {
	if debugging {
		t.Skip("the debug build panics")
	}
	p := New()
	b := get(t, p, 64)
	b.Release()
	b.Release()
	late := b.Retain()
	var all []*Buffer
	for range 1000 {
		c := try.Get(p.Get(64))(t)
		if c == late {
			t.Fatal("a buffer with a holder was handed out")
		}
		all = append(all, c)
	}
	s := all[0].Slice(3, 4)
	s.Release()
	s.Release()
	if st := p.Stats(); st.DoubleReleases != 2 || st.LateRetains != 1 {
		t.Errorf("%+v", st)
	}
	late.Release()
	releaseAll(all)
	wantNothingLeft(t, p)
}

func TestGetWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(WithLimit(64 << 10))
		b := get(t, p, 64<<10)
		go func() {
			time.Sleep(time.Hour)
			b.Release()
		}()
		start := time.Now()
		c, err := p.GetWait(t.Context(), 64<<10)
		if err != nil || time.Since(start) != time.Hour {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		try.Fails(p.GetWait(ctx, 64<<10))(t, context.DeadlineExceeded)
		c.Release()
		try.Check(t, p.Close())
	})
}

// Closing a pool does not unmap memory whose buffers are still held.
func TestCloseWhileHeld(t *testing.T) {
	p := New()
	b, c := get(t, p, 100), get(t, p, 2<<20)
	b.Bytes()[99], c.Bytes()[0] = 1, 2
	if err := p.Close(); !errors.Is(err, ErrLeaked) {
		t.Fatal(err)
	}
	if b.Bytes()[99] != 1 || c.Bytes()[0] != 2 {
		t.Error("memory changed")
	}
	b.Release()
	c.Release()
	if m := p.Stats().Mapped; m != 0 {
		t.Errorf("%d bytes still mapped", m)
	}
}

type registrar struct{ bytes int }

func (r *registrar) RegisterArena(a Arena) error { r.bytes += len(a.Mem); return nil }
func (r *registrar) UnregisterArena(a Arena)     { r.bytes -= len(a.Mem) }

func TestRegistrar(t *testing.T) {
	p := New()
	a, large := get(t, p, 10), get(t, p, 3<<20)
	var r registrar
	try.OK(t, p.Register(&r))
	b := get(t, p, 5<<20)
	if int64(r.bytes) != p.Stats().Mapped {
		t.Errorf("%d bytes registered, %d mapped", r.bytes, p.Stats().Mapped)
	}
	a.Release()
	b.Release()
	large.Release()
	p.Close()
	try.Equal(t, r.bytes, 0, "bytes still registered")
}

func TestNoAllocs(t *testing.T) {
	if debugging {
		t.Skip("the debug build remembers places")
	}
	p := New()
	defer p.Close()
	for _, n := range []int{64, 4096, 2 << 20} {
		get(t, p, n).Release()
		if a := testing.AllocsPerRun(1000, func() {
			b, _ := p.Get(n)
			b.Release()
		}); a >= 1 {
			t.Errorf("%v allocations for %d bytes", a, n)
		}
	}
}

func ExamplePool() {
	p := New()
	defer p.Close()
	b, err := p.Get(5)
	if err != nil {
		fmt.Println(err)
		return
	}
	copy(b.Bytes(), "hello")
	fmt.Printf("%s %v\n", b.Bytes(), b.State())
	b.Release()
	fmt.Println(b.State())
	// Output:
	// hello owned
	// free
}

// The large buffer that was released last is reused. It does not prevent a Get of another size, a
// wait for memory, or the closing of the pool.
func TestLastLargeOne(t *testing.T) {
	p := New(WithLimit(8 << 20))
	a := get(t, p, 3<<20)
	at := &a.Bytes()[0]
	a.Release()
	if n := p.Stats().InUse; n != 0 {
		t.Errorf("%d are out", n)
	}
	if a = get(t, p, 3<<20-5000); &a.Bytes()[0] != at {
		t.Error("another one is had")
	}
	a.Release()
	b := get(t, p, 7<<20) // for which the other buffer must be unmapped
	if n := p.Stats(); n.InUse != 1 || n.Mapped > 8<<20 {
		t.Errorf("%+v", n)
	}
	got := make(chan error, 1)
	go func() {
		c, err := p.GetWait(t.Context(), 3<<20)
		if err == nil {
			c.Release()
		}
		got <- err
	}()
	eventually.True(t, "GetWait waits", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.waiting > 0
	})
	b.Release()
	try.Check(t, <-got)
	if b = get(t, p, 2<<20); !debugging { // a rocldebug build panics
		defer func() {
			if n := p.Stats().DoubleReleases; n != 1 {
				t.Errorf("%d double releases were noticed", n)
			}
		}()
		b.Release()
	}
	b.Release()
	wantNothingLeft(t, p)
}

// Many goroutines get and release large buffers while the pool is closed. All memory is unmapped
// with the last of them.
func TestLargeWhileClosing(t *testing.T) {
	for range 50 {
		p := New()
		var busy sync.WaitGroup
		for range 4 {
			busy.Go(func() {
				for i := 0; ; i++ {
					b, err := p.Get(2<<20 + i%3*pageSize)
					if err != nil {
						try.Fails(err)(t, ErrClosed)
						return
					}
					b.Bytes()[0] = 1
					b.Release()
				}
			})
		}
		runtime.Gosched()
		_ = p.Close()
		busy.Wait()
		if n := p.Stats(); n.InUse != 0 || n.Mapped != 0 {
			t.Fatalf("%+v", n)
		}
	}
}

// A slice, and memory of another pool, have a footprint of 0.
func TestFootprint(t *testing.T) {
	p, other := New(), New()
	defer p.Close()
	defer other.Close()
	b := get(t, p, 100)
	s := b.Slice(10, 20)
	if got := [...]int{b.Footprint(p), b.Footprint(other), s.Footprint(p)}; got != [...]int{128, 0, 0} {
		t.Errorf("%v", got)
	}
	s.Release()
	b.Release()
}

// Get leaves reserved bytes to GetReserved, and Await reports memory that comes back.
func TestReserve(t *testing.T) {
	p := New(WithLimit(1 << 20))
	defer p.Close()
	p.Reserve(1 << 19)
	out := getAll(t, p, 64<<10)
	if len(out) != 8 || p.Unused() != 1<<19 {
		t.Fatalf("%d buffers, %d bytes unused", len(out), p.Unused())
	}
	for range 8 {
		out = append(out, try.Get(p.GetReserved(64<<10))(t))
	}
	if _, err := p.GetReserved(1); !errors.Is(err, ErrLimit) {
		t.Fatalf("beyond the limit: %v", err)
	}
	calls := 0
	p.Await(1, func() { calls++ })
	p.Await(2, func() { calls += 100 })
	p.Unawait(2)
	releaseAll(out[8:])
	try.Equal(t, calls, 1, "calls of the waiter that is left")
	if _, err := p.Get(1); !errors.Is(err, ErrLimit) {
		t.Fatalf("what is reserved: %v", err)
	}
	p.Reserve(-1 << 19)
	releaseAll(out[:8])
	get(t, p, 1<<20).Release() // all of it
	try.Equal(t, p.Unused(), 1<<20, "unused")
}
