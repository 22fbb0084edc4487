// SPDX-License-Identifier: Apache-2.0

//go:build unix

package subprocess

import (
	"errors"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// Prepared runs in the thread that starts the child. A child is not started if it fails.
func TestPrepared(t *testing.T) {
	p := start(t, Self("child-echo"), Prepared(func() error { return syscall.Setpriority(syscall.PRIO_PROCESS, 0, 7) }))
	if n, err := syscall.Getpriority(syscall.PRIO_PROCESS, p.Cmd.Process.Pid); err != nil || n != 20-7 { // the system call returns 20-nice
		t.Errorf("priority %d, %v", n, err)
	}
	refused := errors.New("refused")
	try.Fails(Start(Self("child-echo"), Prepared(func() error { return refused })))(t, refused)
}
