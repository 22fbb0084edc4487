// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readProcess fills the slices with the extents of another process's memory. Slices and extents
// have the same size altogether, and each list has at most callMost elements. It is a variable for
// tests.
var readProcess = func(pid int, local [][]byte, remote []extent) error {
	var want int
	to := make([]unix.Iovec, len(local))
	for i, p := range local {
		to[i].Base = unsafe.SliceData(p)
		to[i].SetLen(len(p))
		want += len(p)
	}
	from := make([]unix.RemoteIovec, len(remote))
	for i, e := range remote {
		from[i] = unix.RemoteIovec{Base: uintptr(e.addr), Len: int(e.n)}
		if uint64(from[i].Base) != e.addr {
			return fmt.Errorf("address %#x of a larger process: %w", e.addr, unix.EFAULT)
		}
	}
	n, err := unix.ProcessVMReadv(pid, to, from, 0)
	if err != nil {
		return os.NewSyscallError("process_vm_readv", err)
	}
	if n != want {
		return fmt.Errorf("process_vm_readv: %d of %d bytes: %w", n, want, unix.EFAULT)
	}
	return nil
}
