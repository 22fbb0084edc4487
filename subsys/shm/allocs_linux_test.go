// SPDX-License-Identifier: Apache-2.0

//go:build !portable

package shm_test

// allocs is how many allocations a small frame may cost.
const allocs = 0
