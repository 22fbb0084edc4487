// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package bulk

import "errors"

// readProcess fills the slices with the extents of another process's memory. It is a variable for
// tests.
var readProcess = func(int, [][]byte, []extent) error { return errors.ErrUnsupported }
