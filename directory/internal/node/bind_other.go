// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package node

import (
	"os"
	"syscall"
)

func beforeBind(_, _ string, _ syscall.RawConn) error { return nil }

// afterBind gives the socket at path the mode 0600. Most systems other than Linux cannot do so
// before.
func afterBind(path string) error { return os.Chmod(path, 0o600) }
