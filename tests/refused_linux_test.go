// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"golang.org/x/sys/unix"
)

// refuse makes a system call fail in this process from here on. A kernel without memory to share
// does so, and a container that may not share memory.
func refuse(call string) error {
	what := map[string]struct {
		nr  uint32
		err syscall.Errno
	}{
		"memfd_create": {unix.SYS_MEMFD_CREATE, syscall.EPERM},
		"fallocate":    {unix.SYS_FALLOCATE, syscall.ENOSPC},
	}[call]
	if what.nr == 0 {
		return fmt.Errorf("no system call %q here", call)
	}
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // the number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: what.nr, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(what.err)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	const setModeFilter, allThreads = 1, 1
	if _, _, e := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, allThreads, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return e
	}
	return nil
}

// If the kernel refuses memory that can be shared, or has none left, TCP is used. One log line says
// so.
//
// Promise (Transports): Processes that cannot share memory use TCP, whatever the reason and the
// state of `/dev/shm`. See also TestContainers.
func TestNoSharedMemory(t *testing.T) {
	for _, call := range []string{"memfd_create", "fallocate"} {
		sock := socket(t)
		start(t, "serving", dirserver, "--socket", sock)
		t.Setenv("ROCL_TEST_REFUSED", call)
		p := launch(t, subprocess.Self("peer", "echo", sock, "poor"))
		p.untilAll(t, "transport=shm", "registered")
		t.Setenv("ROCL_TEST_REFUSED", "")
		me := register(t, open(t, sock), lib.Attrs{"me": call})
		for _, size := range []int{10, 100_000} {
			greet(t, me, "poor", size)
		}
		if s := me.Context().Stats(); s.Sent["tcp"] != 2 || s.Received["tcp"] != 2 {
			t.Errorf("%s is refused: sent %v", call, s.Sent)
		}
		for len(p.Lines) > 0 {
			if l := <-p.Lines; strings.Contains(l, "WARN") {
				t.Errorf("%s is refused, and it says more: %s", call, l)
			}
		}
	}
}

// A /dev/shm that is full, read-only or missing makes no difference: the library stores nothing in
// it.
func TestDevShmDoesNotMatter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	sock := socket(t)
	start(t, "serving", dirserver, "--socket", sock)
	for name, script := range map[string]string{
		"full":     `mount -t tmpfs -o size=4k none /dev/shm && cat /dev/zero > /dev/shm/x 2> /dev/null; exec "$@"`,
		"readonly": `mount -t tmpfs -o ro none /dev/shm && exec "$@"`,
		"absent":   `mount -t tmpfs none /dev && test ! -e /dev/shm && exec "$@"`,
	} {
		peer := subprocess.Self("peer", "echo", sock, name)
		cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, peer.Args...)...)
		cmd.Env = append(os.Environ(), "ROCL_TEST_SHM=yes") // nothing else
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		startCommand(t, "registered", cmd)
		me := register(t, open(t, sock), lib.Attrs{"me": name})
		greet(t, me, name, 100_000)
		if s := me.Context().Stats(); s.Sent["shm"] != 1 {
			t.Errorf("%s: sent %v", name, s.Sent)
		}
	}
}
