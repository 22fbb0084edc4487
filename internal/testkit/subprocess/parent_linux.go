// SPDX-License-Identifier: Apache-2.0

package subprocess

import "syscall"

// endWithParent makes the kernel kill a process when the process that starts it ends.
func endWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
