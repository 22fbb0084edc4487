// SPDX-License-Identifier: Apache-2.0

// Package lock has mutexes that know their place in the order in which locks are taken.
//
// The type of a lock names its [Level]. Who holds a lock takes only locks of deeper
// levels, so no two goroutines wait for each other's locks for ever. The levels of the
// message path are listed in package dispatch, which is the outermost of those that
// have any.
//
// In a build with the tag rocldebug each acquisition is checked and counted: one against
// the order panics, and [Taken] says how many there were. Without the tag the locks are
// those of package sync, and cost nothing more.
package lock

// A Level is a place in the order of locks. Implementations are empty structs: their
// types are the parameters of locks.
type Level interface {
	// Place is how deep the level is, and its name. It is the same each time.
	Place() (depth int, name string)
}
