// SPDX-License-Identifier: Apache-2.0

// Package database keeps a node's resources in memory and finds them by
// attributes.
//
// Records lie in a slab and are named by index. Their attribute lists are
// appended to large chunks. For every attribute there is a posting, found
// through a hash of its name and value (hash/maphash, because names and values come
// from strangers and xxhash cannot be keyed): the indexes of the records that have
// it. A question looks at the shortest posting among its attributes and checks
// each candidate byte by byte, so a collision costs time, never truth.
//
//	hash(name, value) ──► posting ──► record ──► attributes
//	identifier ───────────────────────►┘
//
// An image of all that, which other processes read in place, can be had as well:
// [DB.Image], package image. It is an index of its own with the same postings,
// and follows each change before anybody is told of it.
//
// Reads run side by side; changes exclude them for about a microsecond.
package database
