// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package pool

import "errors"

func bindThread([]int) error {
	return errors.New("threads are bound to cores on Linux only")
}
