// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rocl-go/rocl"
)

var (
	// ErrBadParam is returned for an argument that makes no sense, such as a negative tag.
	ErrBadParam = errors.New("tpvm: invalid argument")
	// ErrExported is returned when a task exports a name a second time.
	ErrExported = errors.New("tpvm: the task exports the name already")
	// ErrNoProgram is returned when a name to spawn is neither exported nor a program on the host.
	ErrNoProgram = errors.New("tpvm: the name is neither exported nor a program")
	// ErrNoHost is returned when no host satisfies the conditions of a spawn.
	ErrNoHost = errors.New("tpvm: no host satisfies the conditions")
	// ErrHostAdded is returned when a host is added that has a pod already.
	ErrHostAdded = errors.New("tpvm: programs can be started on the host already")
	// ErrNoPod is returned when a host is removed that has no pod that can be ended.
	ErrNoPod = errors.New("tpvm: the host has no pod that can be ended")
	// ErrNotEnrolled is returned when a program has ended before it enrolled.
	ErrNotEnrolled = errors.New("tpvm: the program ended before it enrolled")
	// ErrNoTask is returned for an identifier that is not the one of a running task or thread.
	ErrNoTask = errors.New("tpvm: no such task or thread")
	// ErrNoEntry is returned when the message box has no such entry.
	ErrNoEntry = errors.New("tpvm: no such entry in the message box")
	// ErrEntryExists is returned, together with ErrDenied, when the message box has an entry that
	// PutInfo must not replace.
	ErrEntryExists = errors.New("tpvm: the message box has such an entry already")
	// ErrDenied is returned when an entry of the message box must not be changed, because another
	// task or thread owns it. It is also returned for a request to a task that the task does not
	// allow: from a task of another virtual machine, or for programs from a task that uses
	// WithoutLaunch.
	ErrDenied = errors.New("tpvm: not permitted to this task or thread")
	// ErrTruncated is returned when a message has more values than were asked for.
	ErrTruncated = errors.New("tpvm: the message has more values")
	// ErrHandler is returned when a thread has a handler for the same messages already.
	ErrHandler = errors.New("tpvm: the thread has such a handler already")
	// ErrForeign is returned by a receive of a message that does not come from this package.
	ErrForeign = errors.New("tpvm: the message is not one of a task or thread")
	// ErrTooMany is returned by Spawn and Start if the limit of WithMaxPrograms is reached on a
	// host, or if its system has no process, memory or file left for the program.
	ErrTooMany = errors.New("tpvm: the host holds no more programs")
	// ErrNoStatus is returned by Wait if it cannot learn how a program ends: a user started it by
	// hand, the task that started it has ended, or the identifier is that of a thread.
	ErrNoStatus = errors.New("tpvm: the task was not started by Spawn, or its starter has ended")
	// ErrKilled is the cause of the end of a killed thread's context.
	ErrKilled = errors.New("tpvm: the thread was killed")
	// ErrExited is the cause of the end of the threads' contexts when their task exits. Calls of a
	// task that has exited fail with it.
	ErrExited = errors.New("tpvm: the task has exited")
)

// A textError has a text of its own, and matches another error, is.
type textError struct {
	text string
	is   error
}

func (e *textError) Error() string { return e.text }
func (e *textError) Unwrap() error { return e.is }

var (
	errNoName  = badParam("the name is empty")
	errNoFunc  = badParam("the function is nil")
	errZeroTID = badParam("the zero TID is no task")
)

// badParam returns an error that matches ErrBadParam, with a text that says what is wrong.
func badParam(format string, args ...any) error {
	return &textError{fmt.Sprintf(format, args...), ErrBadParam}
}

// wrap puts a text in front of *err, unless that is nil: what was called, and with what.
func wrap(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), *err)
	}
}

// IsGone reports whether err says that a task, a thread or a host has ended or is out of reach:
// whether it matches rocl.ErrGone or rocl.ErrUnreachable.
func IsGone(err error) bool {
	return errors.Is(err, rocl.ErrGone) || errors.Is(err, rocl.ErrUnreachable)
}

// A SpawnError says why some of the tasks or threads of a Spawn were not started.
type SpawnError struct {
	Name  string  // the name to spawn
	Slots []error // one for each task or thread; nil: it runs

	hosts []string // of the slots
}

// add adds a slot on a host.
func (e *SpawnError) add(host string, err error) {
	e.Slots = append(e.Slots, err)
	e.hosts = append(e.hosts, host)
}

func (e *SpawnError) Error() string {
	type failure struct {
		text  string
		slots []int
	}
	var all []failure
	n := 0
	for i, err := range e.Slots {
		if err == nil {
			continue
		}
		n++
		text := err.Error()
		if i < len(e.hosts) && !strings.Contains(text, e.hosts[i]) {
			text = " on " + e.hosts[i] + ": " + text
		} else {
			text = ": " + text
		}
		if k := slices.IndexFunc(all, func(f failure) bool { return f.text == text }); k >= 0 {
			all[k].slots = append(all[k].slots, i)
		} else {
			all = append(all, failure{text, []int{i}})
		}
	}
	var s strings.Builder
	fmt.Fprintf(&s, "tpvm: spawn %q: %d of %d not started", e.Name, n, len(e.Slots))
	for i, f := range all {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		s.WriteString(sep + slotNames(filepath.Base(e.Name), f.slots) + f.text)
	}
	return s.String()
}

// slotNames lists slots, as "sh.0 and sh.1" or "sh.0, sh.1 and 5 more".
func slotNames(name string, slots []int) string {
	names := make([]string, min(len(slots), 2))
	for i := range names {
		names[i] = fmt.Sprintf("%s.%d", name, slots[i])
	}
	if n := len(slots) - len(names); n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names, ", "), n)
	}
	return strings.Join(names, " and ")
}

// orNil returns e, or nil if all slots were started.
func (e *SpawnError) orNil() error {
	if len(e.Unwrap()) == 0 {
		return nil
	}
	return e
}

// Unwrap returns the errors of the slots that were not started.
func (e *SpawnError) Unwrap() (errs []error) {
	for _, err := range e.Slots {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}
