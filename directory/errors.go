// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"github.com/rocl-go/rocl/directory/internal/node"
	"github.com/rocl-go/rocl/directory/internal/wire"
)

// Errors of this package. A client returns them also if they happened in the server.
var (
	// ErrNotFound is returned if it is certain that no resource matches.
	ErrNotFound = wire.ErrNotFound
	// ErrNoDirectory is returned if no process serves the node, or not at the given address.
	ErrNoDirectory = node.ErrNoDirectory
	// ErrRevision is returned if a resource has another revision than the expected one.
	ErrRevision = wire.ErrRevision
	// ErrNotOwner is returned if a context changes a resource of another context.
	ErrNotOwner = wire.ErrNotOwner
	// ErrExists is returned if the identifier of a new resource is taken.
	ErrExists = wire.ErrExists
	// ErrIncomplete is returned if an attribute of a resource has no value.
	ErrIncomplete = wire.ErrIncomplete
	// ErrClosed is returned by a client or a server that is closed.
	ErrClosed = wire.ErrClosed
	// ErrInUse is returned by Listen if another process serves the node.
	ErrInUse = wire.ErrInUse
	// ErrProtocol is returned if the other end sends what the protocol does not allow.
	ErrProtocol = wire.ErrProtocol
	// ErrDenied is returned if the server refuses a process of another user, or a context whose
	// token is wrong. For another user the error matches fs.ErrPermission too.
	ErrDenied = wire.ErrDenied
	// ErrSilent is returned with ErrInUse when the process that serves the node does not answer: it
	// is stopped or overloaded.
	ErrSilent = node.ErrSilent
	// ErrPartial is returned if no node that could be asked has the resource and some nodes could
	// not be asked.
	ErrPartial = wire.ErrPartial
	// ErrNoSummary is returned by Summary if the directory of the node makes none.
	ErrNoSummary = wire.ErrNoSummary
	// ErrOccupied is returned when the path of a file of the directory is taken by a file that the
	// directory did not make and may not remove.
	ErrOccupied = node.ErrOccupied
	// ErrUntrusted is returned when another user could have put a directory, or one of its files,
	// at its path. Nothing is sent to such a directory.
	ErrUntrusted = node.ErrUntrusted
)
