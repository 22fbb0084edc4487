// SPDX-License-Identifier: Apache-2.0

// Package sharedmem tells tests whether processes of this system share memory.
package sharedmem

import (
	"errors"
	"testing"

	"github.com/rocl-go/rocl/internal/os/memfd"
)

// Need skips a test if processes of this system cannot share memory. They have no transport shm
// then.
func Need(t testing.TB) {
	t.Helper()
	fd, mem, err := memfd.Create(t.Context(), "rocl-probe", 4096)
	check(t, fd, mem, err)
}

// NeedMemfd skips a test if this system has no files that are in memory alone. Then there is no
// index, and a secret that comes through a pipe cannot be kept.
func NeedMemfd(t testing.TB) {
	t.Helper()
	fd, mem, err := memfd.Reserve("rocl-probe", 4096)
	check(t, fd, mem, err)
}

// check skips a test if err says that the system cannot make such a file. Else it frees the file.
func check(t testing.TB, fd int, mem []byte, err error) {
	t.Helper()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err == nil {
		memfd.Unmap(mem)
		memfd.Close(fd)
	}
}
