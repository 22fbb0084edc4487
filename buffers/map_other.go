// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package buffers

func mapMemory(size int) ([]byte, error) { return make([]byte, size), nil }

func unmapMemory([]byte) {}
