// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package directory

import "golang.org/x/sys/unix"

// memory returns the bytes of memory of the machine, 0 if the kernel does not say.
func memory() uint64 {
	for _, name := range []string{"hw.memsize", "hw.physmem64", "hw.physmem"} { // of macOS, of NetBSD, of the others
		if n, err := unix.SysctlUint64(name); err == nil {
			return n
		}
	}
	return 0
}
