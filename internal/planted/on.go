// SPDX-License-Identifier: Apache-2.0

//go:build roclbugs

package planted

import (
	"os"
	"strconv"
	"sync/atomic"
)

// Enabled says that the build has planted defects.
const Enabled = true

var active = func() Bug {
	n, _ := strconv.Atoi(os.Getenv("ROCL_BUG"))
	return Bug(n)
}()

// Is reports whether the defect b is active.
func Is(b Bug) bool { return b == active }

var calls atomic.Uint32

// Sometimes reports whether the defect b is active now: not at each call.
func Sometimes(b Bug) bool { return Is(b) && calls.Add(1)%8 == 0 }
