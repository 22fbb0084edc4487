// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"bytes"
	"errors"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Any 32 bytes are a header or are refused, and a header is written in the bytes that were read.
func FuzzHeader(f *testing.F) {
	f.Add(make([]byte, HeaderLen))
	f.Add(bytes.Repeat([]byte{0xff}, HeaderLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < HeaderLen {
			return
		}
		var h Header
		err := h.Parse(b)
		bad := b[6] != 0 || b[7] != 0 || b[3] > 0x7f
		if bad != (err != nil) || err != nil && !errors.Is(err, ErrBadHeader) {
			t.Fatalf("%x: %v", b[:HeaderLen], err)
		}
		if err == nil {
			var w [HeaderLen]byte
			h.Put(w[:])
			if !bytes.Equal(w[:], b[:HeaderLen]) {
				t.Fatalf("%x is written as %x", b[:HeaderLen], w)
			}
		}
	})
}
