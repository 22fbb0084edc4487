// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// usage returns how often threads of this process have gone to sleep, and its processor time.
func usage(b *testing.B) (sleeps int64, cpu time.Duration) {
	var u unix.Rusage
	try.OK(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return int64(u.Nvcsw), time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
