// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"errors"
	"fmt"
	"syscall"
)

// beforeBind refuses a Unix socket: this system cannot give it the mode 0600 before other users see
// it. A TCP port of the loopback interface serves the page.
func beforeBind(string, string, syscall.RawConn) error {
	return fmt.Errorf("a page at a Unix socket: %w", errors.ErrUnsupported)
}
