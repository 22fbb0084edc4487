// SPDX-License-Identifier: Apache-2.0

//go:build (linux && portable) || darwin || freebsd || netbsd || openbsd

package shm_test

// allocs is how many allocations a small frame may cost. A frame that wakes a sleeping context is
// announced by a note. To receive a note takes two calls of recvmsg. Each of them needs memory for
// descriptors, and the first returns the sender's address.
const allocs = 4
