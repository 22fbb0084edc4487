// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package tpvm_test

import (
	"errors"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/posix"
)

// process is a process that the test has not started.
type process int

func pidfd(pid int) (process, error) { return process(pid), posix.Kill(pid, 0) }

// wait waits until the process has ended and was reaped, at most a minute.
func (p process) wait() error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if errors.Is(posix.Kill(int(p), 0), syscall.ESRCH) {
			return nil
		}
		time.Sleep(10 * time.Millisecond) // no event tells the end of a process that is not a child
	}
	return errors.New("the process has not ended")
}
