// SPDX-License-Identifier: Apache-2.0

package main

import "syscall"

// signalNumber returns the signal of a name, 0 if there is none.
func signalNumber(name string) syscall.Signal {
	return map[string]syscall.Signal{"SIGINT": syscall.SIGINT, "SIGKILL": syscall.SIGKILL, "SIGTERM": syscall.SIGTERM}[name]
}
