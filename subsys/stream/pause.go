// SPDX-License-Identifier: Apache-2.0

package stream

import (
	"syscall"
	"time"

	"github.com/rocl-go/rocl/internal/os/sockerr"
)

// Pause waits for a moment if Accept failed for lack of descriptors or memory. Only time mends
// that, and without the pause the accept loop would spin.
func Pause(err error) {
	if isFull(err) {
		time.Sleep(20 * time.Millisecond)
	}
}

// isFull reports whether err means that descriptors or memory are missing.
func isFull(err error) bool {
	return sockerr.Is(err, syscall.EMFILE) || sockerr.Is(err, syscall.ENFILE) || sockerr.Is(err, syscall.ENOBUFS) || sockerr.Is(err, syscall.ENOMEM)
}
