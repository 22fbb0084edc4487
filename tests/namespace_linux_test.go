// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A sandbox changes the thread that starts a process, before it does so. It is an option of
// subprocess.Start, and nil for a process without a sandbox.
type sandbox = subprocess.Option

// network returns a sandbox in a network namespace of its own, after the shell commands setup have
// run there. Without them the loopback interface is down. It skips the test if it cannot.
func network(t *testing.T, setup string) sandbox {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces are made by root only")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip(err)
	}
	var ns int
	var out []byte
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		if err == nil {
			t.Cleanup(func() { unix.Close(ns) })
			out, err = exec.Command("sh", "-ec", setup).CombinedOutput()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skipf("no network namespace: %v: %s", err, out)
	}
	return subprocess.Prepared(func() error { return unix.Setns(ns, unix.CLONE_NEWNET) })
}

// withoutInternet returns a sandbox in which the kernel refuses sockets of IPv4 and IPv6, as
// RestrictAddressFamilies of systemd does.
func withoutInternet(t *testing.T) sandbox {
	t.Helper()
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("elsewhere sockets are made by another system call")
	}
	return subprocess.Prepared(func() error {
		const number, family = 0, 16 // offsets in seccomp_data; the family is the first argument
		load := func(from uint32) unix.SockFilter {
			return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: from}
		}
		equal := func(to uint32, yes, no uint8) unix.SockFilter {
			return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: to, Jt: yes, Jf: no}
		}
		filter := []unix.SockFilter{
			load(number), equal(unix.SYS_SOCKET, 0, 4),
			load(family), equal(unix.AF_INET, 1, 0), equal(unix.AF_INET6, 0, 1),
			{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
			{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW},
		}
		program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
	})
}

// launchIn is launch in a sandbox.
func launchIn(t *testing.T, in sandbox, cmd *exec.Cmd) *child {
	t.Helper()
	opts := []subprocess.Option{subprocess.Merged()}
	if in != nil {
		opts = append(opts, in)
	}
	return launchUnmerged(t, cmd, opts...)
}

// runIn runs a command in a sandbox to its end, and returns its output and exit code.
func runIn(t *testing.T, in sandbox, input, bin string, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.Command(bin, args...)
	cmd.Stdin = strings.NewReader(input)
	c := launchIn(t, in, cmd)
	eventually.Returns(t, "the command", func() { _ = c.Wait() })
	var b strings.Builder
	for l := range c.Lines {
		b.WriteString(l + "\n")
	}
	return b.String(), c.Cmd.ProcessState.ExitCode()
}

// A machine that does not give a context its TCP port, for whatever reason, has commands and
// programs that use the other transports.
func TestOpenWithoutPort(t *testing.T) {
	for name, in := range map[string]func(*testing.T) sandbox{
		"lo is down":          func(t *testing.T) sandbox { return network(t, "") },
		"lo has ::1 alone":    func(t *testing.T) sandbox { return network(t, "ip link set lo up; ip addr del 127.0.0.1/8 dev lo") },
		"no internet sockets": withoutInternet,
		"one port, long in use": func(t *testing.T) sandbox {
			return network(t, "ip link set lo up; echo 60000 60000 >/proc/sys/net/ipv4/ip_local_port_range")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sock, in := socket(t), in(t)
			for range 2 { // the ports of 127.0.0.1 and ::1
				launchIn(t, in, exec.Command(rocl, "register", "--socket", sock, "a=b")).until(t, "-")
			}
			launchIn(t, in, exec.Command(rocl, "serve", "--socket", sock, "name=there", "--", "tr", "a-z", "A-Z")).until(t, "serving")
			if out, code := runIn(t, in, "", rocl, "find", "--socket", sock, "name=there"); code != 0 || !strings.Contains(out, "there") {
				t.Errorf("find: exit code %d: %s", code, out)
			}
			if out, code := runIn(t, in, "hello", rocl, "call", "--socket", sock, "name=there"); code != 0 || !strings.Contains(out, "HELLO") {
				t.Errorf("call: exit code %d: %s", code, out)
			}
		})
	}
}

// apart gives the process that cmd starts its own namespaces of networks and of processes, if the
// environment says so. Its loopback interface is down.
func apart(cmd *exec.Cmd) {
	if !isApart() {
		return
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET | unix.CLONE_NEWPID
}

// isApart reports whether the peers of the test live in namespaces of their own.
func isApart() bool { return os.Getenv("ROCL_TEST_APART") != "" }

// liveApart makes the peers of a test live in namespaces of their own. It skips the test if it
// cannot.
func liveApart(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("namespaces are made by root only")
	}
	t.Setenv("ROCL_TEST_APART", "yes")
	cmd := exec.Command("true")
	apart(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("no namespaces: %v: %s", err, out)
	}
}

