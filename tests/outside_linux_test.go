// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// From outside of a node's network namespace, where the address of the node in its cluster cannot
// be had, the commands that ask a directory and its contexts work.
func TestOutsideNamespace(t *testing.T) {
	in := network(t, "ip link set lo up; ip addr add 10.233.0.1/32 dev lo")
	sock, key := socket(t), filepath.Join(t.TempDir(), "key")
	try.OK(t, os.WriteFile(key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600))
	launchIn(t, in, exec.Command(dirserver, "--socket", sock, "--bind", "10.233.0.1:7946", "--key-file", key)).until(t, "serving")
	launchIn(t, in, exec.Command(rocl, "serve", "--socket", sock, "name=there", "--", "tr", "a-z", "A-Z")).until(t, "serving")
	if out, code := runIn(t, in, "inside", rocl, "call", "--socket", sock, "name=there"); code != 0 || !strings.Contains(out, "INSIDE") {
		t.Fatalf("call in the namespace: exit code %d, %s", code, out)
	}
	launchIn(t, in, exec.Command(rocl, "serve", "--socket", sock, "name=slow", "--", "sleep", "1000")).until(t, "serving")
	call := exec.Command(rocl, "call", "--socket", sock, "--timeout", eventually.Timeout.String(), "name=slow")
	call.Stdin = strings.NewReader("")
	launchIn(t, in, call)
	eventually.True(t, "routes prints the link of the caller and the server", func() bool {
		out, code := runIn(t, nil, "", rocl, "routes", "--socket", sock)
		if strings.Contains(out, "bind") {
			t.Fatalf("exit code %d, %s", code, out)
		}
		return code == 0 && strings.Contains(out, "shm")
	})
	for _, c := range []struct {
		args, says string
		code       int
	}{
		{"nodes", "10.233.0.1", 0},
		{"find name=there", "there", 0},
		{"call name=there", "OUTSIDE", 0},
		{"services", "", 0},
	} {
		if out, code := runIn(t, nil, "outside", rocl, append(strings.Fields(c.args), "--socket", sock)...); code != c.code || !strings.Contains(out, c.says) || strings.Contains(out, "bind") {
			t.Errorf("%s: exit code %d, %s", c.args, code, out)
		}
	}
}

// tcpConns returns the connected TCP sockets of this process.
func tcpConns(t testing.TB) (fds []int) {
	t.Helper()
	dir := try.Get(os.ReadDir("/proc/self/fd"))(t)
	for _, e := range dir {
		fd := try.Get(strconv.Atoi(e.Name()))(t)
		switch a, _ := syscall.Getpeername(fd); a.(type) {
		case *syscall.SockaddrInet4, *syscall.SockaddrInet6:
			fds = append(fds, fd)
		}
	}
	return fds
}
