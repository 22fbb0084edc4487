// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package directory

import (
	"os"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"golang.org/x/sys/unix"
)

// isLocked reports whether the byte of a context is locked in the file.
func isLocked(t *testing.T, file string, self resource.GID) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: int64(self.Ctx()), Len: 1}
	try.OK(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock))
	return lock.Type != unix.F_UNLCK
}
