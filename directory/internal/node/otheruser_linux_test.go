// SPDX-License-Identifier: Apache-2.0

package node

import (
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// asNobody runs f as another user: only the thread of f changes its user, not the process.
func asNobody(t *testing.T, f func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		for _, call := range []uintptr{syscall.SYS_SETRESGID, syscall.SYS_SETRESUID} {
			if _, _, e := syscall.RawSyscall(call, ^uintptr(0), nobody, ^uintptr(0)); e != 0 {
				done <- e
				return
			}
		}
		done <- f()
	}()
	try.OK(t, <-done)
}
