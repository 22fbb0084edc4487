// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package dataflow

import (
	"errors"
	"fmt"
)

// setCores fails on this system if there are processors to be set.
func setCores(cores []int) error {
	if len(cores) == 0 {
		return nil
	}
	return fmt.Errorf("processors %v: %w", cores, errors.ErrUnsupported)
}
