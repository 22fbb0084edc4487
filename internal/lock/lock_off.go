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

// Taken returns how many times locks were taken in this process, by level. Without the tag
// rocldebug it returns nil.
func Taken() map[string]uint64 { return nil }
