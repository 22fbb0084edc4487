//go:build !linux

package memfd

import "errors"

// Create fails: there are no sealed files here.
func Create(string, int) (int, []byte, error) { return -1, nil, errors.ErrUnsupported }

// Unmap does nothing.
func Unmap([]byte) {}

// Close does nothing.
func Close(int) {}
