// SPDX-License-Identifier: Apache-2.0

// Package manual makes the manual pages of a command.
package manual

import (
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/rocl-go/rocl/cmd/internal/usage"
)

// Name is the name of the hidden command that writes the pages.
const Name = "manual"

// Add adds the hidden command "manual DIR", which writes the pages of root and its commands into a
// folder, in the format of man(1). It adds nothing unless args call that command. The date of the
// pages is $SOURCE_DATE_EPOCH, in seconds, or today.
func Add(root *cobra.Command, args []string) {
	if len(args) == 0 || args[0] != Name {
		return
	}
	root.CompletionOptions.DisableDefaultCmd = true // no pages of it
	root.AddCommand(&cobra.Command{
		Use: Name + " DIR", Short: "Write the manual pages into a folder", Hidden: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage.Errorf("one folder is needed")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root.DisableAutoGenTag = true
			return doc.GenManTree(root, &doc.GenManHeader{Source: root.Name() + " " + root.Version, Manual: "rocl"}, args[0])
		},
	})
}
