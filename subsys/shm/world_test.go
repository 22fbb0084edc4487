// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// parts are what a process that a test has started does. They return what it prints.
var parts = map[string]func(arg string) any{
	"descriptors": heldDescriptors,
	"outsider":    outsider,
	"callers":     callers,
	"crowd":       crowd,
	"member":      groupMember,
}

func init() {
	part, arg, _ := strings.Cut(os.Getenv("ROCL_SHM_TEST_PART"), " ")
	if f := parts[part]; f != nil {
		fmt.Print(f(arg))
		os.Exit(0)
	}
}

// heldDescriptors lists what a process has inherited of the process that started it.
func heldDescriptors(string) any {
	var all []string
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, l := range links {
		if l, _ = os.Readlink(l); strings.Contains(l, "rocl") || strings.Contains(l, "memfd") {
			all = append(all, l)
		}
	}
	return strings.Join(all, ", ")
}

// outsider sends a hello to a port.
func outsider(at string) any {
	c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: at, Net: network})
	if err != nil {
		return err
	}
	h := hello()
	_, _ = c.Write(h[:])
	_ = c.SetReadDeadline(time.Now().Add(testTimeout))
	n, err := c.Read(make([]byte, 100))
	return fmt.Sprint("answered with ", n, err)
}

// callers makes connections of group 0 that do no more than the transport's handshake.
func callers(addr string) any {
	n, err := openOver(ForGroup(0), "")
	if err != nil {
		return err
	}
	made := 0
	for range 40 {
		if _, err := n.dial(addr); err == nil {
			made++
		}
	}
	return made
}

// groupMember is a process in group 0, or not, that sends until it is killed.
func groupMember(addr string) any {
	n, err := openOver(ForGroup(0), "")
	if err != nil {
		return err
	}
	s, err := n.dial(addr)
	if err == nil {
		err = n.load(s, 50, 3)
	}
	if err == nil {
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	return err
}

// crowd opens many sockets as another user and sends nothing.
func crowd(at string) any {
	var all []*net.UnixConn
	for range 40 {
		c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: at, Net: network})
		if err != nil {
			return err
		}
		all = append(all, c)
	}
	b := make([]byte, 100)
	_ = all[39].SetReadDeadline(time.Now().Add(testTimeout))
	if _, err := all[39].Read(b); errors.Is(err, os.ErrDeadlineExceeded) {
		return "the last one was not closed"
	}
	_ = all[0].SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := all[0].Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		return "the first one was closed before the last"
	}
	return "the last one was closed first"
}

func run(t *testing.T, part string, as *syscall.Credential) string {
	t.Helper()
	out, err := command(t, part, as).CombinedOutput()
	try.OK(t, err, "%s", out)
	return string(out)
}

func launch(t *testing.T, part string, as *syscall.Credential) *subprocess.Process {
	t.Helper()
	cmd := command(t, part, as)
	cmd.Stdout = os.Stdout
	p := try.Get(subprocess.Start(cmd))(t)
	t.Cleanup(p.Kill)
	return p
}

func command(t *testing.T, part string, as *syscall.Credential) *exec.Cmd {
	t.Helper()
	exe := try.Get(os.Executable())(t)
	if as != nil { // the other user may not be able to read this binary
		f := try.Get(os.CreateTemp("", "rocl-shm-test-"))(t)
		t.Cleanup(func() { os.Remove(f.Name()) })
		try.Get(f.Write(try.Get(os.ReadFile(exe))(t)))(t)
		try.OK(t, errors.Join(f.Chmod(0o755), f.Close()))
		exe = f.Name()
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "ROCL_SHM_TEST_PART="+part)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	return cmd
}

// Other users get no answer.
//
// Promise (Shared memory): Only processes of the same user attach, or of users in the named group.
// See also TestGroup.
func TestOtherUser(t *testing.T) {
	needRoot(t)
	n := start(t)
	out := run(t, "outsider "+n.socket(t), &syscall.Credential{Uid: 65534, Gid: 65534})
	if !strings.HasPrefix(out, "answered with 0") && !strings.HasSuffix(out, "permission denied") {
		t.Errorf("another user: %s", out)
	}
	select {
	case <-n.taken:
		t.Error("another user was taken in")
	default:
	}
}

// Users in the given group can connect. Other users cannot connect at the group's address, whatever
// they claim.
func TestGroup(t *testing.T) {
	needRoot(t)
	needGroups(t)
	n := startOver(t, ForGroup(0))
	if New().(transport).group != nil || start(t).Port.Reaches(n.Port.Addr()) {
		t.Error("a port for one user reaches one for a group")
	}
	if out := run(t, "outsider "+n.socket(t), &syscall.Credential{Uid: 65534, Gid: 65534}); !strings.HasPrefix(out, "answered with 0") {
		t.Errorf("a user that is not in the group: %s", out)
	}
	if out := run(t, "member "+n.Port.Addr(), &syscall.Credential{Uid: 65534, Gid: 65534}); !strings.Contains(out, "not in group 0") {
		t.Errorf("a port of a user that is not in the group: %s", out)
	}
	select {
	case <-n.taken:
		t.Fatal("a user that is not in the group was admitted")
	default:
	}
	for name, as := range map[string]syscall.Credential{"group": {Uid: 65534, Gid: 0}, "other groups": {Uid: 65534, Gid: 65534, Groups: []uint32{7, 0}}} {
		exe := launch(t, "member "+n.Port.Addr(), &as)
		s := n.accepted(t)
		eventually.True(t, name+": frames come", func() bool { got, _ := s.frames(); return got == 50 })
		exe.Kill()
		_ = s.wantDown(t)
		_, _ = s.release()
	}
}

// A process started by a process with connections inherits nothing of them.
func TestNothingInherited(t *testing.T) {
	a, b := start(t), start(t)
	near, far := pair(t, a, b)
	lendSome(t, a, near, 3)
	far.wantFrames(t, 3)
	try.Equal(t, run(t, "descriptors", nil), "", "inherited")
}

// A pair that has exchanged frames and gone quiet keeps at most 64 KiB: its two segments and the
// heap memory of the two ends.
func TestQuietPair(t *testing.T) {
	a, b := start(t), start(t)
	near, far := pair(t, a, b)
	try.OK(t, a.load(near, 500, 1))
	try.OK(t, b.load(far, 500, 2))
	eventually.True(t, "all comes", func() bool { x, _ := far.frames(); y, _ := near.frames(); return x == 500 && y == 500 })
	eventually.True(t, "buffers go back", func() bool { return a.Pool.Stats().InUse == 0 && b.Pool.Stats().InUse == 0 })
	of := func(n *node, s *sink) int {
		c := s.conn.(*conn)
		n.Hold.Lock()
		defer n.Hold.Unlock()
		c.out.mu.Lock()
		defer c.out.mu.Unlock()
		return segmentLen + int(unsafe.Sizeof(*c)) + cap(c.out.loans)*int(unsafe.Sizeof(loan{})) + cap(c.out.free)*4 +
			c.in.made*int(unsafe.Sizeof(borrowed{})) + cap(c.in.loans)*8
	}
	both := of(a, near) + of(b, far)
	t.Logf("%d bytes", both)
	if both > 64<<10 {
		t.Errorf("a quiet pair keeps %d bytes", both)
	}
}
