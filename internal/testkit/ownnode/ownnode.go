// SPDX-License-Identifier: Apache-2.0

// Package ownnode gives the tests of a package a node that no other process has, for examples,
// which do not name one.
package ownnode

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

// Main is goleak.VerifyTestMain for tests whose contexts belong to a node of this process if they
// name no socket.
func Main(m *testing.M, opts ...goleak.Option) {
	dir, err := os.MkdirTemp("", "node")
	if err == nil {
		err = os.Setenv("ROCL_SOCKET", filepath.Join(dir, "s"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, append(opts, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))...)
}
