// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"os"
	"syscall"
)

// endWithParent does nothing: on this system a program ends with its parent only if it notices the
// end itself.
func endWithParent(*syscall.SysProcAttr) {}

// ownSession gives a program no console.
func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{HideWindow: true} }

// isUnhandled reports true: no process of this system handles a signal.
func isUnhandled(syscall.Signal) bool { return true }

// signalSelf ends this process, as every signal does on this system.
func signalSelf(syscall.Signal) { os.Exit(1) }

// keepFromPrograms does nothing: on this system a program gets only the files that it is given.
func keepFromPrograms(*os.File) {}

// unread returns 0: this system does not tell how much of a pipe is unread.
func unread(int) int { return 0 }

// readRest reads nothing: a pipe of this system cannot be read without waiting.
func (s *stream) readRest([]byte) int { return 0 }

// openOutput returns nil: a pipe of this system is not opened again.
func openOutput(string) *os.File { return nil }

// pipeNumber returns 0: pipes have no number on this system.
func pipeNumber(int) uint64 { return 0 }

// discard does nothing: a program of this system goes on with its output.
func discard(*os.File) {}
