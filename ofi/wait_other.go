// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package ofi

import (
	"errors"
	"time"
)

// No port is opened on this system, so none of these functions is called.

func newTimer() (fd int, err error) { return -1, errors.ErrUnsupported }

func setTimer(int, time.Duration) {}

func drainTimer(int) {}

func newEvent() (fd int, err error) { return -1, errors.ErrUnsupported }

func isReadable(int) bool { return false }

func closeFD(int) {}

func unanswered(int, []byte) (owes bool, heard time.Duration) { return false, 0 }
