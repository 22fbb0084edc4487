// SPDX-License-Identifier: Apache-2.0

//go:build unix

package buffers

import "golang.org/x/sys/unix"

// mapPrivate maps memory of this process alone.
func mapPrivate(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

// unmapPrivate undoes mapPrivate.
func unmapPrivate(mem []byte) { _ = unix.Munmap(mem) }
