// SPDX-License-Identifier: Apache-2.0

//go:build !linux || portable

package memfd

import (
	"context"
	"errors"
	"fmt"
)

// errNone is the error of calls that only Linux has.
var errNone = fmt.Errorf("memfd: sealed files: %w", errors.ErrUnsupported)

// Reserve fails on this system.
func Reserve(string, int) (fd int, mem []byte, err error) { return -1, nil, errNone }

// Commit fails on this system.
func Commit(context.Context, int, int, int) error { return errNone }

// OpenReserved fails on this system.
func OpenReserved(int, int) ([]byte, error) { return nil, errNone }
