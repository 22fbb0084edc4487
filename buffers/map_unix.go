// SPDX-License-Identifier: Apache-2.0

//go:build unix

package buffers

import "golang.org/x/sys/unix"

func mapMemory(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

func unmapMemory(b []byte) { _ = unix.Munmap(b) }
