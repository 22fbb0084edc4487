// SPDX-License-Identifier: Apache-2.0

package bulk_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/bulk"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/sharedmem"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/subsys/shm"
)

// hook replaces the function that reads the memory of other processes until the end of the test.
// Endpoints must be opened after it, so that they are closed before.
func hook(t *testing.T, f func(read func() error, local [][]byte) error) {
	t.Helper()
	t.Cleanup(bulk.HookReadProcess(f))
}

// countRead counts the bytes that are read from the memory of other processes.
func countRead(t *testing.T) *atomic.Int64 {
	t.Helper()
	var n atomic.Int64
	hook(t, func(read func() error, local [][]byte) error {
		for _, p := range local {
			n.Add(int64(len(p)))
		}
		return read()
	})
	return &n
}

// sharing returns two endpoints that share memory. It skips the test where the system has none.
func sharing(t *testing.T, opts ...bulk.Option) (origin, target side) {
	t.Helper()
	sharedmem.Need(t)
	cl := rocltest.Cluster(t, 1)
	open := func() side { return endpoint(t, cl.Open(0, rocl.WithTransports(shm.New())), opts...) }
	return open(), open()
}

// Plain memory of another process is read where it lies, with one copy, between any lists of
// segments. Pushes work in the same way.
//
// Promise (Package bulk): Plain memory is read in place on one node where the system allows it, and
// otherwise moved. See also TestPlainMemoryDenied.
func TestPlainMemoryReadInPlace(t *testing.T) {
	const n = 9<<20 + 123
	bytesRead := countRead(t)
	for _, k := range []int{1, 3, 700, 2200} {
		for _, parts := range []int{1, 7, 2000} {
			t.Run(fmt.Sprint(k, " segments, ", parts, " slices"), func(t *testing.T) {
				origin, target := sharing(t)
				thereAndBack(t, origin, target, n, k, parts, false, func(what string, transfer func()) {
					read, copied := bytesRead.Load(), origin.c.Stats().CopiedBytes+target.c.Stats().CopiedBytes
					transfer()
					read, copied = bytesRead.Load()-read, origin.c.Stats().CopiedBytes+target.c.Stats().CopiedBytes-copied
					if isPull := what == "pull"; read < n-5 && (isPull || parts < 1000) || copied > 50_000 && !isPull && parts < 1000 {
						t.Errorf("%s: %d bytes were read where they lie, %d copied by the library", what, read, copied)
					}
				})
			})
		}
	}
}

// All pieces of a transfer are read where they lie, and none is asked for in vain, whatever their
// size.
func TestPlainMemoryPieces(t *testing.T) {
	for piece, requests := range map[int]uint64{1 << 20: 4, 100 << 10: 41} {
		bytesRead := countRead(t)
		const n = 4<<20 + 1000
		origin, target := sharing(t, bulk.PieceSize(piece))
		r := expose(t, origin, bulk.ReadOnly, bulk.Bytes(counting(n)))
		pulls(t, target, r.Handle(), 0, counting(n))
		if made := target.Stats().Transfers; made != requests || piece > 256<<10 && bytesRead.Load() < n {
			t.Errorf("pieces of %d bytes: %d requests, %d bytes read where they lie", piece, made, bytesRead.Load())
		}
	}
}

