// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
)

// process is a process that the test has not started.
type process int

func pidfd(pid int) (process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	return process(fd), err
}

// processOf returns the process of a task. A test waits for the processes that none of its tasks
// has started, since they need its directory until they have exited.
func processOf(t *testing.T, task *tpvm.Task, id tpvm.TID) process {
	t.Helper()
	for i, err := range task.Tasks(deadline(t)) {
		try.OK(t, err)
		if i.ID == id {
			return try.Get(pidfd(i.PID))(t)
		}
	}
	t.Fatalf("there is no task %v", id)
	return -1
}

// wait waits until the process has ended, at most a minute.
func (p process) wait() error {
	defer unix.Close(int(p))
	fds := []unix.PollFd{{Fd: int32(p), Events: unix.POLLIN}}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if n, err := unix.Poll(fds, 1000); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		} else if n > 0 {
			return nil
		}
	}
	return errors.New("the process has not ended")
}
