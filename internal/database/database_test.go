// SPDX-License-Identifier: Apache-2.0

package database

import "testing"

// TestMeasure logs the figures of Measure.
func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("measures")
	}
	t.Logf("%+v", Measure(t.Context(), 1_000_000))
}