// If the system does not let a process read another one's memory, or the identifier names another
// process, transfers use the ring. After the first refusal no other attempt is made.
func TestPlainMemoryDenied(t *testing.T) {
	const n = 3 << 20
	for name, test := range map[string]struct {
		help       string // in the log of the side that may not read
		isPushOnly bool   // that side is the origin; otherwise the target
		deny       func(local [][]byte) error
	}{
		"EPERM":             {"ptrace_scope", false, func([][]byte) error { return syscall.EPERM }},
		"ESRCH":             {"namespace", false, func([][]byte) error { return syscall.ESRCH }},
		"ENOSYS":            {"seccomp", false, func([][]byte) error { return syscall.ENOSYS }},
		"unsupported":       {"seccomp", false, func([][]byte) error { return errors.ErrUnsupported }},
		"another process":   {"namespace", false, func(local [][]byte) error { clear(local[0]); return nil }},
		"its cookie is old": {"namespace", false, func(local [][]byte) error { local[0][0]++; return nil }},
		"of the target":     {"ptrace_scope", true, func([][]byte) error { return syscall.EPERM }},
	} {
		t.Run(name, func(t *testing.T) {
			var tried atomic.Int64
			hook(t, func(read func() error, local [][]byte) error {
				tried.Add(1)
				return errors.Join(read(), test.deny(local))
			})
			var log logged.Log
			origin, target := sharing(t, bulk.WithLogger(log.Logger()))
			mem, pushed, memory := counting(n + 1)[1:], counting(n), origin
			want := bytes.Clone(mem)
			r := expose(t, origin, bulk.ReadWrite, bulk.Bytes(mem))
			for range 3 {
				if got := make([]byte, n); test.isPushOnly {
					memory = target
				} else if _, err := target.Pull(deadline(t), r.Handle(), 0, got); err != nil || !bytes.Equal(got, want) {
					t.Fatal("pull: ", err)
				}
				try.Get(target.Push(deadline(t), r.Handle(), 0, pushed))(t)
				want = pushed
			}
			if got := target.Stats().Denied; tried.Load() != 1 || got != 1 {
				t.Errorf("tried %d times, %d contexts are denied", tried.Load(), got)
			}
			if err := r.Revoke(deadline(t)); err != nil || !bytes.Equal(mem, pushed) {
				t.Error("other bytes were pushed: ", err)
			}
			if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, test.help) || !strings.Contains(text, fmt.Sprint(memory.c.ID())) {
				t.Errorf("the log has %q", text)
			}
		})
	}
}

// A system call that fails in the middle of a transfer does not end it: the missing bytes go
// through the ring.
func TestPlainMemoryFailsInTheMidst(t *testing.T) {
	var calls atomic.Int64
	hook(t, func(read func() error, local [][]byte) error {
		if len(local[0]) > bulk.LocatorHead && calls.Add(1) == 4 {
			return syscall.EFAULT
		}
		return read()
	})
	origin, target := sharing(t, bulk.PieceSize(1<<20))
	mem := counting(16 << 20)
	r := expose(t, origin, bulk.ReadOnly, bulk.Bytes(mem))
	pulls(t, target, r.Handle(), 0, mem)
	try.Equal(t, target.Stats().Denied, 0, "the origin is remembered as denied")
}

// reader lets a target begin to read plain memory of a region into got, and returns a function that
// lets it go on.
func reader(t *testing.T) (origin, target side, r *bulk.Region, tr *bulk.Transfer, got []byte, goOn func()) {
	t.Helper()
	reading, wait := make(chan struct{}), make(chan struct{})
	var once sync.Once
	hook(t, func(read func() error, local [][]byte) error {
		if len(local[0]) > bulk.LocatorHead {
			once.Do(func() { close(reading); <-wait })
		}
		return read()
	})
	origin, target = sharing(t)
	got = make([]byte, 8<<20)
	r = expose(t, origin, bulk.ReadOnly, bulk.Bytes(counting(len(got))))
	tr = target.StartPull(deadline(t), r.Handle(), 0, got)
	<-reading
	return origin, target, r, tr, got, func() { close(wait) }
}

// tooLate checks that f does not end before its context.
func tooLate(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, end := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer end()
	try.Fails(f(ctx))(t, context.DeadlineExceeded)
}

// A region is revoked while a target reads its plain memory: Revoke waits for the target, and later
// reads are refused.
//
// Promise (Package bulk): `Revoke` waits for a process that reads plain memory in place, while that
// process lives. See also TestBulkTargetKilled.
func TestRevokeWaitsForReader(t *testing.T) {
	_, target, r, tr, got, goOn := reader(t)
	for range 3 {
		tooLate(t, r.Revoke)
	}
	try.Fails(target.Pull(deadline(t), r.Handle(), 0, make([]byte, len(got))))(t, bulk.ErrRevoked)
	goOn()
	if _, err := tr.Wait(deadline(t)); err != nil || !bytes.Equal(got, counting(len(got))) {
		t.Error(err)
	}
	try.Check(t, r.Revoke(deadline(t)))
}

// A region is released while a target reads its plain memory: the memory is not freed, and later
// the locator is released.
func TestReleaseWhileRead(t *testing.T) {
	origin, _, r, tr, _, goOn := reader(t)
	r.Release()
	r.Release()
	try.Equal(t, origin.Retired(), 1, "regions keep their memory")
	goOn()
	try.Works(tr.Wait(deadline(t)))(t)
	eventually.True(t, "the memory and the locator are released", func() bool {
		return origin.Retired() == 0 && origin.c.Stats().Buffers.InUse == 0
	})
}

