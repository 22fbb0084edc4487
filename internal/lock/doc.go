// SPDX-License-Identifier: Apache-2.0

// Package lock has mutexes with a level in the order in which locks must be taken.
//
// The type of a lock names its [Level]. A goroutine that holds a lock takes only locks of deeper
// levels, so goroutines cannot deadlock on each other's locks. Package dispatch lists the levels of
// the message path; it is the outermost package with levels.
//
// In a build with the tag rocldebug each acquisition is checked and counted. One against the order
// panics, and [Taken] returns the counts. Without the tag the locks are those of package sync, and
// cost nothing more.
package lock

// A Level is a position in the order of locks. Implementations are empty structs, whose types are
// the type parameters of locks.
type Level interface {
	// Depth returns the depth of the level and its name. The results never change.
	Depth() (depth int, name string)
}
