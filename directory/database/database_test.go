// SPDX-License-Identifier: Apache-2.0

package database

import "testing"

func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("measures")
	}
	t.Logf("%+v", Measure(t.Context(), 1_000_000))
}
