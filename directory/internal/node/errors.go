// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/directory/internal/wire"
)

// Errors of this package. Package directory exports them and says what each means.
var (
	// Cause: no process serves the socket, and this program only joins. Remedy: start `dirserver`,
	// or compare `ROCL_SOCKET`.
	ErrNoDirectory = errors.New("rocl: no directory serves this node")
	// Cause: the serving process, which the message names, is stopped or overloaded. Remedy: `kill
	// -CONT PID`, or end it.
	ErrSilent = errors.New("rocl: the directory does not answer")
	// Cause: a foreign file lies at the path of the socket, its lock or its identity. Remedy:
	// remove it, or use another socket.
	ErrOccupied = errors.New("rocl: the directory's path is occupied")
	// Cause: another user serves the socket, or can write in its folder. Remedy: `chmod 700` the
	// folder, or use a socket in a private one.
	ErrUntrusted = errors.New("rocl: the directory is not trusted")
)

var (
	// errServed says that a process accepts connections at the socket's path.
	errServed = fmt.Errorf("%w: its socket accepts connections", wire.ErrInUse)
	// errDisplaced says that another server has the node's files.
	errDisplaced = fmt.Errorf("%w: the files of this one were removed while it served, and another has taken its place", wire.ErrInUse)
	// errProof says that a proof of the other end is wrong.
	errProof = errors.New("it does not know the node's key")
)
