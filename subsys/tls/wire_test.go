// SPDX-License-Identifier: Apache-2.0

package tls

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// FuzzWire checks that crypto/tls gets whole records and no byte after them, however the bytes
// arrive, and that the buffer stays within its bounds.
func FuzzWire(f *testing.F) {
	rec := func(n int) []byte {
		b := make([]byte, recordHeader+n)
		b[0], b[1], b[2] = 23, 3, 3
		binary.BigEndian.PutUint16(b[3:], uint16(n))
		return b
	}
	f.Add([]byte{}, uint16(1))
	f.Add(rec(0), uint16(1))
	f.Add(append(rec(100), rec(16384+256)...), uint16(700))
	f.Add(append(rec(17), 23, 3, 3, 0xff, 0xff, 1, 2, 3), uint16(9))
	f.Add(bytes.Repeat(rec(1), 5000), uint16(60_000))
	f.Fuzz(func(t *testing.T, b []byte, chunk uint16) {
		w := &wire{shaken: true}
		remaining, want := b, b
		p := make([]byte, 600)
		for len(remaining) > 0 {
			space := w.space()
			if len(space) == 0 || len(w.in) > mostIn {
				t.Fatalf("space for %d of %d", len(space), len(w.in))
			}
			n := copy(space, remaining[:min(len(remaining), int(chunk)+1)])
			remaining = remaining[n:]
			w.took(n)
			for w.whole() > 0 {
				// This reads as crypto/tls does: the header with the bytes that come along, then
				// the other bytes of the record and no more.
				var got []byte
				for need := recordHeader; len(got) < need; {
					n := try.Get(w.Read(p))(t, "in a record that is whole")
					if got = append(got, p[:n]...); len(got) >= recordHeader {
						need = recordHeader + int(binary.BigEndian.Uint16(got[3:]))
					}
					if need > recordMost { // crypto/tls refuses the record here
						if len(got) != recordHeader {
							t.Fatalf("%d bytes of a record that is too long", len(got))
						}
						return
					}
					if len(got) > need {
						t.Fatalf("%d bytes of a record of %d", len(got), need)
					}
				}
				if !bytes.Equal(got, want[:len(got)]) {
					t.Fatal("other bytes than came")
				}
				want = want[len(got):]
			}
			if _, err := w.Read(p); !errors.Is(err, again{}) {
				t.Fatalf("where no record is whole: %v", err)
			}
		}
	})
}

// During the handshake nothing after the current record is read. The poller must find the following
// bytes in the socket.
func TestReadsNoFurther(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	go func() {
		_, _ = b.Write([]byte{22, 3, 1, 0, 3, 'a', 'b', 'c', 23, 3, 3, 0, 1, 'd', 'e', 'f'})
		b.Close()
	}()
	w := &wire{Conn: a}
	var got []byte
	for _, want := range []int{recordHeader, 3, recordHeader, 1} {
		p := make([]byte, 100)
		n, err := w.Read(p)
		if err != nil || n != want {
			t.Fatalf("read %d, %v; want %d", n, err, want)
		}
		got = append(got, p[:n]...)
	}
	if left, _ := io.ReadAll(a); string(left) != "ef" {
		t.Errorf("%q is left", left)
	}
	try.Equal(t, string(got[recordHeader:recordHeader+3]), "abc", "%q", got)
}

// A peer that causes answers and never reads them does not fill the memory of this process.
func TestSealedIsBounded(t *testing.T) {
	w := &wire{shaken: true}
	for range mostSealed {
		if _, err := w.Write(make([]byte, 100)); err != nil {
			if len(w.sealed) > mostSealed+200 {
				t.Errorf("%d bytes", len(w.sealed))
			}
			return
		}
	}
	t.Error("no bound")
}
