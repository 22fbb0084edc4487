// SPDX-License-Identifier: Apache-2.0

// Package database keeps a node's resources in memory and finds them by their attributes.
//
// Records lie in pages and are named by their number. Their attribute lists are appended to large
// chunks of memory. For every attribute there is a posting: the numbers of the records that have
// the attribute. A posting is found through a hash of the attribute's name and value. The hash is
// hash/maphash, because it has a random seed: names and values may come from a hostile program,
// which must not be able to choose colliding ones. A question reads the shortest posting among its
// attributes and compares each candidate byte by byte. So a collision costs time and never makes an
// answer wrong.
//
//	hash(name, value) ──► posting ──► record ──► attributes
//	identifier ───────────────────────►┘
//
// [DB.MakeIndex] makes an index: a copy of the database in shared memory, which other processes
// read in place (package index). The index has postings of its own, and follows each change before
// any watch reports the change.
//
// Reads run at the same time; a change excludes them for about a microsecond.
package database
