// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"
)

// TestMain runs the tests, or one of the commands that a bench starts as its other process. A bench
// starts its own executable, so the test executable must be able to be each of them. Otherwise the
// other process would run the tests again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "bench-") {
		os.Exit(cli.Run(context.Background(), root(), os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// root returns the command line of cmd/rocl.
func root() *cobra.Command {
	r := cli.Root()
	r.AddCommand(Commands()...)
	return r
}
