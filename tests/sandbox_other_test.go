// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package tests

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	lib "github.com/rocl-go/rocl"
)

// apart does nothing: this system has no namespaces.
func apart(*exec.Cmd) {}

// isApart reports that peers share the namespaces of the test.
func isApart() bool { return false }

// refuse fails: this system refuses no system calls.
func refuse(string) error { return errors.ErrUnsupported }

// asks ends the process: system calls are counted on Linux only.
func asks(t testing.TB, _ *lib.Context, _ lib.Attrs) { t.Fatal(errors.ErrUnsupported) }

// newTerminal skips the test.
func newTerminal(t *testing.T) *os.File {
	t.Helper()
	t.Skip("pseudo terminals are made on Linux only")
	return nil
}

// tcpConns skips the test: this system does not list the descriptors of a process.
func tcpConns(t testing.TB) (fds []int) {
	t.Helper()
	t.Skip("descriptors are listed on Linux only")
	return nil
}
