// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package rpc

// A clock is one that the processes of a machine share. Only Linux has it here.
type clock struct{ id uint64 }

func ownClock() clock { return clock{} }

func (clock) now() int64 { return 0 }
