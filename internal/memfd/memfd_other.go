// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package memfd

import "errors"

// Create fails: there are no sealed files here.
func Create(string, int) (int, []byte, error) { return -1, nil, errors.ErrUnsupported }

// Reserve fails likewise.
func Reserve(string, int) (int, []byte, error) { return -1, nil, errors.ErrUnsupported }

// Commit fails likewise.
func Commit(fd, from, to int) error { return errors.ErrUnsupported }

// Open fails likewise.
func Open(fd, size int) ([]byte, error) { return nil, errors.ErrUnsupported }

// OpenReserved fails likewise.
func OpenReserved(fd, size int) ([]byte, error) { return nil, errors.ErrUnsupported }

// Dup fails likewise.
func Dup(fd int) (int, error) { return -1, errors.ErrUnsupported }

// Unmap does nothing.
func Unmap([]byte) {}

// Close does nothing.
func Close(int) {}
