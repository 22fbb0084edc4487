// Package cluster tests clusters of real daemons on machines of their own:
// network namespaces, in which packets are lost and wires are cut.
package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv("ROCL_LAB_AGENT"); socket != "" {
		os.Exit(agentMain(socket))
	}
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(filepath.Dir(dirserver))
		os.Exit(code)
	}))
}
