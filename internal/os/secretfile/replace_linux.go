// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package secretfile

import (
	"context"
	"os"
	"syscall"

	"github.com/rocl-go/rocl/internal/os/memfd"
)

// replace replaces the descriptor fd by one of a file without a name that has the content b.
func replace(fd int, b []byte) error {
	file, mem, err := memfd.Create(context.Background(), "rocl-secret", len(b))
	if err != nil {
		return err
	}
	copy(mem, b)
	memfd.Unmap(mem)
	defer memfd.Close(file)
	return os.NewSyscallError("dup3", syscall.Dup3(file, fd, syscall.O_CLOEXEC))
}
