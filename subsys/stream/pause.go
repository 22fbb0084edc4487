// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Pause waits a moment after Accept failed for want of descriptors or memory,
// which only time mends: who accepts must not spin.
func Pause(err error) {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
		time.Sleep(20 * time.Millisecond)
	}
}
