// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package memfd

import (
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cannotWrite checks that the descriptor of a file, whose mapping is theirs, does not let a process
// write the file.
func cannotWrite(t *testing.T, fd int, theirs []byte) {
	t.Helper()
	if m, err := unix.Mmap(fd, 0, len(theirs), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		_ = unix.Munmap(m)
		t.Error("a second writable mapping was made")
	}
	if unix.Mprotect(theirs, unix.PROT_READ|unix.PROT_WRITE) == nil {
		t.Error("a mapping for reading was made writable")
	}
	try.Rejects(unix.Pwrite(fd, []byte{1}, 0))(t, "the file was written")
}