// An endpoint is closed after a Revoke that has not waited for a target: Close waits for it.
func TestCloseWaitsForReader(t *testing.T) {
	origin, _, r, tr, _, goOn := reader(t)
	tooLate(t, r.Revoke)
	tooLate(t, origin.Close)
	goOn()
	_, _ = tr.Wait(deadline(t)) // the origin has been closed
	try.Check(t, origin.Close(deadline(t)))
}

// A transfer that is cancelled while it reads plain memory gives the memory back.
func TestCancelWhileReading(t *testing.T) {
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	hook(t, func(read func() error, local [][]byte) error {
		if len(local[0]) > bulk.LocatorHead {
			cancel()
		}
		return read()
	})
	origin, target := sharing(t)
	r := expose(t, origin, bulk.ReadOnly, bulk.Bytes(counting(16<<20)))
	got := make([]byte, 16<<20)
	n, err := target.Pull(ctx, r.Handle(), 0, got)
	if !errors.Is(err, context.Canceled) || n == 16<<20 {
		t.Error(n, err)
	}
	was := bytes.Clone(got)
	if err := r.Revoke(deadline(t)); err != nil || !bytes.Equal(was, got) {
		t.Error("written after the end: ", err)
	}
}

// Locators of an origin, or of a target, may lie. Nothing panics, nothing is read beyond the
// request, and transfers fail or use messages.
func TestHostileLocators(t *testing.T) {
	origin, target := sharing(t)
	hostile := try.Get(origin.c.Register(deadline(t), nil))(t)
	const n = 1 << 20
	text := counting(n)
	r := expose(t, origin, bulk.ReadWrite, bulk.Bytes(make([]byte, n)))
	for name, spoil := range map[string]func(p []byte) int{ // which returns the length of the message
		"as it is":        func(p []byte) int { return len(p) },
		"empty":           func(p []byte) int { return 0 },
		"short":           func(p []byte) int { return bulk.LocatorHead - 1 },
		"without extents": func(p []byte) int { binary.LittleEndian.PutUint64(p[32:], 0); return len(p) },
		"many extents":    func(p []byte) int { binary.LittleEndian.PutUint64(p[32:], 1<<60+1); return len(p) },
		"another cookie": func(p []byte) int {
			binary.LittleEndian.PutUint64(p[16:], binary.LittleEndian.Uint64(p[40:]))
			return len(p)
		},
		"no process":      func(p []byte) int { binary.LittleEndian.PutUint64(p[24:], 1<<63); return len(p) },
		"all processes":   func(p []byte) int { binary.LittleEndian.PutUint64(p[24:], 1<<64-1); return len(p) },
		"an extent of 0":  func(p []byte) int { binary.LittleEndian.PutUint64(p[48:], 0); return len(p) },
		"a longer extent": func(p []byte) int { binary.LittleEndian.PutUint64(p[48:], n+1); return len(p) },
		"2^64-1 bytes":    func(p []byte) int { binary.LittleEndian.PutUint64(p[48:], 1<<64-1); return len(p) },
		"no such address": func(p []byte) int { binary.LittleEndian.PutUint64(p[40:], 1); return len(p) },
		"over the top":    func(p []byte) int { binary.LittleEndian.PutUint64(p[40:], 1<<64-100); return len(p) },
	} {
		t.Run(name, func(t *testing.T) {
			make := func() *rocl.Buffer {
				b := try.Get(origin.Locator(text))(t)
				try.OK(t, b.Resize(spoil(b.Bytes())))
				return b
			}
			var served sync.WaitGroup
			served.Go(func() {
				m, err := hostile.Recv(deadline(t), rocl.Tag(bulk.TagLocate))
				if err != nil {
					t.Error(err)
					return
				}
				defer m.Release()
				try.Check(t, hostile.Reply(deadline(t), m, make()))
			})
			h := bulk.HandleOf(hostile.ID(), n)
			got := bytes.Repeat([]byte{7}, n+1)
			err := bulk.PullInPlace(deadline(t), target.Endpoint, h, got[:n])
			served.Wait()
			if isRight := name == "as it is"; (err == nil) != isRight || isRight && !bytes.Equal(got[:n], text) || got[n] != 7 {
				t.Error("pull: ", err)
			}
		})
	}
	try.Works(target.Pull(deadline(t), r.Handle(), 0, make([]byte, n)))(t)
}
