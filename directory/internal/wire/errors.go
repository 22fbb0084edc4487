// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/rocl-go/rocl/directory/internal/database"
)

// Errors that cross the wire. Package directory exports them and says what each means.
var (
	ErrNotFound   = database.ErrNotFound
	ErrRevision   = database.ErrRevision
	ErrNotOwner   = database.ErrNotOwner
	ErrExists     = database.ErrExists
	ErrIncomplete = database.ErrIncomplete
	// Cause: program and directory have different versions. Remedy: upgrade the older one.
	ErrProtocol = errors.New("rocl: directory protocol violation")
	// Cause: the text behind it says why.
	ErrDenied = errors.New("rocl: the directory refuses this process")
	ErrClosed = errors.New("rocl: directory closed")
	// Cause: another daemon serves the socket; in dirserver, exit code 3. Remedy: stop it, or use
	// another `--socket`.
	ErrInUse = errors.New("rocl: another directory serves this node")
	// Cause: some nodes do not answer, refuse this one, or were never met. Remedy: see `rocl nodes`
	// and the daemon's log; try again.
	ErrPartial = errors.New("rocl: not found, and not every node could be asked")

	// Cause: an older version, or a server in memory, serves that node. Remedy: upgrade it.
	ErrNoSummary = errors.New("rocl: the directory of the node makes no summary")

	// ErrForbidden is the ErrDenied of a process of another user. It matches fs.ErrPermission too.
	ErrForbidden = fmt.Errorf("%w: %w", ErrDenied, fs.ErrPermission)
)

// codes has the errors at their numbers on the wire.
var codes = []error{nil, ErrNotFound, ErrRevision, ErrNotOwner, ErrExists, ErrIncomplete, ErrProtocol, ErrDenied, ErrClosed, ErrInUse, ErrPartial, ErrForbidden, ErrNoSummary}

// code returns the number of an error on the wire; 0 stands for any other error.
func code(err error) uint16 {
	for i, e := range slices.Backward(codes[1:]) { // ErrForbidden before ErrDenied, which it matches too
		if errors.Is(err, e) {
			return uint16(i + 1)
		}
	}
	return 0
}

// remoteError is an error that the server has reported: the kind, and the server's text.
type remoteError struct {
	kind error
	text string
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// ParseError returns the error in the body of a message error.
func ParseError(b []byte) error {
	if len(b) < 2 {
		return fmt.Errorf("%w: truncated error", ErrProtocol)
	}
	n := int(binary.LittleEndian.Uint16(b))
	e := &remoteError{text: string(b[2:])}
	if n > 0 && n < len(codes) {
		e.kind = codes[n]
		if e.kind == ErrNotFound {
			return ErrNotFound // the frequent one, without further text
		}
	}
	return e
}
