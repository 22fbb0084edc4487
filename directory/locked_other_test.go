// SPDX-License-Identifier: Apache-2.0

//go:build !linux || portable

package directory

import (
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/resource"
)

// isLocked reports whether the file of a context beside the lock file is locked.
func isLocked(_ *testing.T, file string, self resource.GID) bool {
	f, err := os.Open(fmt.Sprintf("%s.%d", file, self.Ctx()))
	if err != nil {
		return false
	}
	defer f.Close()
	return posix.TryLock(f, true) == syscall.EWOULDBLOCK
}
