// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// errBare is what benchmarks fail with that measure a bare loop beside the library.
var errBare = fmt.Errorf("the bare loops are those of Unix: %w on Windows", errors.ErrUnsupported)

// dup fails.
func dup(syscall.Conn) (n int) {
	check(errBare)
	return -1
}

func (fd) Read([]byte) (int, error) { return 0, errBare }

func (fd) Write([]byte) (int, error) { return 0, errBare }

func (fd) Close() error { return nil }

func (fd) shut() {}

// newUDP fails.
func newUDP() (f fd, port int) { return fd{n: dup(nil)}, 0 }

func (*fd) connect(int, waiting) {}

// mapShared fails.
func mapShared(*os.File, int) ([]byte, error) { return nil, errBare }

func unmapShared([]byte) {}
