// SPDX-License-Identifier: Apache-2.0

//go:build !linux || portable

package directory

import (
	"fmt"
	"os"
	"testing"

	"github.com/rocl-go/rocl/resource"
	"golang.org/x/sys/unix"
)

// isLocked reports whether the file of a context beside the lock file is locked.
func isLocked(_ *testing.T, file string, self resource.GID) bool {
	f, err := os.Open(fmt.Sprintf("%s.%d", file, self.Ctx()))
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == unix.EWOULDBLOCK
}
