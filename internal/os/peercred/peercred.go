// SPDX-License-Identifier: Apache-2.0

// Package peercred tells which process is at the other end of a Unix socket. The kernel provides
// the answer.
package peercred

// Credentials are those that a process had when it connected or listened. PID is 0 if the kernel
// does not tell the process.
type Credentials struct {
	PID int
	UID uint32
}
