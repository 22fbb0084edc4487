// SPDX-License-Identifier: Apache-2.0

//go:build !rocldebug

package lock

import "sync"

// IsWatched reports whether locks are checked and counted.
const IsWatched = false

// A Mutex is a [sync.Mutex] of level L.
type Mutex[L Level] struct{ sync.Mutex }

// A RWMutex is a [sync.RWMutex] of level L.
type RWMutex[L Level] struct{ sync.RWMutex }

// Taken is how many locks have been taken in this process, by level; nil where they are
// not counted.
func Taken() map[string]uint64 { return nil }
