// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// signalNumber returns the signal of a name, 0 if there is none.
func signalNumber(name string) syscall.Signal { return unix.SignalNum(name) }
