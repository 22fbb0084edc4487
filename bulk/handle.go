// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"fmt"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
)

// Rights says what a target may do with a region.
type Rights uint8

// Rights of regions and handles.
const (
	ReadOnly  Rights = 1 << iota // pull and view
	WriteOnly                    // push
	ReadWrite = ReadOnly | WriteOnly
)

// String returns the name of the rights.
func (r Rights) String() string {
	switch r {
	case ReadOnly:
		return "read-only"
	case WriteOnly:
		return "write-only"
	case ReadWrite:
		return "read-write"
	}
	return fmt.Sprintf("Rights(%d)", uint8(r))
}

func (r Rights) isValid() bool { return r != 0 && r&^ReadWrite == 0 }

// MaxNarrow is how many times a handle can be narrowed, by all its holders in sequence.
const MaxNarrow = 4

// A Handle names memory of another context, or of this one. It is a value of fixed size that is
// sent in messages and in arguments of calls: for package codec it is raw alone and in raw structs,
// and a text within other values. Any process that has the handle can use it until the region is
// revoked. It contains a key, so print it nowhere. The zero Handle names nothing.
//
// The key is computed from the memory, the range, the rights, and the secret of the origin's
// endpoint, which never leaves the process. A holder that narrows a handle computes the next key
// from the last one. The reverse is not possible, so a handle that was narrowed and passed on
// cannot be widened. The origin repeats the steps and compares the keys.
type Handle struct {
	origin rocl.GID
	region uint64
	key    [keyLen]byte
	depth  uint8 // steps[depth] is what the handle allows
	steps  [1 + MaxNarrow]step
}

const keyLen = 16

// A step is a range of a region and the rights to it.
type step struct {
	Off, Len uint64 // from the beginning of the region
	Rights   Rights
}

// isWithin reports whether s allows no more than o does.
func (s step) isWithin(o step) bool {
	return s.Off >= o.Off && s.Off-o.Off <= o.Len && s.Len <= o.Len-(s.Off-o.Off) && s.Rights&^o.Rights == 0
}

// firstKey returns the key of a handle of the whole region.
func firstKey(secret *[sha256.Size]byte, region uint64, s step) [keyLen]byte {
	p := make([]byte, 0, 64)
	p = append(p, secret[:]...)
	p = binary.LittleEndian.AppendUint64(p, region)
	return s.hash(p)
}

// hash returns the key that follows from the bytes p and the step.
func (s step) hash(p []byte) (key [keyLen]byte) {
	p = binary.LittleEndian.AppendUint64(p, s.Off)
	p = binary.LittleEndian.AppendUint64(p, s.Len)
	sum := sha256.Sum256(append(p, byte(s.Rights)))
	copy(key[:], sum[:])
	return key
}

// last returns the range and the rights of the handle. It returns the zero step if the handle is
// malformed.
func (h *Handle) last() step {
	if int(h.depth) >= len(h.steps) {
		return step{}
	}
	return h.steps[h.depth]
}

// Origin returns the identifier of the endpoint to whose memory the handle belongs.
func (h Handle) Origin() rocl.GID { return h.origin }

// Len returns the number of bytes that the handle names.
func (h Handle) Len() int64 { return int64(h.last().Len) }

// Rights returns the rights of the handle.
func (h Handle) Rights() Rights { return h.last().Rights }

// IsZero reports whether the handle names nothing.
func (h Handle) IsZero() bool { return h == Handle{} }

// String describes the memory, without the key.
func (h Handle) String() string {
	return fmt.Sprintf("region %d of %v, %d bytes, %v", h.region, h.origin, h.Len(), h.Rights())
}

// Slice returns a handle of the n bytes from off. Offsets of transfers with it count from there. It
// fails with ErrRange if the bytes are not within h, and with ErrNarrow.
func (h Handle) Slice(off, n int64) (Handle, error) {
	s := h.last()
	if !isWithin(off, n, int64(s.Len)) {
		return Handle{}, fmt.Errorf("bulk: slice %d bytes at %d of %v: %w", n, off, h, ErrRange)
	}
	return h.narrow(step{s.Off + uint64(off), uint64(n), s.Rights})
}

// Narrow returns a handle of the same memory with the rights r. It fails with ErrRights if r is
// invalid or allows more than h, and with ErrNarrow.
func (h Handle) Narrow(r Rights) (Handle, error) {
	s := h.last()
	if !r.isValid() || r&^s.Rights != 0 {
		return Handle{}, fmt.Errorf("bulk: narrow %v to %v: %w", h, r, ErrRights)
	}
	return h.narrow(step{s.Off, s.Len, r})
}

func (h Handle) narrow(s step) (Handle, error) {
	switch {
	case s == h.last():
		return h, nil
	case int(h.depth) >= MaxNarrow:
		return Handle{}, fmt.Errorf("bulk: narrow %v: %w: %d times", h, ErrNarrow, MaxNarrow)
	}
	h.depth++
	h.steps[h.depth] = s
	h.key = s.hash(append(make([]byte, 0, 64), h.key[:]...))
	return h, nil
}

// verify reports whether the key follows from the secret by the steps of the handle, each of which
// allows no more than the one before.
func (h *Handle) verify(secret *[sha256.Size]byte) bool {
	if int(h.depth) >= len(h.steps) {
		return false
	}
	key, p := firstKey(secret, h.region, h.steps[0]), make([]byte, 0, 64)
	for i := range h.depth {
		if !h.steps[i+1].isWithin(h.steps[i]) {
			return false
		}
		key = h.steps[i+1].hash(append(p, key[:]...))
	}
	return subtle.ConstantTimeCompare(key[:], h.key[:]) == 1
}

// rawHandle is a Handle without its methods, so that codec encodes it as it lies in memory.
type rawHandle Handle

// MarshalText encodes the handle as printable text, key included.
func (h Handle) MarshalText() ([]byte, error) {
	p, err := codec.Append(nil, (*rawHandle)(&h))
	if err != nil {
		return nil, err
	}
	return base64.RawURLEncoding.AppendEncode(nil, p), nil
}

// UnmarshalText decodes what MarshalText has encoded. It fails with rocl.ErrValue for any other
// text.
func (h *Handle) UnmarshalText(text []byte) error {
	p, err := base64.RawURLEncoding.AppendDecode(nil, text)
	if err != nil {
		return fmt.Errorf("bulk: decode a handle: %w: %w", rocl.ErrValue, err)
	}
	if err := codec.Decode(p, (*rawHandle)(h)); err != nil {
		return fmt.Errorf("bulk: decode a handle: %w", err)
	}
	return nil
}
