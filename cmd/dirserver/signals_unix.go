// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"os/signal"
	"syscall"
)

// ignoreSignals ignores signals that must not end the daemon.
func ignoreSignals() {
	signal.Ignore(syscall.SIGXFSZ) // a log at the limit of ulimit -f
	signal.Ignore(syscall.SIGPIPE) // a log without a reader
}
