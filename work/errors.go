// SPDX-License-Identifier: Apache-2.0

package work

import (
	"errors"
	"fmt"

	"github.com/rocl-go/rocl"
)

// A verdict is an error that tells no failure.
type verdict string

func (v verdict) Error() string { return string(v) }

// Again is returned by a handler to have the task done again. Errors that wrap it do the same.
const Again = verdict("work: do the task again")

// The errors of this package. Errors wrap them: use errors.Is.
var (
	// ErrClosed is returned by Put and yielded by Results when the queue is closed.
	ErrClosed = errors.New("work: the queue is closed")
	// ErrFinished is returned by Put after Finish.
	ErrFinished = errors.New("work: the queue takes no further task")
	// ErrLost is a reason of a DeadLetter: a worker has ended, or did not answer, while it had the
	// task. It is also the cause with which the context of a handler ends if the task's queue has
	// ended or has given the worker up.
	ErrLost = errors.New("work: the other side is lost")
	// ErrPanic is matched by the error of a task whose handler has panicked.
	ErrPanic = errors.New("work: the handler panicked")
	// ErrTypes is matched by Stats.Refusal if a worker has another type of tasks or results.
	ErrTypes = errors.New("work: the worker has other types")
	// ErrGrace is returned by Serve if tasks were not done in the time of Grace.
	ErrGrace = errors.New("work: tasks were not done in the time that Grace gives")
	// ErrOption is returned by Open and Serve for an option that is invalid or belongs to the
	// other.
	ErrOption = errors.New("work: invalid option")

	errForgotten = errors.New("it has given the queue up")
	errProtocol  = errors.New("work: a message does not fit the protocol")
)

// A TaskError is the error of a task whose handler has failed, or whose task or result could not be
// encoded or decoded. It matches ErrPanic, rocl.ErrValue, rocl.ErrTooLarge, context.Canceled or
// context.DeadlineExceeded if the handler's error did.
type TaskError struct {
	Worker rocl.GID // zero if the task has reached no worker
	Text   string   // of the handler's error
	is     error
}

// Error implements error.
func (e *TaskError) Error() string { return fmt.Sprintf("work: worker %v: %s", e.Worker, e.Text) }

// Unwrap returns the known error that the handler's error matched, or nil.
func (e *TaskError) Unwrap() error { return e.is }

// A DeadLetter is the error of a task that has been begun as often as Attempts says, and has
// neither a result nor an error.
type DeadLetter struct {
	Reasons []error // one for each attempt: each matches Again or ErrLost
}

// Error implements error.
func (e *DeadLetter) Error() string {
	if len(e.Reasons) == 0 {
		return "work: dead letter"
	}
	return fmt.Sprintf("work: dead letter after %d attempts, the last: %v", len(e.Reasons), e.Reasons[len(e.Reasons)-1])
}

// Unwrap returns the reasons.
func (e *DeadLetter) Unwrap() []error { return e.Reasons }
