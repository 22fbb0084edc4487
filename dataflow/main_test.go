// SPDX-License-Identifier: Apache-2.0

package dataflow_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs the tests, or one group of a graph in a process of its own if a test has started it
// for that.
func TestMain(m *testing.M) {
	switch group := os.Getenv("DATAFLOW_TEST_GROUP"); group {
	case "":
	case "worker":
		os.Exit(runWorker())
	default:
		os.Exit(runGroup(group))
	}
	goleak.VerifyTestMain(m)
}
