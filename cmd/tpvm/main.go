// SPDX-License-Identifier: Apache-2.0

// Command tpvm starts programs on hosts of a parallel virtual machine.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/rocl-go/rocl/cmd/internal/interrupt"
)

func main() {
	ctx, stop := interrupt.Context(context.Background())
	root := &cobra.Command{Use: "tpvm", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(podCommand(), addCommand(), deleteCommand())
	err := root.ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
