// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package memfd

import (
	"context"
	"errors"
)

// Create fails: this system has no sealed files.
func Create(context.Context, string, int) (int, []byte, error) { return -1, nil, errors.ErrUnsupported }

// Reserve fails as Create does.
func Reserve(string, int) (int, []byte, error) { return -1, nil, errors.ErrUnsupported }

// Commit fails as Create does.
func Commit(_ context.Context, fd, from, to int) error { return errors.ErrUnsupported }

// Open fails as Create does.
func Open(fd, size int) ([]byte, error) { return nil, errors.ErrUnsupported }

// OpenReserved fails as Create does.
func OpenReserved(fd, size int) ([]byte, error) { return nil, errors.ErrUnsupported }

// Dup fails as Create does.
func Dup(fd int) (int, error) { return -1, errors.ErrUnsupported }

// Unmap does nothing.
func Unmap([]byte) {}

// Close does nothing.
func Close(int) {}
