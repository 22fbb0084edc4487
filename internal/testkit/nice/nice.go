// SPDX-License-Identifier: Apache-2.0

// Package nice raises the priority of tests whose processes must answer each other in time: members
// of a cluster that get no processor for a second take each other for dead.
package nice

import "testing"

// Raise makes this process, and those that it starts, run before other ones until the test ends. It
// changes nothing if this process may not do that.
func Raise(t testing.TB) {
	t.Helper()
	set(t, -10)
	t.Cleanup(func() { set(t, 0) })
}
