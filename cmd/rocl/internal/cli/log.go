// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/spf13/cobra"
)

func logCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Print the last lines of the dirserver's log, or set its levels",
		Long:  "Print the last lines that the dirserver of this node has logged, at most 128 KiB of them.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			g := Flags(cmd)
			var lines string
			if err := g.control(cmd.Context(), &lines, "log"); err != nil {
				return err
			}
			_, err := fmt.Fprint(display.Text(cmd.OutOrStdout()), lines)
			return err
		},
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "level [COMPONENT=LEVEL | LEVEL]...",
		Short: "Print or set the log levels of the dirserver of this node",
		Long: "Print the log levels of the dirserver of this node, after setting those in the arguments. They last until it ends.\n" +
			"COMPONENT is what a line's text names before its first colon, such as cluster, directory or mux; 'other' is for lines\n" +
			"that name none. LEVEL is debug, info, warn or error; alone it is for all components. '*' stands for those without a level of their own.",
		Example: "  rocl log level cluster=debug\n  rocl log level info",
		RunE: func(cmd *cobra.Command, args []string) error {
			g := Flags(cmd)
			var levels map[string]string
			if err := g.control(cmd.Context(), &levels, "log level", args...); err != nil {
				return err
			}
			if g.JSON {
				return Print(cmd.OutOrStdout(), levels)
			}
			for _, name := range slices.Sorted(maps.Keys(levels)) {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s=%s\n", display.Quote(name), display.Quote(levels[name])); err != nil {
					return err
				}
			}
			return nil
		},
	})
	return cmd
}

// control asks the directory's process for something, and reads the answer into v.
func (g Globals) control(ctx context.Context, v any, do string, args ...string) error {
	p := g.withTimeout(ctx)
	defer p.stop()
	c, err := directory.Join(p, directory.DialSocket(g.path()), directory.WithClientLogger(g.logger()))
	if err != nil {
		return p.err(err)
	}
	defer c.Close()
	return p.err(control(p, c, v, do, args...))
}
