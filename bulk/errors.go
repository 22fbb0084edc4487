// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"errors"
	"fmt"

	"github.com/rocl-go/rocl"
)

// Errors of transfers and of Expose. A transfer can also fail with errors of rocl: ErrGone where
// the origin's process has ended, ErrUnreachable where it is out of reach, ErrClosed where the
// target's own endpoint is closed.
var (
	ErrRights  = errors.New("bulk: the handle has no right to do this")
	ErrRange   = errors.New("bulk: the range is not within the memory")
	ErrRevoked = errors.New("bulk: the region has been revoked")
	ErrKey     = errors.New("bulk: the key of the handle is not one that the origin gave")
	ErrNarrow  = errors.New("bulk: the handle has been narrowed too often")

	errBusy     = errors.New("bulk: the origin serves as many requests as it may")
	errProtocol = errors.New("bulk: not a message of this protocol")
)

// codes are the errors that an origin answers with, by their numbers on the wire. Number 0 is an
// error of any other kind, of which the text is sent.
var codes = []error{nil, ErrRights, ErrRange, ErrRevoked, ErrKey, errProtocol, rocl.ErrTooLarge, errDenied, errElsewhere, errBusy}

// appendError appends err as an origin answers with it.
func appendError(p []byte, err error) []byte {
	for code, known := range codes {
		if known != nil && errors.Is(err, known) {
			return append(p, byte(code))
		}
	}
	return append(append(p, 0), err.Error()...)
}

// parseError returns the error that appendError has encoded.
func parseError(p []byte) error {
	switch {
	case len(p) == 0 || int(p[0]) >= len(codes):
		return fmt.Errorf("%w: an answer of %d bytes", errProtocol, len(p))
	case p[0] == 0:
		return fmt.Errorf("the origin failed: %q", p[1:])
	}
	return codes[p[0]]
}
