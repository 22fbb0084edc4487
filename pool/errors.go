// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"errors"
	"fmt"
)

var (
	// ErrFull is returned when a unit is refused because the queue of its pool is full.
	ErrFull = errors.New("pool: the queue is full")
	// ErrClosed is returned when a pool was removed or its set was closed.
	ErrClosed = errors.New("pool: closed")
	// ErrExists is returned when a name is given a second time.
	ErrExists = errors.New("pool: the name exists")
	// ErrNotFound is returned when a set has no pool or stream of a name.
	ErrNotFound = errors.New("pool: not found")
	// ErrInUse is returned when a pool cannot be removed: a stream serves it, a user holds it, or
	// it has units.
	ErrInUse = errors.New("pool: in use")
	// ErrNotWaiting is returned when a unit cannot be moved because it no longer waits: a worker
	// has taken it, or it was cancelled.
	ErrNotWaiting = errors.New("pool: the unit does not wait")
	// ErrGoexit is reported to [OnPanic] for a scheduler that has ended its goroutine
	// (runtime.Goexit).
	ErrGoexit = errors.New("pool: runtime.Goexit in a scheduler")
	// ErrConfig is returned for an invalid configuration.
	ErrConfig = errors.New("pool: invalid configuration")
)

// opError is the type of all errors of this package. It matches each of its kinds.
type opError struct {
	op, name, cause string
	kinds           []error
}

func (e *opError) Error() string {
	if e.name == "" {
		return fmt.Sprintf("pool: %s: %s", e.op, e.cause)
	}
	return fmt.Sprintf("pool: %s %q: %s", e.op, e.name, e.cause)
}

func (e *opError) Unwrap() []error { return e.kinds }

func fail(op, name, cause string, kinds ...error) error {
	return &opError{op, name, cause, kinds}
}
