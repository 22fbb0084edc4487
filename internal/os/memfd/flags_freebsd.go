// SPDX-License-Identifier: Apache-2.0

package memfd

import "golang.org/x/sys/unix"

// mapFlags keeps the system from writing the pages to a disk at intervals.
const mapFlags = unix.MAP_NOSYNC
