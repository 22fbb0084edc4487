// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

// StartUnblocked starts cmd with no signal blocked. A process begins with the signals that its
// parent's thread blocks; Go's threads block what the process began with, and almost all of them in
// a library for C, tpvm/libpvm3.
func StartUnblocked(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var none, old unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, &old); err == nil {
		defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
	}
	return cmd.Start()
}
