// SPDX-License-Identifier: Apache-2.0

//go:build linux && !portable

package subsys

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl/internal/os/futex"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"golang.org/x/sys/unix"
)

// A drum is a Ring of one counter, which the test rings as another process would.
type drum struct {
	p       *Poller
	bell    int
	word    *atomic.Uint32
	how     atomic.Uint32 // IdleMode
	arrived atomic.Int32
}

func newDrum(t *testing.T, ps ...*pipe) *drum {
	t.Helper()
	d := &drum{p: newPoller(t, ps...)}
	d.bell = try.Get(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t)
	t.Cleanup(func() { unix.Close(d.bell) })
	try.Get(d.p.NapPage())(t)
	d.word = d.p.nap.word.Load()
	try.OK(t, d.p.AddQuiet(d.bell, d))
	return d
}

func (d *drum) Ready(Readiness) (int, bool) { return d.Look(), false }

func (d *drum) Look() int {
	d.how.Store(uint32(Awake))
	return int(d.arrived.Swap(0))
}

func (d *drum) SetIdle(how IdleMode) bool {
	d.how.Store(uint32(how))
	return d.arrived.Load() > 0
}

func (d *drum) beat() {
	d.arrived.Add(1)
	switch IdleMode(d.how.Load()) {
	case Asleep:
		one := [8]byte{1}
		_, _ = unix.Write(d.bell, one[:])
	case Napping:
		d.word.Add(1)
		futex.Wake(d.word)
	}
}

// nap begins a nap that no goroutine is sure to end, and returns its result.
func (d *drum) nap(t *testing.T, unless *atomic.Uint32) chan int {
	t.Helper()
	done := make(chan int)
	go func() { done <- d.p.Nap(0, unless) }()
	eventually.True(t, "a nap", d.p.Asleep)
	return done
}

// TestNapEnds checks what ends a nap, and the state after it.
func TestNapEnds(t *testing.T) {
	d := newDrum(t)
	p := d.p
	var unless atomic.Uint32
	if p.Naps() {
		t.Error("it naps though no sleep was short")
	}
	p.nap.streak = 1
	if !p.Naps() {
		t.Fatal("it does not nap after a short sleep")
	}
	polls := p.count.Polls.Load()

	done := d.nap(t, &unless)
	d.beat()
	wantFrames(t, "rung", done, 1)
	if !p.Naps() || IdleMode(d.how.Load()) != Awake {
		t.Error("a nap that a ring has ended is not followed by one")
	}
	done = d.nap(t, &unless)
	p.Wake()
	wantFrames(t, "woken", done, 0)
	if !p.Naps() {
		t.Error("a sleep that Wake has ended counts as long")
	}
	done = d.nap(t, &unless)
	unless.Store(1)
	p.Wake()
	wantFrames(t, "what is waited for is there", done, 0)
	try.Equal(t, p.Nap(0, &unless), 0, "frames")
	unless.Store(0)
	try.Equal(t, p.count.Polls.Load(), polls, "calls of epoll")

	done = d.nap(t, &unless)
	p.EndNap() // the nap may have just begun
	select {
	case <-done:
		t.Fatal("a nap was ended that had just begun")
	case <-time.After(10 * time.Millisecond): // an event that must not happen can only be waited for
	}
	p.EndNap()
	wantFrames(t, "for too long", done, 0)
	if p.Naps() {
		t.Error("a nap follows a long nap")
	}

	p.nap.streak = 1
	done = d.nap(t, &unless)
	p.EndPark()
	wantFrames(t, "at the end", done, 0)
	p.nap.streak = 1
	if p.Naps() || p.Nap(0, &unless) != 0 {
		t.Error("naps after the end")
	}
}

