// SPDX-License-Identifier: Apache-2.0

//go:build unix

package subprocess

import "syscall"

// beginGroup makes a process the first one of a group.
func beginGroup(a *syscall.SysProcAttr) { a.Setpgid = true }
