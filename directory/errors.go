// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"

	"github.com/rocl-go/rocl/directory/internal/wire"
)

// Errors of this package. A client returns them also if they happened in the server.
var (
	// ErrNotFound is returned if it is certain that no resource matches.
	ErrNotFound = wire.ErrNotFound
	// ErrNoDirectory is returned if no process serves the node, or not at the given address.
	ErrNoDirectory = errors.New("rocl: no directory serves this node")
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
	// ErrInUse is returned by Listen and Also if another process serves the node.
	ErrInUse = wire.ErrInUse
	// ErrProtocol is returned if the other end sends what the protocol does not allow.
	ErrProtocol = wire.ErrProtocol
	// ErrDenied is returned if the server refuses a process of another user, or a context whose
	// token is wrong.
	ErrDenied = wire.ErrDenied
	// ErrSilent is returned with ErrInUse when the process that serves the node does not answer: it
	// is stopped or overloaded.
	ErrSilent = errors.New("rocl: the directory does not answer")
	// ErrPartial is returned if no node that could be asked has the resource and some nodes could
	// not be asked.
	ErrPartial = wire.ErrPartial
)
