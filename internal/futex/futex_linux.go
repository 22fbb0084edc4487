// SPDX-License-Identifier: Apache-2.0

// Package futex sleeps on a word of memory that processes share, and wakes who
// does. It is the shortest sleep that Linux has: no descriptor is looked at.
//
// Whoever wakes changes the word first: a Wait that comes later returns at once.
package futex

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FUTEX_WAIT and FUTEX_WAKE. Not the private ones, which other processes are not
// woken by: the kernel finds the sleepers of a shared word by its file.
const (
	wait = 0
	wake = 1
)

// Wait sleeps while w has the value old, for d at most if d is not 0, which costs a
// tenth more. It may return early. It holds a thread, but not a processor of the
// runtime's.
func Wait(w *atomic.Uint32, old uint32, d time.Duration) {
	if d == 0 {
		_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(w)), wait, uintptr(old), 0, 0, 0)
		return
	}
	t := unix.NsecToTimespec(int64(d))
	_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(w)), wait, uintptr(old), uintptr(unsafe.Pointer(&t)), 0, 0)
}

// Wake wakes one who sleeps on w. It does not wait, so the runtime need not know.
func Wake(w *atomic.Uint32) {
	_, _, _ = syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(w)), wake, 1, 0, 0, 0)
}
