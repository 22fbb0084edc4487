// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tpvm

import (
	"os"
	"syscall"
)

// ownSession makes a program the first one of a session.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// isUnhandled reports whether a process cannot handle a signal itself.
func isUnhandled(s syscall.Signal) bool {
	return s == syscall.SIGKILL || s == syscall.SIGSTOP || s == syscall.SIGCONT
}

// signalSelf sends a signal to this process.
func signalSelf(s syscall.Signal) { _ = syscall.Kill(os.Getpid(), s) }

// keepFromPrograms keeps programs that this process starts from getting f.
func keepFromPrograms(f *os.File) { syscall.CloseOnExec(int(f.Fd())) }
