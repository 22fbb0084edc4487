// SPDX-License-Identifier: Apache-2.0

//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package memfd

import "context"

// Create fails on this system.
func Create(context.Context, string, int) (fd int, mem []byte, err error) { return -1, nil, errNone }

// Open fails on this system.
func Open(int, int) ([]byte, error) { return nil, errNone }

// Unmap does nothing on this system: nothing is mapped.
func Unmap([]byte) {}
