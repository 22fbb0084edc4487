// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package memfd

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A process with the descriptor of a file sees what its maker writes, and can neither write nor
// truncate the file in any way.
func TestOnlyTheMakerWrites(t *testing.T) {
	const size = 3 * 4096
	fd, mem, err := Create(context.Background(), "test", size)
	if err != nil {
		t.Skip(err)
	}
	defer Close(fd)
	defer Unmap(mem)
	theirs := try.Get(Open(fd, size))(t)
	defer Unmap(theirs)
	mem[size-1] = 7
	try.Equal(t, theirs[size-1], 7, "what was written is not seen")
	cannotWrite(t, fd, theirs)
	for _, to := range []int64{0, size + 4096} {
		if unix.Ftruncate(fd, to) == nil {
			t.Errorf("the file was cut to %d", to)
		}
	}
	if unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096) == nil {
		t.Error("a hole was made")
	}
}

// A process with the descriptor of shared memory may write it, but cannot truncate it.
func TestShared(t *testing.T) {
	const size = 4096
	fd, mem, err := CreateShared("test", size)
	if err != nil {
		t.Skip(err)
	}
	defer Close(fd)
	defer Unmap(mem)
	theirs := try.Get(OpenShared(fd, size))(t)
	defer Unmap(theirs)
	theirs[1] = 7
	try.Equal(t, mem[1], 7, "what was written is not seen")
	if unix.Ftruncate(fd, 0) == nil {
		t.Error("the file was cut")
	}
	try.Fails(Open(fd, size))(t, ErrUnsealed, "what others write was opened as what they do not")
	mine, ours, err := Create(context.Background(), "test", size)
	try.OK(t, err)
	defer Close(mine)
	defer Unmap(ours)
	if m, err := OpenShared(mine, size); err == nil {
		Unmap(m)
		t.Error("what its maker alone writes was opened for writing")
	}
}

// Open refuses any other file.
func TestOpenRefuses(t *testing.T) {
	plain, err := unix.MemfdCreate("plain", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Skip(err)
	}
	defer unix.Close(plain)
	_ = unix.Ftruncate(plain, 4096)
	var p [2]int
	try.OK(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	good, mem, err := Create(context.Background(), "good", 4096)
	if err != nil {
		t.Skip(err)
	}
	defer Close(good)
	defer Unmap(mem)
	for _, c := range []struct{ fd, size int }{{plain, 4096}, {p[0], 4096}, {-1, 4096}, {good, 8192}, {good, 0}, {good, -1}} {
		if m, err := Open(c.fd, c.size); !errors.Is(err, ErrUnsealed) {
			t.Errorf("descriptor %d of %d bytes: %v, %v", c.fd, c.size, len(m), err)
		}
	}
	try.Rejects(Create(context.Background(), "none", -1))(t, "less than nothing was made")
}

// Reserved memory takes no pages before Commit, and is as safe as other memory.
func TestReserve(t *testing.T) {
	const size, some = 1 << 30, 1 << 20
	fd, mem, err := Reserve("test", size)
	if err != nil {
		t.Skip(err)
	}
	defer Close(fd)
	defer Unmap(mem)
	used := func() int64 {
		var st unix.Stat_t
		try.OK(t, unix.Fstat(fd, &st))
		return st.Blocks * 512
	}
	try.Equal(t, used(), 0, "bytes taken before any was committed")
	try.OK(t, Commit(context.Background(), fd, some, 2*some))
	if n := used(); n < some || n > 4*some { // pages may be large
		t.Errorf("%d bytes are taken, %d were committed", n, some)
	}
	if err := Commit(context.Background(), fd, size, size+some); err == nil {
		t.Error("more than was reserved was committed")
	}
	if m, err := Open(fd, size); !errors.Is(err, ErrUnsealed) {
		t.Errorf("a file with pages that have no memory was opened: %d bytes, %v", len(m), err)
	}
	theirs := try.Get(OpenReserved(fd, size))(t)
	defer Unmap(theirs)
	mem[some] = 7
	try.Equal(t, theirs[some], 7, "what was written is not seen")
}

// Memory is allocated in small steps that are kept. Signals at any rate do not stop that for ever,
// and the end of the context ends it between two steps.
func TestCommitInSteps(t *testing.T) {
	const total = 64<<20 + 5
	ended := errors.New("ended")
	for name, c := range map[string]struct {
		interrupts func(call, n int) bool
		endAt      int // bytes after which ctx ends; 0: never
		want       error
	}{
		"without signals":     {func(int, int) bool { return false }, 0, nil},
		"every second":        {func(call, _ int) bool { return call%2 == 1 }, 0, nil},
		"all large steps":     {func(_, n int) bool { return n > 64<<10 }, 0, nil},
		"always":              {func(int, int) bool { return true }, 0, unix.EINTR},
		"ctx ends":            {func(int, int) bool { return false }, 10 << 20, ended},
		"ctx ends by a storm": {func(_, n int) bool { return n > leastStep }, 1 << 20, ended},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			done, calls := 100, 0
			err := commit(ctx, done, total, func(from, n int) error {
				if calls++; calls > 100_000 {
					t.Fatalf("%d calls, %d bytes", calls, done)
				}
				if from != done || n < 1 || n > mostStep {
					t.Fatalf("a step of %d bytes at %d, %d are allocated", n, from, done)
				}
				if c.interrupts(calls, n) {
					return unix.EINTR
				}
				if done += n; c.endAt > 0 && done > c.endAt {
					cancel(ended)
				}
				return nil
			})
			if !errors.Is(err, c.want) || err == nil && done != total {
				t.Errorf("%v, %d bytes of %d", err, done, total)
			}
			if c.endAt > 0 && done > c.endAt+mostStep {
				t.Errorf("ctx ended after %d bytes, and %d were allocated", c.endAt, done)
			}
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ended)
	try.Fails(Create(ctx, "test", 1<<30))(t, ended, "a context that has ended")
}