// Processes that share the folder of the directory's socket, and neither network nor processes,
// reach each other: the daemon, a server and the commands are in namespaces of their own.
//
// Promise (Transports): Processes that reach the same directory socket reach each other, whatever
// their network and PID namespaces. See also TestFolder.
func TestApart(t *testing.T) {
	liveApart(t)
	in := func(args ...string) *exec.Cmd {
		cmd := exec.Command(args[0], args[1:]...)
		apart(cmd)
		return cmd
	}
	dir := filepath.Join(filepath.Dir(socket(t)), strings.Repeat("x", 85)) // no other socket in it has a path of 107 bytes
	try.OK(t, os.Mkdir(dir, 0o700))
	sock := filepath.Join(dir, "d")
	startCommand(t, `"serving"`, in(dirserver, "--socket", sock))
	server := startCommand(t, "serving", in(rocl, "serve", "--socket", sock, "name=there", "--", "sh", "-c", "tr a-z A-Z; echo"))
	for call, want := range map[string]string{"find": "there", "send": "", "call": "HELLO"} {
		cmd := in(rocl, call, "--socket", sock, "name=there")
		cmd.Stdin = strings.NewReader("hello\n")
		if out, errOut, code := runCommand(t, eventually.Timeout, cmd); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: exit code %d: %s%s", call, code, out, errOut)
		}
	}
	if t.Failed() {
		return
	}
	server.until(t, "HELLO") // of send

	// The sockets of contexts that have closed are gone. That of a killed one is removed by another
	// context, later.
	server.Kill()
	left := func() []string { return try.Get(filepath.Glob(filepath.Join(dir, ".rocl-shm-*")))(t) }
	if all := left(); len(all) != 1 {
		t.Fatalf("sockets of contexts: %q", all)
	}
	old := time.Now().Add(-time.Hour)
	try.OK(t, os.Chtimes(left()[0], old, old))
	if _, code := run(t, "", rocl, "send", "--socket", sock, "name=nobody"); code != 1 { // it opens ports
		t.Errorf("send to nobody: exit code %d", code)
	}
	if all := left(); len(all) != 0 {
		t.Errorf("sockets of contexts: %q", all)
	}
}

// A process of root and one of the directory's user reach each other too, whichever of them calls.
func TestApartOfRoot(t *testing.T) {
	liveApart(t)
	const nobody = 65534
	sock := socket(t)
	dir := filepath.Dir(sock)
	try.OK(t, errors.Join(os.Chown(dir, nobody, nobody), os.Chmod(filepath.Dir(rocl), 0o711)))
	in := func(uid uint32, args ...string) *exec.Cmd {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}
		apart(cmd)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
		return cmd
	}
	startCommand(t, `"serving"`, in(nobody, dirserver, "--socket", sock))
	for _, who := range []struct{ serves, calls uint32 }{{0, nobody}, {nobody, 0}} {
		name := fmt.Sprint("name=user", who.serves)
		startCommand(t, "serving", in(who.serves, rocl, "serve", "--socket", sock, name, "--", "tr", "a-z", "A-Z"))
		cmd := in(who.calls, rocl, "call", "--socket", sock, name)
		cmd.Stdin = strings.NewReader(strings.Repeat("hello", 10_000))
		if out, errOut, code := runCommand(t, eventually.Timeout, cmd); code != 0 || strings.Count(out, "HELLO") != 10_000 {
			t.Errorf("user %d calls user %d: exit code %d: %.100s%s", who.calls, who.serves, code, out, errOut)
		}
	}
}

// Messages, transfers and ends are as between processes that share all namespaces.
func TestCrashApart(t *testing.T) {
	liveApart(t)
	t.Setenv("ROCL_TEST_SHM", "adaptive")
	t.Run("Sender", TestCrashSender)
	t.Run("Receiver", TestCrashReceiver)
	t.Run("Monitored", TestCrashMonitored)
	t.Run("MonitoredIdle", TestCrashMonitoredIdle)
	t.Run("BulkOrigin", TestBulkOriginKilled)
	t.Run("BulkTarget", TestBulkTargetKilled)
}
