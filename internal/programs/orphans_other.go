// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package programs

import (
	"os"
	"syscall"
)

// getsOrphans reports whether orphans become children of this process.
func getsOrphans() bool { return os.Getpid() == 1 }

// hasLiving reports whether a process of the group has not ended. On this system that includes
// those that have ended and were not reaped.
func hasLiving(group int) bool { return syscall.Kill(-group, 0) == nil }
