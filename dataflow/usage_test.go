// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// usage returns how often threads of this process have gone to sleep, and its processor time.
func usage(b *testing.B) (sleeps int64, cpu time.Duration) {
	cpu, sleeps, _, err := posix.Usage()
	try.OK(b, err)
	return sleeps, cpu
}
