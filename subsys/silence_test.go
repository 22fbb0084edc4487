// SPDX-License-Identifier: Apache-2.0

package subsys_test

import (
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
)

func TestSilence(t *testing.T) {
	var s subsys.Silence
	begin := time.Now()
	for _, c := range []struct {
		at     time.Duration
		owes   bool
		heard  time.Duration
		silent time.Duration
	}{
		{0, false, 5 * time.Second, 0},
		{1 * time.Second, true, 6 * time.Second, 0}, // time before an answer was owed does not count
		{3 * time.Second, true, 8 * time.Second, 2 * time.Second},
		{4 * time.Second, true, 500 * time.Millisecond, 500 * time.Millisecond},
		{5 * time.Second, true, 1500 * time.Millisecond, 1500 * time.Millisecond},
		{6 * time.Second, false, 100 * time.Millisecond, 0},
		{9 * time.Second, true, 3 * time.Second, 0},
	} {
		try.Equal(t, s.Observe(begin.Add(c.at), c.owes, c.heard), c.silent, "silence after %v", c.at)
	}
}
