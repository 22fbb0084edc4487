// SPDX-License-Identifier: Apache-2.0

//go:build !portable

// Package futex sleeps on a word of memory that processes share, and wakes sleepers. It is the
// shortest sleep of Linux, because no descriptor is looked at.
//
// A goroutine that wakes sleepers changes the word first, so that a later Wait returns at once.
package futex

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// FUTEX_WAIT and FUTEX_WAKE. The private variants do not work between processes: the kernel finds
// the sleepers of a shared word by its file.
const (
	wait = 0
	wake = 1
)

// Wait sleeps while w has the value old, for at most d if d is not 0, which costs a tenth more. It
// may return early. It holds a thread, but no processor of the runtime.
func Wait(w *atomic.Uint32, old uint32, d time.Duration) {
	if d == 0 {
		_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(w)), wait, uintptr(old), 0, 0, 0)
		return
	}
	t := unix.NsecToTimespec(int64(d))
	_, _, _ = syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(w)), wait, uintptr(old), uintptr(unsafe.Pointer(&t)), 0, 0)
}

// Wake wakes one sleeper on w. It does not block, so the runtime is not told of the system call.
func Wake(w *atomic.Uint32) {
	_, _, _ = syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(w)), wake, 1, 0, 0, 0)
}
