// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/internal/programs"
	"github.com/rocl-go/rocl/tpvm"
)

func podCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pod",
		Short: "Let tasks start programs on this host",
		Long: "Let the tasks of the virtual machine start programs on this host, until it is interrupted, or 'tpvm delete' ends it.\n" +
			"The programs that it has started end with it. 'tpvm add HOST' runs it on other hosts, by ssh.\n" +
			"The node is that of the host's dirserver. Where none runs, the pod serves it, as a member of a cluster if\n" +
			"ROCL_BIND, ROCL_JOIN, ROCL_CLUSTER and ROCL_KEY_FILE say so.",
		Example: "  tpvm pod\n  ROCL_BIND=0.0.0.0:7946 ROCL_JOIN=10.0.0.7:7946 ROCL_KEY_FILE=cluster.key tpvm pod",
		Args:    usage.Nothing,
		RunE: func(cmd *cobra.Command, _ []string) error {
			defer programs.ReapOrphans()()
			return tpvm.RunPod(cmd.Context(), tpvm.WithRocl(rocl.WithLinger(time.Second)), tpvm.WithReady(func(id tpvm.TID) {
				fmt.Fprintf(cmd.OutOrStdout(), "pod %v: tasks can start programs here\n", id)
			}))
		},
	}
}

// hostTime is the least time that adding or deleting hosts may take.
const hostTime = time.Minute

func addCommand() *cobra.Command {
	var config string
	cmd := &cobra.Command{
		Use:   "add HOST...",
		Short: "Add hosts on which tasks can start programs",
		Long: "Run 'tpvm pod' on hosts, by ssh, so that tasks can start programs there. The pod goes on until 'tpvm delete' ends it.\n" +
			"ssh must reach the host without asking for anything, and tpvm must be in PATH there.\n" +
			"TPVM_SSH replaces the command ssh, with its options. TPVM_POD replaces the command 'tpvm pod' on the hosts.",
		Example: "  tpvm add node2 user@node3\n  tpvm add -F ssh_config node4\n  TPVM_SSH='ssh -p 2222 -i key' tpvm add node5",
		Args:    atLeast(1, "a host"),
		RunE: func(cmd *cobra.Command, names []string) error {
			return observe(cmd, hostTime, func(ctx context.Context, t *tpvm.Task) error {
				return addHosts(ctx, cmd.OutOrStdout(), t, names)
			}, tpvm.WithHostStarter(tpvm.SSH{Config: config}))
		},
	}
	cmd.Flags().StringVarP(&config, "ssh-config", "F", "", "`file` with ports, users and keys of hosts, as for ssh -F")
	return cmd
}

// addHosts adds hosts, and prints the hosts that were added.
func addHosts(ctx context.Context, w io.Writer, t *tpvm.Task, names []string) error {
	hs, err := t.AddHosts(ctx, names...)
	for _, h := range hs {
		err = errors.Join(err, printTo(w, "%s: node %s, %s, %d cores\n", h.Added, h.Node, h.Arch, h.Cores))
	}
	return err
}

func deleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete HOST...",
		Short: "End the pods of hosts, and the programs that these have started",
		Long: "End the pods of hosts, and the programs that these have started. A host is named as 'tpvm add' named it, by its node's\n" +
			"number, or by its own name, as 'tpvm hosts' prints them.",
		Args: atLeast(1, "a host"),
		RunE: func(cmd *cobra.Command, names []string) error {
			return observe(cmd, hostTime, func(ctx context.Context, t *tpvm.Task) error { return t.DelHosts(ctx, names...) })
		},
	}
}
