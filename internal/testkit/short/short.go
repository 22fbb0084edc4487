// SPDX-License-Identifier: Apache-2.0

// Package short tells a test whether it runs in its short form.
package short

import "testing"

// Form reports whether -short is set, and logs it then: .ci/run runs the short forms with the race
// detector, and afterwards the full forms of the tests that have logged this.
func Form(t testing.TB) bool {
	t.Helper()
	if testing.Short() {
		t.Log("in short form")
	}
	return testing.Short()
}
