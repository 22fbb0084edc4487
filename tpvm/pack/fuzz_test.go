// SPDX-License-Identifier: Apache-2.0

package pack_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// drain unpacks the rest of r, each time by the first call that does not fail. It stops the test if
// a failed call has consumed values, or if a successful one has consumed none.
func drain(tb testing.TB, r *pack.Reader) {
	for r.Remaining() > 0 {
		if !unpackAny(tb, r) {
			return // the rest is shorter than any value but bytes of a typed message
		}
	}
}

func unpackAny(tb testing.TB, r *pack.Reader) bool {
	was := r.Remaining()
	for _, f := range []func() error{
		func() error {
			m, err := r.UnpackMessage()
			if err == nil {
				drain(tb, m)
			}
			return err
		},
		func() error { _, err := r.UnpackString(); return err },
		func() error { return pack.Unpack(r, make([]int16, 3), 2) },
		func() error { _, err := pack.View[int64](r, 1); return err },
		func() error { _, err := pack.UnpackOne[uint64](r); return err },
		func() error { _, err := pack.UnpackOne[int](r); return err },
		func() error { return pack.Unpack(r, make([]complex128, 5), 3) },
		func() error { _, err := pack.View[float32](r, 1); return err },
		func() error { _, err := pack.View[uint32](r, 1); return err },
		func() error { _, err := pack.UnpackOne[int32](r); return err },
		func() error { _, err := pack.UnpackOne[uint16](r); return err },
		func() error { _, err := pack.UnpackOne[complex64](r); return err },
		func() error { _, err := pack.UnpackOne[complex128](r); return err },
		func() error { _, err := pack.UnpackOne[float64](r); return err },
		func() error { return r.UnpackBytes(make([]byte, 3)) },
		func() error { return r.UnpackBytes(make([]byte, 1)) },
	} {
		switch err := f(); {
		case err == nil && r.Remaining() < was:
			return true
		case err == nil:
			tb.Fatal("a value takes no bytes")
		case r.Remaining() != was:
			tb.Fatalf("a failed Unpack has consumed %d bytes: %v", was-r.Remaining(), err)
		case !errors.Is(err, pack.ErrNoData) && !errors.Is(err, pack.ErrType) && !errors.Is(err, pack.ErrDamaged) && !errors.Is(err, pack.ErrOverflow):
			tb.Fatalf("an unknown error: %v", err)
		}
	}
	return false
}

// Any bytes are a message or an error. Unpacked values lie within the bytes.
func FuzzReader(f *testing.F) {
	for _, steps := range goldenCases(f) {
		for _, enc := range encodings {
			for _, typed := range []bool{false, true} {
				if p := payload(enc, typed, steps); len(p) < 1000 {
					f.Add(uint8(enc), typed, p)
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, enc uint8, typed bool, p []byte) {
		was := bytes.Clone(p)
		r, err := pack.NewReader(pack.Encoding(enc), typed, p[:len(p):len(p)])
		if err != nil {
			if !errors.Is(err, pack.ErrDamaged) || r != nil {
				t.Fatalf("got %v, %v", r, err)
			}
			return
		}
		for range 2 {
			drain(t, r)
			r.Rewind()
		}
		b := buffer(pack.Encoding(enc), typed)
		try.OK(t, errors.Join(b.PackMessageBody(r), b.PackMessage(r)))
		q := try.Get(b.AppendTo(nil))(t)
		if r, err = pack.NewReader(pack.Encoding(enc), typed, q); err != nil {
			t.Fatalf("a message packed from one that was read: %v", err)
		}
		drain(t, r)
		if !bytes.Equal(p, was) {
			t.Fatal("the message has been written to")
		}
	})
}

// payload returns a message of steps, or nil if they cannot be packed with enc.
func payload(enc pack.Encoding, typed bool, steps []step) []byte {
	b := buffer(enc, typed)
	for _, s := range steps {
		if s.pack(b) != nil {
			return nil
		}
	}
	p, _ := b.AppendTo(nil)
	return p
}
