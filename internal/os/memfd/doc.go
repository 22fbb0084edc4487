// SPDX-License-Identifier: Apache-2.0

// Package memfd makes memory that can be shared with other processes: files without a name, of a
// fixed size, whose pages are all allocated at the start. Only the process that made a file can
// write it.
//
// The kernel enforces this through seals. No process can truncate the file, so no access to it ends
// in SIGBUS. No process can make a second writable mapping. The files have no name in a file
// system, so a killed process leaves nothing behind.
//
// A page whose contents need no trust, such as that of a futex word, may be shared for
// writing.
package memfd
