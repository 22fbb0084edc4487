// SPDX-License-Identifier: Apache-2.0

package pool

import "golang.org/x/sys/unix"

// bindThread keeps the calling thread on these cores.
func bindThread(cores []int) error {
	var set unix.CPUSet
	for _, c := range cores {
		set.Set(c)
	}
	return unix.SchedSetaffinity(0, &set)
}
