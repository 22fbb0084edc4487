// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/programs"
	"github.com/rocl-go/rocl/tpvm"
)

// servePod lets the tasks of the virtual machine vm start programs on this node, until end is
// called. The programs find the node's directory by ROCL_SOCKET.
func servePod(vm, socket string, log *slog.Logger) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer programs.ReapOrphans()()
		err := tpvm.ServePod(ctx,
			tpvm.WithVM(vm), tpvm.WithLauncher(tpvm.LauncherDirserver), tpvm.WithLogger(log), tpvm.WithEnv("ROCL_SOCKET="+socket),
			tpvm.WithRocl(rocl.JoinOnly(), rocl.WithSocket(socket), rocl.WithLogger(log)),
			tpvm.WithReady(func(id tpvm.TID) {
				log.Info("tasks can start programs here", "tpvm", vm, "pod", id.String(), "uid", os.Getuid())
				if os.Getuid() == 0 {
					// Cause: `--tpvm` as root. Remedy: run the daemon as another user.
					log.Warn("every process that has the key of the cluster can start programs here as root", "tpvm", vm)
				}
			}))
		if err != nil {
			// Cause: the pod failed. Remedy: correct `err`, and restart.
			log.Error("tasks can start no programs here", "tpvm", vm, "err", err)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}