// A Poller with descriptors that Poll tries naps only after many short sleeps, and not for long.
func TestNapBeside(t *testing.T) {
	s := newPipe(t)
	d := newDrum(t, s)
	p := d.p
	var unless atomic.Uint32
	p.nap.streak = 1
	if p.Naps() {
		t.Error("it naps though a descriptor may have been the last")
	}
	p.nap.streak = napSure
	if !p.Naps() {
		t.Fatal("it does not nap though no descriptor has ended a sleep")
	}
	done := make(chan int)
	s.write(3)
	go func() { done <- p.Nap(0, &unless) }()
	wantFrames(t, "beside a descriptor", done, 0)
	if p.Naps() {
		t.Error("after a nap in vain there is another")
	}
	try.Equal(t, p.Sleep(time.Hour, &unless), 3, "bytes heard")
	for _, how := range []func(){func() { p.Poll() }, func() { p.Sleep(time.Hour, &unless) }} {
		p.nap.streak = napSure
		s.write(1)
		if how(); p.Naps() {
			t.Error("it naps though a descriptor has had something")
		}
	}
	p.nap.streak = napSure
	p.WantWrite(s.r, true)
	if p.Naps() {
		t.Error("it naps though a source waits to write")
	}
	p.WantWrite(s.r, false)
}

// A short sleep that a ring ends is followed by a nap.
func TestNapAfterShortSleeps(t *testing.T) {
	d := newDrum(t)
	var unless atomic.Uint32
	for i := 0; !d.p.Naps(); i++ {
		if i == 10_000 {
			t.Fatal("no sleep was short")
		}
		rung := make(chan struct{})
		go func() {
			for !d.p.Asleep() {
			}
			d.beat()
			close(rung)
		}()
		for d.p.Sleep(time.Second, &unless) == 0 {
		}
		<-rung
	}
	d.p.nap.slept(napShort, 1)
	if d.p.Naps() {
		t.Error("a nap after a long sleep")
	}
}

// No beat and no wake is lost at any moment. No other goroutine ends these naps.
func TestNapLosesNothing(t *testing.T) {
	const rounds = 20_000
	d := newDrum(t)
	var unless atomic.Uint32
	done := make(chan int)
	go func() {
		n := 0
		for n < rounds {
			n += d.p.Nap(0, &unless)
		}
		for n < 2*rounds {
			d.p.Nap(0, &unless)
			n += int(unless.Swap(0))
		}
		done <- n
	}()
	until := func(what string, ok func() bool) {
		end := time.Now().Add(20 * time.Second)
		for i := 0; !ok(); i++ {
			if runtime.Gosched(); i%1000 == 999 && time.Now().After(end) {
				t.Fatalf("%s was lost", what)
			}
		}
	}
	for range rounds {
		d.beat()
		until("a beat", func() bool { return d.arrived.Load() == 0 })
	}
	for range rounds {
		unless.Store(1)
		if d.p.Asleep() {
			d.p.Wake()
		}
		until("a wake", func() bool { return unless.Load() == 0 })
	}
	wantFrames(t, "all", done, 2*rounds)
}

// A process that maps the page may move its sleepers to another word. A bounded nap ends
// nevertheless.
func TestNapMoved(t *testing.T) {
	d := newDrum(t)
	d.p.BoundNaps()
	var unless atomic.Uint32
	other := (*atomic.Uint32)(unsafe.Pointer(&d.p.nap.mem[64]))
	for moved := false; !moved; {
		done := make(chan int)
		go func() { done <- d.p.Nap(0, &unless) }()
		for !moved && len(done) == 0 && d.p.Asleep() {
			const requeue = 3
			n, _, _ := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(d.word)), requeue, 0, 1, uintptr(unsafe.Pointer(other)), 0)
			moved = n > 0
		}
		wantFrames(t, "moved", done, 0)
	}
}

// A ring that always has something does not keep descriptors from being handled.
//
// Promise (Waiting): A busy transport does not keep another transport's messages from being
// received.
func TestBusyRing(t *testing.T) {
	s := newPipe(t)
	d := newDrum(t, s)
	var unless atomic.Uint32
	for name, sleep := range map[string]func(time.Duration, *atomic.Uint32) int{"Sleep": d.p.Sleep, "Nap": d.p.Nap} {
		before := s.bytes.Load()
		s.write(1)
		for i := 0; s.bytes.Load() == before; i++ {
			if i == 10_000 {
				t.Fatalf("%s does not hear a descriptor", name)
			}
			d.arrived.Store(1)
			sleep(time.Millisecond, &unless)
		}
	}
}
