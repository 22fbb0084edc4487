// SPDX-License-Identifier: Apache-2.0

package mux

import "golang.org/x/sys/unix"

// isBridge reports whether an interface is a bridge.
func isBridge(name string) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	d, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	return err == nil && unix.ByteSliceToString(d.Driver[:]) == "bridge"
}
