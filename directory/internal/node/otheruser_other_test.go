// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package node

import "testing"

// asNobody skips the test: elsewhere a thread cannot change its user alone.
func asNobody(t *testing.T, _ func() error) {
	t.Helper()
	t.Skip("a thread is another user on Linux only")
}
