// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// words are words in memory that both processes have mapped. The parent writes there and the peer
// writes back: their exchange is the shortest possible round trip over shared memory. last says
// that the next message of an echo is the last. paused is how long the peer did something else
// before it answered.
type words struct {
	there, back, last *atomic.Uint32
	paused            *atomic.Int64
	mem               []byte
}

const (
	wordsLen   = 4096
	patientFor = 1 << 12 // number of looks between two checks of ctx
)

func openWords(dir string) (*words, error) {
	f, err := os.OpenFile(filepath.Join(dir, "words"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(wordsLen); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, wordsLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	word := func(at int) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(&mem[at])) }
	return &words{word(0), word(1024), word(3072), (*atomic.Int64)(unsafe.Pointer(&mem[2048])), mem}, nil
}

func (w *words) close() { _ = unix.Munmap(w.mem) }

// ping increments the word there and waits until the word back is equal.
func (w *words) ping(ctx context.Context, futex bool) error {
	x := w.there.Load() + 1
	set(w.there, x, futex)
	return await(ctx, w.back, x, futex)
}

// echo answers the pings of the other process.
func (w *words) echo(ctx context.Context, more func() bool, futex bool) error {
	for again := true; again; {
		x := w.back.Load() + 1
		if err := await(ctx, w.there, x, futex); err != nil {
			return err
		}
		again = more()
		set(w.back, x, futex)
	}
	return nil
}

const (
	futexWait = 0
	futexWake = 1
)

func set(w *atomic.Uint32, x uint32, futex bool) {
	w.Store(x)
	if futex {
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWake, 1, 0, 0, 0)
	}
}

func await(ctx context.Context, w *atomic.Uint32, x uint32, futex bool) error {
	short := unix.NsecToTimespec(int64(10 * time.Millisecond))
	for i := 1; ; i++ {
		now := w.Load()
		if now == x {
			return nil
		}
		if futex {
			_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWait, uintptr(now), uintptr(unsafe.Pointer(&short)), 0, 0)
		}
		if i%128 == 0 && !futex {
			runtime.Gosched()
		}
		if i%patientFor == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// pause sleeps for about d, and stores how long that took.
func (w *words) pause(d time.Duration) {
	start := time.Now()
	time.Sleep(d)
	w.paused.Store(int64(time.Since(start)))
}

// events are two eventfds that both processes share, in the pollers of their runtimes. They are the
// fastest way to wake a goroutine that sleeps for long.
type events struct{ there, back *os.File }

// newEvents makes two eventfds that cmd inherits when it is started.
func newEvents(cmd *exec.Cmd) (*events, error) {
	var fs [2]*os.File
	for i := range fs {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return nil, os.NewSyscallError("eventfd", err)
		}
		fs[i] = os.NewFile(uintptr(fd), "eventfd")
		again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) // a duplicate, because exec may make it blocking
		if err != nil {
			return nil, os.NewSyscallError("fcntl", err)
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(again), "eventfd"))
	}
	return &events{fs[0], fs[1]}, nil
}

// inherited returns the eventfds of the process that has started this one.
func inherited() (*events, error) {
	var fs [2]*os.File
	for i := range fs {
		unix.CloseOnExec(3 + i)
		if err := unix.SetNonblock(3+i, true); err != nil { // exec has made it blocking, for both processes
			return nil, os.NewSyscallError("fcntl", err)
		}
		fs[i] = os.NewFile(uintptr(3+i), "eventfd")
	}
	return &events{fs[0], fs[1]}, nil
}

func (e *events) close() {
	e.there.Close()
	e.back.Close()
}

func signalEvent(f *os.File) error {
	_, err := f.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	return err
}

func awaitEvent(f *os.File) error {
	_, err := f.Read(make([]byte, 8))
	return err
}

func (e *events) ping() error {
	if err := signalEvent(e.there); err != nil {
		return err
	}
	return awaitEvent(e.back)
}

// echoEvents answers n times, each time after a pause.
func (w *words) echoEvents(e *events, n int, d time.Duration) error {
	for range n {
		if err := awaitEvent(e.there); err != nil {
			return err
		}
		w.pause(d)
		if err := signalEvent(e.back); err != nil {
			return err
		}
	}
	return nil
}

// work is a computation that goroutines make in steps of some microseconds.
type work struct {
	steps atomic.Uint64
	ended atomic.Bool
	busy  sync.WaitGroup
}

