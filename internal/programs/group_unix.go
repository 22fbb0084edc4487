// SPDX-License-Identifier: Apache-2.0

//go:build unix

package programs

import (
	"errors"
	"os"
	"syscall"
)

// beginGroup makes a new process the first one of a group.
func beginGroup(a *syscall.SysProcAttr) { a.Setpgid = !a.Setsid }

// kill sends a signal to the group.
func (p *Program) kill(s syscall.Signal) error {
	err := syscall.Kill(-p.cmd.Process.Pid, s)
	if errors.Is(err, syscall.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}
