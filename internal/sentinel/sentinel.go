// SPDX-License-Identifier: Apache-2.0

// Package sentinel has errors that several packages return, each with a text of its own, and that a
// user matches with one value.
package sentinel

import "errors"

// ErrTooLarge is matched by the errors of all packages for a length beyond a limit.
//
// Cause: a message, attribute or list is beyond its [limit](PROTOCOL.md#limits), or beyond three
// quarters of the receiver's memory. Remedy: split it, or use package bulk.
var ErrTooLarge = errors.New("rocl: too large")

// ErrValue is matched by the errors of all packages for values that cannot be encoded, and for
// bytes that cannot be decoded.
//
// Cause: sender and receiver use different types or codecs, or an attribute is not of the type of
// its field. Remedy: use the same.
var ErrValue = errors.New("rocl: the value does not fit its format")

// New returns an error with this text that matches base.
func New(text string, base error) error { return &sentinel{text, base} }

type sentinel struct {
	text string
	base error
}

func (s *sentinel) Error() string { return s.text }
func (s *sentinel) Unwrap() error { return s.base }
