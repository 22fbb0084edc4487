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

// A bench starts its own executable as the other process, so the test's must be
// able to be one: whichever, or it would run the tests again, and they it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "bench-") {
		os.Exit(cli.Run(context.Background(), root(), os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// root is the command line as cmd/rocl has it.
func root() *cobra.Command {
	r := cli.Root()
	r.AddCommand(Commands()...)
	return r
}
