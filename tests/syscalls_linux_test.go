// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// askedAtATime is the number of finds, and of look-ups, between two marks of asks.
const askedAtATime = 1000

// asks puts questions without end, in the main thread. It marks their beginning by the system call
// getsid and their end by getpgid, which nothing else calls. Between the marks the Go runtime has
// all the memory that it needs, and does not collect garbage.
func asks(t testing.TB, c *lib.Context, who lib.Attrs) {
	try.Get(c.Register(bg, who))(t)
	ask := func() { try.Get(c.Lookup(bg, try.Get(c.Find(bg, lib.Match(who)))(t).ID))(t) }
	for c.Stats().Mapped < 10 {
		ask()
	}
	if unix.Gettid() != unix.Getpid() {
		t.Fatal("this is not the main thread, which the test traces")
	}
	fmt.Println("registered")
	for {
		debug.SetGCPercent(100)
		_ = make([]byte, 64<<20)
		runtime.GC()
		debug.SetGCPercent(-1)
		_, _ = unix.Getsid(0)
		for range askedAtATime {
			ask()
		}
		_, _ = unix.Getpgid(0)
	}
}

// Questions about the context's own node need no system call: ptrace counts them.
//
// Promise (Index): Finds and look-ups on the own node need no system call, and answer as the socket
// does. See also TestMapped.
func TestNoSystemCalls(t *testing.T) {
	sock := socket(t)
	start(t, `"serving"`, dirserver, "--socket", sock)
	runtime.LockOSThread() // the thread that traces, and the parent of what it traces
	defer runtime.UnlockOSThread()
	cmd := startUnwaited(t, "asks", sock, "asks")
	thread := cmd.Process.Pid // of the main thread, in which peers run
	err := unix.PtraceSeize(thread)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skip("the kernel does not let this process trace another one: ", err)
	}
	if err == nil {
		err = unix.PtraceInterrupt(thread)
	}
	try.OK(t, err)
	defer time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() }).Stop() // which ends the wait for its calls
	calls, rounds, counting := map[uint64]int{}, 0, false
	for rounds < 10 {
		nr, ok, err := nextCall(thread)
		try.OK(t, err)
		switch {
		case !ok:
		case nr == unix.SYS_GETSID:
			counting = true
		case nr == unix.SYS_GETPGID && counting:
			rounds, counting = rounds+1, false
		case nr == unix.SYS_RT_SIGRETURN: // the runtime has interrupted the goroutine
		case counting:
			calls[nr]++
		}
	}
	all := 0
	for _, n := range calls {
		all += n
	}
	t.Logf("system calls, by number: %v", calls)
	questions := rounds * askedAtATime
	for _, nr := range []uint64{unix.SYS_READ, unix.SYS_WRITE, unix.SYS_SENDMSG, unix.SYS_RECVMSG, unix.SYS_SENDTO, unix.SYS_RECVFROM} {
		if calls[nr] > questions/100 { // the Go runtime makes a few of its own, and other goroutines run in the thread too
			t.Errorf("%d finds, and as many look-ups, made the system call %d %d times", questions, nr, calls[nr])
		}
	}
	if all >= questions/10 {
		t.Errorf("%d finds, and as many look-ups, made system calls, by number: %v", questions, calls)
	}
}

// startUnwaited starts a peer and waits until it is registered. No goroutine waits for its end:
// that goroutine would get the stops of the traced thread in place of the tracer.
func startUnwaited(t *testing.T, part, sock, name string) *exec.Cmd {
	t.Helper()
	cmd := subprocess.Self("peer", part, sock, name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out := try.Get(cmd.StdoutPipe())(t)
	try.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "registered") {
			return cmd
		}
	}
	t.Fatal("the peer has ended: ", lines.Err())
	return nil
}

// nextCall lets a traced thread run until it next stops, and returns the number of the system call
// that it is about to make, if that is why it has stopped.
func nextCall(thread int) (nr uint64, ok bool, err error) {
	var s unix.WaitStatus
	if _, err := unix.Wait4(thread, &s, unix.WALL, nil); err != nil {
		return 0, false, err
	}
	if !s.Stopped() {
		return 0, false, fmt.Errorf("the thread has ended: %v", s)
	}
	signal := 0
	switch {
	case s.StopSignal() == unix.SIGTRAP|0x80:
		var info struct { // struct ptrace_syscall_info
			op   uint8
			_    [3]uint8
			_    uint32
			_, _ uint64
			nr   uint64
			_    [8]uint64
		}
		const entry = 1
		n, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(thread), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
		if e != 0 || n == 0 {
			return 0, false, e
		}
		nr, ok = info.nr, info.op == entry
	case s>>16 != 0: // an event of ptrace, such as the interrupt
		if err := unix.PtraceSetOptions(thread, unix.PTRACE_O_TRACESYSGOOD); err != nil {
			return 0, false, err
		}
	default:
		signal = int(s.StopSignal())
	}
	return nr, ok, unix.PtraceSyscall(thread, signal)
}
