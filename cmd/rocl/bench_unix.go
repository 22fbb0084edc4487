// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"github.com/rocl-go/rocl/cmd/rocl/internal/bench"
	"github.com/spf13/cobra"
)

// benchmarks returns the commands of the benchmarks.
func benchmarks() []*cobra.Command { return bench.Commands() }
