// SPDX-License-Identifier: Apache-2.0

// Package memfd makes memory that can be handed to other processes: nameless
// files of a fixed size, whose every page is there from the start, and which
// only their maker can write.
//
// The kernel sees to it, through seals: nobody can cut the file, so that no
// access to it ends in SIGBUS, nor make a second writable mapping of it. Nothing
// has a name in a file system, so nothing is left behind by who is killed.
//
// A page in which there is nothing to believe, such as one of a word to sleep on, may
// be shared for writing.
package memfd
