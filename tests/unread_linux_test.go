// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"golang.org/x/sys/unix"
)

// A daemon whose log is not read, as on a stopped terminal, serves and ends.
func TestLogNotRead(t *testing.T) {
	sock := socket(t)
	r, w, err := os.Pipe()
	try.OK(t, err)
	defer r.Close()
	size := try.Get(unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 4096))(t)
	try.Get(w.Write(make([]byte, size)))(t)
	cmd := exec.Command(dirserver, "--socket", sock, "--log-level", "debug")
	cmd.Stderr = w
	d := launchUnmerged(t, cmd)
	w.Close()
	eventually.True(t, "a directory serves, and finds nothing", func() bool {
		_, code := run(t, "", rocl, "find", "--socket", sock, "--timeout", "20s")
		return code == 1
	})
	try.OK(t, d.Cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-d.Ended():
		try.Check(t, d.Wait())
	case <-time.After(eventually.Timeout):
		t.Error("it does not end")
	}
}
