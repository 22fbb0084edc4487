// SPDX-License-Identifier: Apache-2.0

// Package sharedmem tells tests whether processes of this system share memory.
package sharedmem

import (
	"errors"
	"testing"

	"github.com/rocl-go/rocl/internal/os/memfd"
)

// Need skips a test if processes of this system cannot share memory. They have no transport shm
// then, and no index.
func Need(t testing.TB) {
	t.Helper()
	fd, mem, err := memfd.Reserve("rocl-probe", 4096)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err == nil {
		memfd.Unmap(mem)
		memfd.Close(fd)
	}
}
