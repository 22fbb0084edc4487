// SPDX-License-Identifier: Apache-2.0

//go:build (amd64 || arm64) && !ofi_cgo

package fabric

import "github.com/ebitengine/purego"

// call calls a C function. A pointer to Go memory among args is converted in the argument itself,
// so that the memory stays where it is until call returns.
//
//go:uintptrescapes
func call(f uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(f, args...)
	return r
}

// quick is call without an allocation. The caller keeps alive and on the heap what args point to.
func quick(f uintptr, args []uintptr) uintptr {
	r, _, _ := purego.SyscallN(f, args...)
	return r
}
