// SPDX-License-Identifier: Apache-2.0

// Package cluster tests clusters of real daemons on machines of their own:
// network namespaces, in which packets are lost and wires are cut.
package cluster

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(envAgent); socket != "" {
		os.Exit(agentMain(socket))
	}
	if role := os.Getenv("ROCL_LAB_TPVM"); role != "" {
		os.Exit(farmMain(role))
	}
	flag.Parse()
	if !flagGiven("test.parallel") {
		_ = flag.Set("test.parallel", "4") // the tests wait more than they work
	}
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if built == "" {
			os.RemoveAll(filepath.Dir(dirserver))
		}
		if *figures {
			printFigures()
		}
		os.Exit(code)
	}))
}

func flagGiven(name string) (given bool) {
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	return given
}
