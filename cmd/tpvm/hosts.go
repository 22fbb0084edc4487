// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/tpvm"
)

// hostEntry is a host as people see it.
type hostEntry struct {
	ID    tpvm.TID `json:"id"`
	Node  string   `json:"node"`
	Host  string   `json:"host"`
	Arch  string   `json:"arch"`
	Cores int      `json:"cores"`
	Tasks int      `json:"tasks"`
}

func hostsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "hosts",
		Short: "Print the hosts of the virtual machine",
		Long:  "Print the hosts of the virtual machine: the nodes of the cluster, and how many tasks run on each.",
		Args:  nothing,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, leave, err := observe(cmd, false)
			if err != nil {
				return err
			}
			defer leave()
			ctx, cancel := patience(cmd)
			defer cancel()
			hs, err := t.Hosts(ctx)
			if err != nil {
				return err
			}
			return printHosts(cmd.OutOrStdout(), hs, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

func printHosts(w io.Writer, hs []tpvm.Host, asJSON bool) error {
	if asJSON {
		var all []hostEntry
		for _, h := range hs {
			all = append(all, hostEntry{ID: h.ID, Node: h.Node, Host: h.Name, Arch: h.Arch, Cores: h.Cores, Tasks: h.Tasks})
		}
		return printJSON(w, all)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tHOST\tARCH\tCORES\tTASKS")
	for _, h := range hs {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\n", h.Node, display.Quote(h.Name), display.Quote(h.Arch), h.Cores, h.Tasks)
	}
	return tw.Flush()
}
