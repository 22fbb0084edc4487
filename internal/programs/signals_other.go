// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package programs

import "os/exec"

// StartUnblocked starts cmd. On this system it gets the blocked signals of this process.
func StartUnblocked(cmd *exec.Cmd) error { return cmd.Start() }
