// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// pipe is a source that reads what the test writes to it.
type pipe struct {
	r, w  int
	calls atomic.Int32
	bytes atomic.Int32
	most  int  // most bytes read in one call, after which it asks for another
	ended bool // Ready was called with Ended
}

func newPipe(t *testing.T) *pipe {
	t.Helper()
	r, w, err := posix.Pipe()
	try.OK(t, err)
	t.Cleanup(func() { posix.Close(r); posix.Close(w) })
	return &pipe{r: r, w: w, most: 1 << 20}
}

func (p *pipe) write(n int) { _, _ = posix.Write(p.w, make([]byte, n)) }

func (p *pipe) Ready(on Readiness) (int, bool) {
	p.calls.Add(1)
	p.ended = p.ended || on&Ended != 0
	b := make([]byte, p.most)
	n, err := posix.Read(p.r, b)
	if err != nil {
		return 0, false
	}
	p.bytes.Add(int32(n))
	return n, n == p.most
}

func newPoller(t *testing.T, ps ...*pipe) *Poller {
	t.Helper()
	p := try.Get(NewPoller(new(Counters)))(t)
	t.Cleanup(p.Close)
	for _, s := range ps {
		try.OK(t, p.Add(s.r, s))
	}
	return p
}

// newPipes returns n sources, and a poller of them.
func newPipes(t *testing.T, n int) (all []*pipe, p *Poller) {
	t.Helper()
	for range n {
		all = append(all, newPipe(t))
	}
	return all, newPoller(t, all...)
}

// wantFrames waits for the result of a nap or a sleep.
func wantFrames(t *testing.T, what string, done chan int, want int) {
	t.Helper()
	try.Equal(t, eventually.Value(t, "the end of a sleep: "+what, done), want, "%s: frames", what)
}

// After Drain an armed gate fires for new input, and not for input that Poll has read without
// asking the kernel.
func TestGate(t *testing.T) {
	s := newPipe(t)
	p := newPoller(t, s)
	s.write(3)
	if n := p.Poll(); n != 3 {
		t.Fatalf("polled %d of 3", n)
	}
	if p.Drain() {
		t.Fatal("a source that is empty wants more")
	}
	p.Arm()
	fired := make(chan bool)
	go func() { fired <- p.Park() }()
	select {
	case <-fired:
		t.Fatal("the gate fired for what has been read")
	case <-time.After(20 * time.Millisecond): // an event that must not happen can only be waited for
	}
	s.write(1)
	if !<-fired {
		t.Fatal("the poller is closed")
	}
	if p.Poll() != 1 {
		t.Fatal("the gate fired for nothing")
	}
	p.Drain()
	p.Arm()
	go func() { fired <- p.Park() }()
	p.Wake()
	<-fired
	p.Drain()
	p.Arm()
	go func() { fired <- p.Park() }()
	p.EndPark()
	if <-fired {
		t.Fatal("a Park goes on after its end")
	}
}

// EndPark ends a Park that has begun.
func TestEndPark(t *testing.T) {
	for range 50 {
		p := newPoller(t)
		p.Arm()
		fired := make(chan bool)
		go func() { fired <- p.Park() }()
		for p.count.Sleeps.Load() == 0 {
			runtime.Gosched()
		}
		time.Sleep(100 * time.Microsecond) // most Parks are in the kernel then; none must be
		p.EndPark()
		if <-fired {
			t.Fatal("a Park goes on after its end")
		}
	}
}

// A source that stops early is called again, and Drain reports it.
func TestAgain(t *testing.T) {
	s := newPipe(t)
	s.most = 10
	p := newPoller(t, s)
	s.write(35)
	for more := true; more; {
		before := s.bytes.Load()
		more = p.Drain()
		if more && s.bytes.Load() == before {
			t.Fatal("no progress")
		}
	}
	if n := s.bytes.Load(); n != 35 {
		t.Fatalf("read %d of 35", n)
	}
}

