// SPDX-License-Identifier: Apache-2.0

//go:build (amd64 || arm64) && ofi_cgo

package fabric

// #cgo nocallback rocl_call
// #include <stdint.h>
// typedef uintptr_t arg;
// // The functions of libfabric take at most 9 pointers and integers. A function that takes fewer
// // ignores the rest.
// static arg rocl_call(arg f, arg a, arg b, arg c, arg d, arg e, arg g, arg h, arg i, arg j) {
//	return ((arg (*)(arg, arg, arg, arg, arg, arg, arg, arg, arg))f)(a, b, c, d, e, g, h, i, j);
// }
import "C"

// call and quick are as without cgo.

//go:uintptrescapes
func call(f uintptr, args ...uintptr) uintptr { return quick(f, args) }

func quick(f uintptr, args []uintptr) uintptr {
	var a [9]C.arg
	for i, v := range args {
		a[i] = C.arg(v)
	}
	return uintptr(C.rocl_call(C.arg(f), a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]))
}
