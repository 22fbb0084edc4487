// SPDX-License-Identifier: Apache-2.0

package directory

import "github.com/rocl-go/rocl/directory/internal/database"

// Events of watches; see package database.
type (
	// An Event is one change of what matches a watch, or Synced.
	Event = database.Event
	// EventKind says what happened to a watched resource.
	EventKind = database.Kind
)

// Kinds of events; see package database.
const (
	Appeared = database.Appeared
	Changed  = database.Changed
	Gone     = database.Gone
	Synced   = database.Synced
)
