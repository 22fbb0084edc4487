// SPDX-License-Identifier: Apache-2.0

package buffers

import (
	"os"
	"unsafe"

	"golang.org/x/sys/windows"
)

// mapPrivate maps memory of this process alone.
func mapPrivate(size int) ([]byte, error) {
	at, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_RESERVE|windows.MEM_COMMIT, windows.PAGE_READWRITE)
	if err != nil {
		return nil, os.NewSyscallError("VirtualAlloc", err)
	}
	p := *(*unsafe.Pointer)(unsafe.Pointer(&at)) // go vet takes a conversion of at for a mistake
	return unsafe.Slice((*byte)(p), size), nil
}

// unmapPrivate undoes mapPrivate.
func unmapPrivate(mem []byte) {
	_ = windows.VirtualFree(uintptr(unsafe.Pointer(unsafe.SliceData(mem))), 0, windows.MEM_RELEASE)
}
