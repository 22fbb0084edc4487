// SPDX-License-Identifier: Apache-2.0

package logged

import (
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Count counts lines that have all words, until Reset forgets them.
func TestCount(t *testing.T) {
	var l Log
	l.Logger().Info("one", "a", 1)
	l.Logger().Info("two", "a", 1)
	l.Logger().Debug("one", "a", 1)
	try.Equal(t, l.Count("a=1"), 2)
	try.Equal(t, l.Count("one", "a=1"), 1)
	l.Reset()
	try.Equal(t, l.Count(), 0)
}
