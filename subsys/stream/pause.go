// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// Pause waits for a moment if Accept failed for lack of descriptors or memory. Only time mends
// that, and without the pause the accept loop would spin.
func Pause(err error) {
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM) {
		time.Sleep(20 * time.Millisecond)
	}
}
