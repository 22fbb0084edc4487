// SPDX-License-Identifier: Apache-2.0

package subprocess

import "syscall"

// beginGroup makes a process the first one of a group.
func beginGroup(a *syscall.SysProcAttr) { a.CreationFlags |= syscall.CREATE_NEW_PROCESS_GROUP }
