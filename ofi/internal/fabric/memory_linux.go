// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package fabric

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Map returns memory of n bytes that the Go runtime does not move or free.
func Map(n int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// Unmap frees the memory of Map.
func Unmap(b []byte) { _ = unix.Munmap(b) }

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// at returns a pointer into memory of the library.
func at(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

func get[T any](addr uintptr, off uintptr) T    { return *(*T)(at(addr + off)) }
func put[T any](addr uintptr, off uintptr, v T) { *(*T)(at(addr + off)) = v }

// word returns the pointer-sized member of a struct.
func word(addr uintptr, off uintptr) uintptr { return get[uintptr](addr, off) }

// op returns a function of an object: the member off of the table that is its member table.
func op(object, table, off uintptr) uintptr { return word(word(object, table), off) }

func cString(s string) []byte { return append([]byte(s), 0) }

// goString returns a C string of at most 200 bytes.
func goString(addr uintptr) string {
	var b []byte
	for c := byte(1); addr != 0 && len(b) < 200; addr++ {
		if c = get[byte](addr, 0); c == 0 {
			break
		}
		b = append(b, c)
	}
	return string(b)
}
