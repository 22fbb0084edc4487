// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bench

import (
	"errors"
	"fmt"
	"time"
)

// look measures nothing on this system.
func look() place { return unknown }

// readProcess fails on this system.
func readProcess(pid int, _ uintptr, to []byte) error {
	return fmt.Errorf("reading %d bytes of process %d: %w", len(to), pid, errors.ErrUnsupported)
}

// threadTime fails: not all of these systems tell the processor time of a thread.
func threadTime() time.Duration {
	check(fmt.Errorf("reading the processor time of a thread: %w", errors.ErrUnsupported))
	return 0
}
