// SPDX-License-Identifier: Apache-2.0

package posix

import "testing"

// Need skips a test of what only Unix systems have, and says what that is.
func Need(t testing.TB, what string) {
	t.Helper()
	if !IsUnix {
		t.Skip("this system has no " + what)
	}
}
