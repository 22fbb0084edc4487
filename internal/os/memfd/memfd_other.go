// SPDX-License-Identifier: Apache-2.0

//go:build !linux || portable

package memfd

import (
	"context"
	"errors"
	"fmt"
)

// errNone is the error of every call: only Linux has such files.
var errNone = fmt.Errorf("memfd: sealed files: %w", errors.ErrUnsupported)

// Create fails on this system.
func Create(context.Context, string, int) (fd int, mem []byte, err error) { return -1, nil, errNone }

// Reserve fails on this system.
func Reserve(string, int) (fd int, mem []byte, err error) { return -1, nil, errNone }

// Commit fails on this system.
func Commit(context.Context, int, int, int) error { return errNone }

// Open fails on this system.
func Open(int, int) ([]byte, error) { return nil, errNone }

// OpenReserved fails on this system.
func OpenReserved(int, int) ([]byte, error) { return nil, errNone }

// Unmap does nothing on this system: nothing is mapped.
func Unmap([]byte) {}
