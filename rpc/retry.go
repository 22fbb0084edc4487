// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"

	"github.com/rocl-go/rocl"
)

// MayRetry reports whether it is certain that no handler has run for a failed call, so that another
// call does not do the work twice. It is true if
//
//   - the server has refused the call: an [Error] whose Ran is false, such as one that matches
//     ErrBusy, ErrUnknownCall, or ErrClosed from a server that drains;
//   - the request was not accepted, for example because the provider is known to have ended;
//   - no provider was found, or a circuit kept the call from all of them ([ErrCircuit]).
//
// It is false for nil and for all other errors: after rocl.ErrGone, rocl.ErrUnreachable or the end
// of the context the handler may have run.
func MayRetry(err error) bool {
	if t := (*triedError)(nil); errors.As(err, &t) && t.mayHaveRun {
		return false
	}
	if e := (*Error)(nil); errors.As(err, &e) {
		return !e.Ran
	}
	return errors.As(err, new(unsentError))
}

// An unsentError says that the request of a call was not sent.
type unsentError struct{ error }

func (e unsentError) Unwrap() error { return e.error }

// A triedError is the error of the last of several attempts. mayHaveRun is true if the handler of
// any attempt may have run.
type triedError struct {
	error
	mayHaveRun bool
}

func (e *triedError) Unwrap() error { return e.error }

// notSent returns the error of a request that was not accepted for a provider.
func notSent(err error, provider rocl.GID) error { return unsentError{sendError{err, provider}} }
