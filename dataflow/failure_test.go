// SPDX-License-Identifier: Apache-2.0

package dataflow

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A failure that crosses to another group keeps its group, stage, text and kind. Any bytes are a
// failure.
func FuzzFailure(f *testing.F) {
	f.Add(encodeFailure(&RunError{Group: "G", Stage: "S", Err: fmt.Errorf("%w: the peer", ErrLost)}))
	f.Add(encodeFailure(&RunError{Err: errors.New("")}))
	f.Add(append(make([]byte, len(causes)), 255, 255, 255, 255, 'x'))
	f.Fuzz(func(t *testing.T, p []byte) {
		e := decodeFailure("g", p)
		again := decodeFailure("g", encodeFailure(e))
		try.Equal(t, again.Error(), e.Error())
		for _, c := range causes {
			try.Equal(t, errors.Is(again, c), errors.Is(e, c), "%v", c)
		}
	})
}
