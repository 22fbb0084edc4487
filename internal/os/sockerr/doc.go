// SPDX-License-Identifier: Apache-2.0

// Package sockerr compares errors of sockets with those of package syscall. Windows has numbers of
// its own for them.
package sockerr
