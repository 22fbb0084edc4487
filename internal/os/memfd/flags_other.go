// SPDX-License-Identifier: Apache-2.0

//go:build (linux && portable) || darwin || netbsd || openbsd

package memfd

// mapFlags are further flags of each mapping.
const mapFlags = 0
