// SPDX-License-Identifier: Apache-2.0

package logged

import (
	"fmt"
	"log/slog"
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

// A Story has lines with the prefix, of level info and above, with the attributes that are named.
func TestStory(t *testing.T) {
	s := &Story{Prefix: "a: ", Attrs: []string{"x"}}
	log := slog.New(s).With("x", 0)
	log.Info("a: one", "x", 1, "y", 2)
	log.Warn("b: two", "x", 1)
	log.Debug("a: three", "x", 1)
	try.Equal(t, fmt.Sprintf("%q", s.Lines()), `["a: one x=1"]`)
}
