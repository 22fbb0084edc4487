// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newSet returns a set that is closed at the end of the test.
func newSet(t testing.TB, c Config, opts ...Option) *Set {
	t.Helper()
	s, err := NewSet(c, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeSet(t, s) })
	return s
}

func closeSet(t testing.TB, s *Set) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
}
