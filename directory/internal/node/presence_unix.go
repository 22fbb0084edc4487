// SPDX-License-Identifier: Apache-2.0

//go:build unix && (!linux || portable)

package node

import (
	"os"

	"golang.org/x/sys/unix"
)

// closeRemoved closes f and removes its file.
func closeRemoved(f *os.File) {
	_ = unix.Unlink(f.Name())
	f.Close()
}
