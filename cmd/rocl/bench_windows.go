// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

// benchmarks returns no commands: the bare loops are those of Unix.
func benchmarks() []*cobra.Command { return nil }