// start starts n goroutines that compute until stop.
func (w *work) start(n int) {
	for range n {
		w.busy.Go(func() {
			for x := uint64(1); !w.ended.Load(); w.steps.Add(1) {
				for range 5000 {
					x ^= x << 13
					x ^= x >> 7
					x ^= x << 17
				}
				if x == 0 {
					return // never happens; makes the compiler keep the computation
				}
			}
		})
	}
}

// since returns a function that returns the steps a second since then.
func (w *work) since() func() float64 {
	start, steps := time.Now(), w.steps.Load()
	return func() float64 { return float64(w.steps.Load()-steps) / time.Since(start).Seconds() }
}

func (w *work) stop() {
	w.ended.Store(true)
	w.busy.Wait()
}

// rttShared measures rtt over shared memory. The bare figure does not depend on the size, and the
// library's should not either: with a large size, the figure for 64 bytes is measured in the same
// run.
func rttShared(p *pair, o *options) (*Result, error) {
	bare := func(futex bool) func() error {
		return func() error { return p.words.ping(p.ctx, futex) }
	}
	task, what, raw, target := "echo-words", "a bare Go loop over two atomic words", bare(false), 1.8
	switch {
	case o.pause > 0:
		task, what, raw, target = "echo-events", "a bare Go loop over two eventfds of the runtime's poller", p.events.ping, 1.2
	case o.poll == "never":
		task, what, raw, target = "echo-futex", "a bare Go loop over two shared futexes", bare(true), 1.25
	}
	round := func(task string, n int, t *times, trip func() error) error {
		if o.pause == 0 {
			return p.round(task, n, t, trip)
		}
		if err := p.begin(task, n, int(o.pause)); err != nil {
			return err
		}
		err := t.timed(n, func() (time.Duration, error) {
			time.Sleep(o.pause)
			start := time.Now()
			err := trip()
			return time.Since(start) - time.Duration(p.words.paused.Load()), err
		})
		if err != nil {
			return err
		}
		return p.wait()
	}
	of := func(size int) func() error {
		return func() error { return pingPong(p.ctx, p.c, p.me, p.peer, size) }
	}
	echo := "echo"
	if o.pause > 0 {
		echo = "echo-late"
	}
	const small = 64
	var w work
	defer w.stop()
	w.start(o.compute)
	a, b, s := newTimes(), newTimes(), newTimes()
	var allocs float64
	var computed []float64
	for i := -1; i < o.rounds; i++ {
		n := o.count
		if i < 0 {
			n = min(n, 500) // warm up
		}
		if i == 0 {
			a, b, s = newTimes(), newTimes(), newTimes()
		}
		if err := round(task, n, a, raw); err != nil {
			return nil, err
		}
		if o.size > small {
			if err := round(echo, n, s, of(small)); err != nil {
				return nil, err
			}
		}
		alone := 0.0
		if o.compute > 0 && i >= 0 {
			steps := w.since()
			time.Sleep(300 * time.Millisecond)
			alone = steps()
		}
		before, steps := mallocs(), w.since()
		if err := round(echo, n, b, of(o.size)); err != nil {
			return nil, err
		}
		if o.compute > 0 && i >= 0 {
			computed = append(computed, steps()/alone)
		}
		allocs = (mallocs() - before) / float64(n)
	}
	r := &Result{Bench: "rtt", Transport: o.transport, Size: o.size, Poll: o.poll, Count: o.count * o.rounds, Unit: "µs", What: what,
		P50: b.p50(), P99: b.p99(), Raw: a.p50(), RawP99: a.p99(), Target: target, Allocs: allocs,
		Compute: o.compute, Computed: median(computed)}
	r.Ratio = r.P50 / r.Raw
	if o.pause > 0 {
		r.Pause = o.pause.String()
	}
	if o.poll == "always" && o.pause == 0 {
		r.Also = &Result{Bench: "rtt p99", Transport: o.transport, Size: o.size, Poll: o.poll, Count: r.Count, Unit: r.Unit,
			What: "its own p50", P50: r.P99, Raw: r.P50, Ratio: r.P99 / r.P50, Target: 2}
	}
	if o.size > small {
		r.Extra = fmt.Sprintf("%s: p50 %.2f µs; %s", what, r.Raw, untouched)
		r.What, r.Raw, r.RawP99, r.Target = "64 bytes in the same run", s.p50(), s.p99(), 1.2
		r.Ratio = r.P50 / r.Raw
	}
	if o.compute > 0 {
		r.Extra = strings.TrimPrefix(r.Extra+fmt.Sprintf("\ncomputing meanwhile: %.0f %% of what it is alone", 100*r.Computed), "\n")
	}
	return r, nil
}
