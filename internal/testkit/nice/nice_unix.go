// SPDX-License-Identifier: Apache-2.0

//go:build unix

package nice

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Session makes the session of this process run before other sessions. Where Linux shares the
// processors among sessions first (kernel.sched_autogroup_enabled), the niceness of a process
// counts within its session only. So a process that may have a session of its own, such as a pod of
// tpvm, calls Session. It changes nothing if the session belongs to another process, or if this one
// may not do that.
func Session() {
	if id, err := unix.Getsid(0); err == nil && id == os.Getpid() {
		_ = os.WriteFile("/proc/self/autogroup", []byte("-10"), 0)
	}
}

// set sets the niceness of each thread of this process. A thread starts with that of the thread
// that made it.
func set(t testing.TB, niceness int) {
	t.Helper()
	for range 2 { // threads that others made meanwhile
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Log(err)
		}
		for _, thread := range threads {
			if id, err := strconv.Atoi(thread.Name()); err == nil {
				_ = unix.Setpriority(unix.PRIO_PROCESS, id, niceness)
			}
		}
	}
}
