// SPDX-License-Identifier: Apache-2.0

// Command rocl shows a node's directory in a shell, sends and receives messages through pipes,
// calls and serves requests, and runs a demonstration and the benchmarks.
//
// Exit codes: 0 done, 1 nothing found (find) or failed, 2 no directory serves the node, 3 some node
// of the cluster could not be asked, 4 the directory or the called resource did not answer in time,
// 5 the called command failed, 10 to 26 a finding of doctor, 64 wrong usage, 130 interrupted.
package main

import (
	"context"
	"os"

	"github.com/rocl-go/rocl/cmd/internal/interrupt"
	"github.com/rocl-go/rocl/cmd/internal/manual"
	"github.com/rocl-go/rocl/cmd/rocl/internal/bench"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"github.com/rocl-go/rocl/cmd/rocl/internal/demo"
	"github.com/rocl-go/rocl/cmd/rocl/internal/flow"
	"github.com/rocl-go/rocl/cmd/rocl/internal/top"
)

func main() {
	ctx, stop := interrupt.Context(context.Background())
	defer stop()
	root := cli.Root()
	root.AddCommand(demo.Commands()...)
	root.AddCommand(bench.Commands()...)
	root.AddCommand(flow.Commands()...)
	root.AddCommand(top.Commands()...)
	manual.Add(root, os.Args[1:])
	os.Exit(cli.Run(ctx, root, os.Args[1:]))
}
