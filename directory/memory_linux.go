// SPDX-License-Identifier: Apache-2.0

package directory

import "golang.org/x/sys/unix"

// memory returns the bytes of memory of the machine, 0 if the kernel does not say.
func memory() uint64 {
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) != nil {
		return 0
	}
	return uint64(si.Totalram) * uint64(si.Unit)
}
