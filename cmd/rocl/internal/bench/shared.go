package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// words are two words of memory that both processes have mapped, each written by
// one of them: the least that a round trip over shared memory can be. A third one
// says that the next message is the last, of whatever is being echoed.
type words struct {
	there, back, last *atomic.Uint32
	mem               []byte
}

const (
	wordsLen   = 4096
	patientFor = 1 << 12 // looks between questions whether to go on
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
	return &words{word(0), word(1024), word(2048), mem}, nil
}

func (w *words) close() { _ = unix.Munmap(w.mem) }

// ping sets one word and waits until the other is the same.
func (w *words) ping(ctx context.Context, futex bool) error {
	x := w.there.Load() + 1
	set(w.there, x, futex)
	return await(ctx, w.back, x, futex)
}

// echo answers.
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

// rttShared is rtt over shared memory. The bare figure does not depend on the
// size, nor is ours to: with a large one, that of 64 bytes is measured in the same
// run.
func rttShared(p *pair, o *options) (*Result, error) {
	futex, task, what := o.poll == "off", "echo-words", "a bare Go loop over two atomic words"
	if futex {
		task, what = "echo-futex", "a bare Go loop over two shared futexes"
	}
	bare := func() error { return p.words.ping(p.ctx, futex) }
	of := func(size int) func() error {
		return func() error { return pingPong(p.ctx, p.c, p.me, p.peer, size) }
	}
	const small = 64
	a, b, s := newTimes(), newTimes(), newTimes()
	var allocs float64
	for round := -1; round < o.rounds; round++ {
		n := o.count
		if round < 0 {
			n = min(n, 500) // warm up
		}
		if round == 0 {
			a, b, s = newTimes(), newTimes(), newTimes()
		}
		if err := p.round(task, n, a, bare); err != nil {
			return nil, err
		}
		if o.size > small {
			if err := p.round("echo", n, s, of(small)); err != nil {
				return nil, err
			}
		}
		before := mallocs()
		if err := p.round("echo", n, b, of(o.size)); err != nil {
			return nil, err
		}
		allocs = (mallocs() - before) / float64(n)
	}
	r := &Result{Bench: "rtt", Transport: o.transport, Size: o.size, Poll: o.poll, Count: o.count * o.rounds, Unit: "µs", What: what,
		P50: b.p50(), P99: b.p99(), Raw: a.p50(), RawP99: a.p99(), Target: 3, Allocs: allocs}
	if futex {
		r.Target = 1.3
	}
	r.Ratio = r.P50 / r.Raw
	if o.size > small {
		r.Extra = fmt.Sprintf("64 bytes in the same run: p50 %.2f µs; ratio %.2f (at most 1.20)", s.p50(), r.P50/s.p50())
	}
	return r, nil
}
