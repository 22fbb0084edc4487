// SPDX-License-Identifier: Apache-2.0

// Package must is for calls of tests that succeed unless the test itself is broken, such as those
// that make what it works with. A failure panics, which ends the test with the stack of the call.
package must

// Get returns v, the result of a call that must not fail.
func Get[T any](v T, err error) T {
	OK(err)
	return v
}

// OK panics unless err is nil.
func OK(err error) {
	if err != nil {
		panic(err)
	}
}
