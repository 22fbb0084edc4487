// SPDX-License-Identifier: Apache-2.0

//go:build unix

package directory

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"golang.org/x/sys/unix"
)

// child runs a test of this binary again, in a process of its own.
func child(t *testing.T, attr *syscall.SysProcAttr) bool {
	const mark = "ROCL_TEST_CHILD"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.timeout", "60s", "-test.v")
	cmd.Env = append(os.Environ(), mark+"="+t.Name())
	cmd.SysProcAttr = attr
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// A process that may not write large files gets an error. SIGXFSZ does not end it.
func TestFileSizeLimit(t *testing.T) {
	if !child(t, nil) {
		return
	}
	limit := func(r unix.Rlimit) { try.OK(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &r)) }
	of16 := unix.Rlimit{Cur: 16, Max: unix.RLIM_INFINITY}
	var most unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &most); err != nil || most.Max != unix.RLIM_INFINITY {
		t.Skip("there is a limit already")
	}
	path := sock(t)
	refused := func() {
		t.Helper()
		s, err := Listen(path)
		if err == nil {
			s.Close()
		}
		if names(t, err, path+nodeSuffix); !errors.Is(err, unix.EFBIG) {
			t.Error(err)
		}
	}
	limit(of16)
	refused() // no identity can be written
	limit(most)
	serve(t, path).Close()
	limit(of16)
	refused() // no epoch can be written
	limit(unix.Rlimit{Cur: 4096, Max: unix.RLIM_INFINITY})
	serve(t, path)
	c := joined(t, path)
	for range 3 * indexAfter {
		try.Fails(c.Find(t.Context(), list(t, resource.Match{"a": "b"})))(t, ErrNotFound)
	}
	if _, _, err := memfd.Create(context.Background(), "large", 1<<20); !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, unix.EFBIG) {
		t.Errorf("memory larger than files may be: %v", err)
	}
}

// A server whose process has no free descriptors goes on when there are some. It logs the problem a
// few times, not at each try.
//
// Promise (Directory): Silent connections keep no client out of a TCP port or `--http`. A process
// without free descriptors goes on when it has some. See also TestSilentStrangers.
func TestNoDescriptors(t *testing.T) {
	if !child(t, nil) {
		return
	}
	path := sock(t)
	var log logged.Log
	s := serve(t, path, WithLogger(log.Logger()))
	at := try.Get(s.ListenTCP("tcp://127.0.0.1:0"))(t)
	c := joined(t, path)
	var most unix.Rlimit
	try.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &most))
	most.Cur = 64
	try.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &most))
	var waiting [2]int // connected, and not accepted yet
	for i := range waiting {
		waiting[i] = try.Get(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))(t)
		defer unix.Close(waiting[i])
	}
	var full []int
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		full = append(full, fd)
	}
	for _, fd := range waiting {
		try.OK(t, unix.Connect(fd, &unix.SockaddrUnix{Name: path}))
	}
	eventually.True(t, "the server notices", func() bool { return log.Count("directory: accepting") == ratelog.Burst })
	try.Get(c.Register(t.Context(), c.Self().WithSerial(1), list(t, nil)))(t)
	for _, fd := range full {
		unix.Close(fd)
	}
	joined(t, path)
	d := try.Get(Join(t.Context(), DialSocket(at+"?node="+path+nodeSuffix)))(t)
	d.Close()
}
