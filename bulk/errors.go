// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"errors"
	"fmt"

	"github.com/rocl-go/rocl"
)

// Errors of transfers and of Expose. A transfer can also fail with errors of rocl: ErrGone if the
// origin's process has ended, ErrUnreachable if it is out of reach, ErrClosed if the target's own
// endpoint is closed.
var (
	ErrRights  = errors.New("bulk: the handle has no right to do this")
	ErrRange   = errors.New("bulk: the range is not within the memory")
	ErrRevoked = errors.New("bulk: the region has been revoked")
	ErrKey     = errors.New("bulk: the key of the handle is not one that the origin gave")
	ErrNarrow  = errors.New("bulk: the handle has been narrowed too often")

	errBusy     = errors.New("bulk: the origin serves as many requests as it may")
	errProtocol = errors.New("bulk: not a message of this protocol")
)

// codes lists the errors that an origin replies with; the index is the number on the wire. Number 0
// stands for any other error, whose text follows.
var codes = []error{nil, ErrRights, ErrRange, ErrRevoked, ErrKey, errProtocol, rocl.ErrTooLarge, errDenied, errElsewhere, errBusy}

// appendError appends the encoding of err in a reply of the origin.
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
		return fmt.Errorf("%w: the answer has %d bytes", errProtocol, len(p))
	case p[0] == 0:
		return fmt.Errorf("the origin failed: %q", p[1:])
	}
	return codes[p[0]]
}
