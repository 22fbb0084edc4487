// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// process is a process that the test has not started.
type process int

func pidfd(pid int) (process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	return process(fd), err
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
