// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"unsafe"

	"golang.org/x/sys/windows"
)

var globalMemoryStatus = windows.NewLazySystemDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx")

// memory returns the bytes of memory of the machine, 0 if the kernel does not say.
func memory() uint64 {
	var s struct {
		length, load uint32
		total        uint64
		rest         [6]uint64
	}
	s.length = uint32(unsafe.Sizeof(s))
	if ok, _, _ := globalMemoryStatus.Call(uintptr(unsafe.Pointer(&s))); ok == 0 {
		return 0
	}
	return s.total
}
