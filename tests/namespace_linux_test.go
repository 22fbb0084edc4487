// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/eventually"
	"github.com/rocl-go/rocl/internal/subprocess"
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
	for l := range c.lines {
		b.WriteString(l + "\n")
	}
	return b.String(), c.cmd.ProcessState.ExitCode()
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
