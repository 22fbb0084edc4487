// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rocl-go/rocl"
)

var (
	// ErrBadParam is returned for an argument that makes no sense, such as a negative tag.
	ErrBadParam = errors.New("tpvm: invalid argument")
	// ErrExported is returned when a task exports a name a second time.
	ErrExported = errors.New("tpvm: the task exports the name already")
	// ErrNoProgram is returned when a name to spawn is neither exported nor a program there.
	ErrNoProgram = errors.New("tpvm: the name is neither exported nor a program")
	// ErrNoHost is returned when no host satisfies the conditions of a spawn.
	ErrNoHost = errors.New("tpvm: no host satisfies the conditions")
	// ErrHostAdded is returned when a host is added that has a pod already.
	ErrHostAdded = errors.New("tpvm: programs can be started on the host already")
	// ErrNoPod is returned when a host is removed that has no pod which could be ended.
	ErrNoPod = errors.New("tpvm: the host has no pod that can be ended")
	// ErrNotEnrolled is returned when a program has ended before it enrolled.
	ErrNotEnrolled = errors.New("tpvm: the program ended before it enrolled")
	// ErrNoTask is returned for an identifier that is not that of a task or thread that runs.
	ErrNoTask = errors.New("tpvm: no such task or thread")
	// ErrNoEntry is returned where the message box has no such entry.
	ErrNoEntry = errors.New("tpvm: no such entry in the message box")
	// ErrEntryExists is returned, with ErrDenied, when the message box has an entry that PutInfo
	// must not replace.
	ErrEntryExists = errors.New("tpvm: the message box has such an entry already")
	// ErrDenied is returned when an entry of the message box must not be changed, because another
	// task or thread owns it.
	ErrDenied = errors.New("tpvm: another task or thread owns the entry of the message box")
	// ErrTruncated is returned when a message has more values than were asked for.
	ErrTruncated = errors.New("tpvm: the message has more values")
	// ErrHandler is returned when a thread has a handler for the same messages already.
	ErrHandler = errors.New("tpvm: the thread has such a handler already")
	// ErrForeign is returned by a receive of a message that is not of this package.
	ErrForeign = errors.New("tpvm: the message is not one of a task or thread")
	// ErrTooMany is returned when a host holds no more programs: its pod runs as many as
	// WithMaxPrograms allows, or the system refused the process for want of a resource.
	ErrTooMany = errors.New("tpvm: the host holds no more programs")
	// ErrNoStatus is returned for a task of which no running task knows how it ended.
	ErrNoStatus = errors.New("tpvm: no running task has started the program")
	// ErrKilled is the cause for which the context of a killed thread ends.
	ErrKilled = errors.New("tpvm: the thread was killed")
	// ErrExited is the cause for which the contexts of threads end when their task exits.
	ErrExited = errors.New("tpvm: the task has exited")
)

// IsGone reports whether err tells that a task, a thread or a host has ended or is out of reach:
// whether it matches rocl.ErrGone or rocl.ErrUnreachable.
func IsGone(err error) bool {
	return errors.Is(err, rocl.ErrGone) || errors.Is(err, rocl.ErrUnreachable)
}

// A SpawnError tells why some of the tasks or threads of a Spawn were not started.
type SpawnError struct {
	Name  string  // what was to be spawned
	Slots []error // one for each that was to be started; nil: it runs
}

func (e *SpawnError) Error() string {
	var s strings.Builder
	n := 0
	for _, err := range e.Slots {
		if err != nil {
			n++
		}
	}
	fmt.Fprintf(&s, "tpvm: spawn %q: %d of %d not started", e.Name, n, len(e.Slots))
	was := ""
	for i, err := range e.Slots {
		if err != nil && err.Error() != was {
			was = err.Error()
			fmt.Fprintf(&s, "; %d: %v", i, err)
		}
	}
	return s.String()
}

// orNil returns e, or nil where all were started.
func (e *SpawnError) orNil() error {
	if len(e.Unwrap()) == 0 {
		return nil
	}
	return e
}

// Unwrap returns the errors of those that were not started.
func (e *SpawnError) Unwrap() (errs []error) {
	for _, err := range e.Slots {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