// Sleep does not sleep through a wake or a condition that came before.
func TestSleepWakes(t *testing.T) {
	s := newPipe(t)
	p := newPoller(t, s)
	var fired atomic.Uint32
	fired.Store(1)
	done := make(chan int)
	sleep := func() { done <- p.Sleep(time.Hour, &fired) }
	go sleep()
	wantFrames(t, "a condition from before", done, 0)
	fired.Store(0)
	p.Wake()
	go sleep()
	wantFrames(t, "a wake from before", done, 0)
	go sleep()
	s.write(2)
	wantFrames(t, "data", done, 2)
}

// With more sources than are tried directly, the kernel tells which are ready.
func TestMany(t *testing.T) {
	all, p := newPipes(t, 10)
	p.Poll()
	for _, s := range all {
		s.calls.Store(0)
	}
	all[3].write(4)
	all[7].write(5)
	try.Equal(t, p.Poll(), 9, "polled")
	for i, s := range all {
		if want := i == 3 || i == 7; (s.calls.Load() > 0) != want {
			t.Errorf("source %d was called %d times", i, s.calls.Load())
		}
	}
	p.Remove(all[3].r)
	all[3].write(1)
	if n := p.Poll(); n != 0 || p.Len() != 9 {
		t.Errorf("a removed source is polled: %d, %d left", n, p.Len())
	}
	posix.Close(all[7].w)
	all[7].w = -1
	p.Poll()
	if !all[7].ended {
		t.Error("the end of the other side is not told")
	}
}

// Of many sources, one that always has input is tried each time. the kernel is asked at intervals,
// and the other sources are called soon.
func TestHot(t *testing.T) {
	all, p := newPipes(t, 10)
	for _, s := range all {
		s.most = 100
	}
	busy := all[0]
	busy.write(1)
	for p.Poll() == 0 {
	}
	asked := p.count.Polls.Load()
	const rounds = 20 * askCold
	for i := range rounds {
		busy.write(1)
		if p.Poll() == 0 {
			t.Fatalf("round %d: what is busy is not heard at once", i)
		}
	}
	if n := p.count.Polls.Load() - asked; n > rounds/askCold {
		t.Errorf("the kernel was asked %d times in %d rounds", n, rounds)
	}
	for i, s := range all[1:] {
		s.write(3)
		got := 0
		for range askCold {
			busy.write(1)
			got += p.Poll() - 1
		}
		try.Equal(t, got, 3, "source %d: heard in %d polls", i+1, askCold)
	}
	for _, s := range all {
		s.calls.Store(0)
	}
	for range 2 * coldAfter {
		p.Poll()
	}
	for i, s := range all {
		if n := s.calls.Load(); n > coldAfter {
			t.Errorf("source %d is tried %d times, and has nothing", i, n)
		}
	}

	busy.write(1)
	for p.Poll() == 0 {
	}
	p.Remove(busy.r)
	busy.calls.Store(0)
	busy.write(1)
	for range 2 * askCold {
		p.Poll()
	}
	if n := busy.calls.Load(); n > 0 {
		t.Errorf("what was removed is called %d times", n)
	}
}

// A busy source that stops early for fairness is called again, and does not keep other sources
// waiting.
func TestHotAgain(t *testing.T) {
	all, p := newPipes(t, 5)
	all[0].most = 10
	all[0].write(1000)
	all[1].write(7)
	for all[0].bytes.Load() < 1000 || all[1].bytes.Load() < 7 {
		before := all[0].bytes.Load() + all[1].bytes.Load()
		for range askCold {
			p.Poll()
		}
		if all[0].bytes.Load()+all[1].bytes.Load() == before {
			t.Fatal("no progress")
		}
	}
	if p.Drain(); p.More() {
		t.Error("an empty source wants more")
	}
}

// PollAll calls a source that Poll, among many, calls later.
func TestPollAll(t *testing.T) {
	ps, p := newPipes(t, 4*direct)
	for range askCold { // the first is hot
		ps[0].write(1)
		p.Poll()
	}
	for range 3 * askCold {
		cold := ps[len(ps)-1]
		cold.write(1)
		if n := p.PollAll(); n != 1 {
			t.Fatalf("%d of 1", n)
		}
		ps[0].write(1)
		p.Poll()
	}
}
