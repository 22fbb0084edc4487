// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package peercred

import (
	"os"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Of names the process that has made the other end.
func TestOf(t *testing.T) {
	fds := try.Get(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0))(t)
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	c := try.Get(Of(fds[0]))(t)
	if int(c.UID) != os.Geteuid() || c.PID != 0 && c.PID != os.Getpid() {
		t.Errorf("%+v", c)
	}
	try.Rejects(Of(-1))(t, "no socket has a peer")
}
