// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/tpvm"
)

func init() { programs["limited"] = startOverLimit }

// startOverLimit starts more programs than the process limit of its user allows.
func startOverLimit() error {
	const allowed, wanted = 5, 12
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	t, err := tpvm.Enrol(ctx, tpvm.WithRocl(rocl.WithSocket(os.Getenv("TPVM_TEST_SOCKET"))))
	if err != nil {
		return err
	}
	keepThreads(64) // the limit counts threads: the runtime must not need another one
	running, err := threadsOf(os.Getuid())
	if err != nil {
		return err
	}
	limit := unix.Rlimit{Cur: uint64(running + allowed), Max: uint64(running + allowed)}
	if err := unix.Setrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
		return err
	}
	ps, err := t.Start(ctx, "sleep", wanted, tpvm.Args("1000"))
	defer func() {
		for _, p := range ps {
			_ = p.Signal(ctx, syscall.SIGKILL)
			_, _ = p.Wait(ctx)
		}
	}()
	var e *tpvm.SpawnError
	if !errors.As(err, &e) || !errors.Is(err, tpvm.ErrTooMany) || len(e.Slots) != wanted {
		return fmt.Errorf("%d programs run, and the error is %w", len(ps), err)
	}
	if n := len(e.Unwrap()); n == 0 || n == wanted || n+len(ps) != wanted {
		return fmt.Errorf("%d slots failed and %d programs run, of %d: %w", n, len(ps), wanted, err)
	}
	for i, slot := range e.Slots {
		for _, want := range []string{syscall.EAGAIN.Error(), "sleep on " + t.Host()} {
			if slot != nil && !strings.Contains(slot.Error(), want) {
				return fmt.Errorf("slot %d does not say %q: %w", i, want, slot)
			}
		}
	}
	for _, p := range ps {
		if e.Slots[p.Index()] != nil {
			return fmt.Errorf("%v runs, and its slot says %w", p, e.Slots[p.Index()])
		}
		if err := syscall.Kill(p.PID(), 0); err != nil {
			return fmt.Errorf("%v does not run: %w", p, err)
		}
	}
	if err := ps[0].Signal(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	if _, err := ps[0].Wait(ctx); err != nil {
		return err
	}
	again, err := t.Start(ctx, "sleep", 1, tpvm.Args("1000"))
	if err != nil {
		return fmt.Errorf("when one has ended: %w", err)
	}
	ps = append(ps, again...)
	return nil
}

// keepThreads makes the runtime start n threads, which it keeps.
func keepThreads(n int) {
	var locked, ended sync.WaitGroup
	release := make(chan struct{})
	locked.Add(n)
	for range n {
		ended.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			locked.Done()
			<-release
		})
	}
	locked.Wait()
	close(release)
	ended.Wait()
}

// threadsOf counts the threads of a user.
func threadsOf(uid int) (n int, err error) {
	tasks, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	if err != nil {
		return 0, err
	}
	for _, path := range tasks {
		if fi, err := os.Stat(path); err == nil && int(fi.Sys().(*syscall.Stat_t).Uid) == uid {
			n++
		}
	}
	return n, nil
}

// A system that refuses processes fails their slots, with the reason. The other programs run, and
// when one has ended another can be started.
func TestSpawnOverProcessLimit(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to run as a user of which nothing else runs")
	}
	const uid = 61234 // no user has this number
	if n, err := threadsOf(uid); err != nil || n > 0 {
		t.Skipf("%d threads of the user %d run: %v", n, uid, err)
	}
	dir := must(os.MkdirTemp("", "tp-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	check(t, errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, uid, uid)))
	program := filepath.Join(dir, "test") // the user may not enter the directory of the test binary
	check(t, copyFile(program, self(t)))
	cmd := exec.CommandContext(deadline(t), program)
	cmd.Env = append(os.Environ(), "TPVM_TEST_PROGRAM=limited", "TPVM_TEST_SOCKET="+filepath.Join(dir, "s"))
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// A pod that is ending does not start the programs that it was about to start.
func TestEndDuringLaunch(t *testing.T) {
	task := enrol(t, alone(t))
	if err := task.EndDuringLaunch(); !errors.Is(err, tpvm.ErrExited) {
		t.Error(err)
	}
}
