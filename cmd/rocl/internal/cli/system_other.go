// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cli

import (
	"errors"
	"fmt"
	"syscall"
)

// endsWithThread asks for nothing: on this system a command goes on if this process is killed.
func endsWithThread() *syscall.SysProcAttr { return nil }

// canShareMemory returns an error: contexts of this system do not share memory.
func canShareMemory() error { return fmt.Errorf("shared memory: %w", errors.ErrUnsupported) }

// socketPeer returns 0: the kernel is not asked.
func socketPeer(int) int { return 0 }
