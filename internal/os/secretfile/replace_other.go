// SPDX-License-Identifier: Apache-2.0

//go:build unix && (!linux || portable)

package secretfile

import (
	"errors"
	"fmt"
)

// replace fails on this system, which has no files that are in memory alone.
func replace(int, []byte) error {
	return fmt.Errorf("keeping a secret that comes through a pipe: %w", errors.ErrUnsupported)
}
