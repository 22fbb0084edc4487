// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/tpvm"
)

// hostEntry is a tpvm.Host in the form that hosts prints.
type hostEntry struct {
	ID       tpvm.TID `json:"id"`
	Node     string   `json:"node"`
	Name     string   `json:"host"`
	Arch     string   `json:"arch"`
	Cores    int      `json:"cores"`
	Tasks    int      `json:"tasks"`
	Launcher string   `json:"launcher,omitempty"`
	Added    string   `json:"added,omitempty"`
}

func hostsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "hosts",
		Short: "Print the hosts of the virtual machine",
		Long: "Print the hosts of the virtual machine: the nodes of the cluster, and how many tasks run on each.\n" +
			"This host is one of them also where nothing runs. LAUNCHER is what starts programs there for tasks of other\n" +
			"hosts: a task, a pod or the dirserver; - means that nothing does. ADDED is the name that 'tpvm add' was given.",
		Args: usage.Nothing,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return observe(cmd, 0, func(ctx context.Context, t *tpvm.Task) error {
				hs, err := t.Hosts(ctx)
				if err != nil && len(hs) == 0 {
					return err
				}
				if err == nil {
					warnSilent(ctx, cmd, t)
				}
				return errors.Join(printHosts(cmd.OutOrStdout(), hs, asJSON), err)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	return cmd
}

// warnSilent prints which nodes of the cluster do not answer. Tasks on these are not listed.
func warnSilent(ctx context.Context, cmd *cobra.Command, t *tpvm.Task) {
	var v rocl.Coverage
	for _, err := range t.Rocl().FindAll(ctx, rocl.Match{rocl.AttrKind: "node"}, rocl.Want(), rocl.Covered(&v)) {
		if err != nil {
			return
		}
	}
	for _, n := range v.Failed {
		fmt.Fprintf(cmd.ErrOrStderr(), "tpvm: node %012x does not answer\n", uint64(n))
	}
}

// findHost returns the index of the host that a name or a node's number denotes, or -1.
func findHost(hs []tpvm.Host, name string) int {
	return slices.IndexFunc(hs, func(h tpvm.Host) bool { return slices.Contains([]string{h.Added, h.Node, h.Name}, name) })
}

func printHosts(w io.Writer, hs []tpvm.Host, asJSON bool) error {
	if asJSON {
		var all []hostEntry
		for _, h := range hs {
			all = append(all, hostEntry(h))
		}
		return printJSON(w, all)
	}
	var b bytes.Buffer // so that other output does not come between
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NODE\tHOST\tARCH\tCORES\tTASKS\tLAUNCHER\tADDED")
	for _, h := range hs {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", h.Node, display.Quote(h.Name), display.Quote(h.Arch), h.Cores, h.Tasks,
			display.Quote(cmp.Or(h.Launcher, "-")), display.Quote(cmp.Or(h.Added, "-")))
	}
	return errors.Join(tw.Flush(), printTo(w, "%s", &b))
}
