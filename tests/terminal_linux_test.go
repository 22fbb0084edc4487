// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"golang.org/x/sys/unix"
)

// newTerminal returns a terminal whose other end is not read.
func newTerminal(t *testing.T) *os.File {
	t.Helper()
	m, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	t.Cleanup(func() { m.Close() })
	try.OK(t, unix.IoctlSetPointerInt(int(m.Fd()), unix.TIOCSPTLCK, 0))
	n := try.Get(unix.IoctlGetUint32(int(m.Fd()), unix.TIOCGPTN))(t)
	s := try.Get(os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	t.Cleanup(func() { s.Close() })
	return s
}
