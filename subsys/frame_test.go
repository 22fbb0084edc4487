// SPDX-License-Identifier: Apache-2.0

package subsys

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The golden vector of docs/PROTOCOL.md.
func TestHeaderGolden(t *testing.T) {
	h := Header{Len: 5, Type: 16, Flags: 0, Seq: 0x01020304, Ack: 0x0a0b0c0d, Tag: 0x1122334455667788, Src: 7, Dst: 9}
	const want = "05000000" + "10000000" + "04030201" + "0d0c0b0a" + "8877665544332211" + "07000000" + "09000000"
	var b [HeaderLen]byte
	h.Put(b[:])
	if got := hex.EncodeToString(b[:]); got != want {
		t.Fatalf("a header is\n%s, want\n%s", got, want)
	}
	var back Header
	if err := back.Parse(b[:]); err != nil || back != h {
		t.Fatalf("parsed as %+v: %v", back, err)
	}
}

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
