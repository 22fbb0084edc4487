// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// getsOrphans reports whether orphans become children of this process.
func getsOrphans() bool {
	var isSubreaper int32
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&isSubreaper)), 0)
	return os.Getpid() == 1 || isSubreaper != 0
}

// hasLiving reports whether a process of the group has not ended. The kernel counts also those that
// have ended and that their parent, often process 1, has not reaped.
func hasLiving(group int) bool {
	for pid := range processNumbers {
		if s, ok := statOf(pid); ok && s.group == group && !s.hasEnded {
			return true
		}
	}
	return false
}
