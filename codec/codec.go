// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/rocl-go/rocl/internal/sentinel"
)

// ErrValue is matched by the errors for values that cannot be encoded, and for payloads that cannot
// be decoded.
var ErrValue = sentinel.ErrValue

// A Codec is a program's own format for values of type T. The payload of a message is exactly what
// Append appends. The methods may be called concurrently.
type Codec[T any] interface {
	// Append appends v to p and returns the extended slice, as append does. It must not keep p. If
	// p has room, the payload is not copied.
	Append(p []byte, v T) ([]byte, error)
	// Decode returns the value of the payload p. The value must not refer to the memory of p. A
	// payload comes from another process, so it may be any bytes.
	Decode(p []byte) (T, error)
}

// headLen is the length of the head that names the type of a raw value.
const headLen = 8

// Size returns how many bytes Append will append for v. For values other than bytes, strings and
// raw ones it is an estimate.
func Size[T any](v *T) int {
	pl := planOf[T]()
	at := unsafe.Pointer(v)
	switch pl.format {
	case asBytes:
		return len(*(*[]byte)(at))
	case asString:
		return len(*(*string)(at))
	case asRaw:
		return headLen + pl.size
	case asSlice:
		if n := len(*(*[]byte)(at)); n <= maxLen/pl.size {
			return headLen + n*pl.size
		}
		return maxLen
	}
	return int(pl.lately.Load())
}

// maxLen is a length that no message reaches.
const maxLen = 1<<31 - 1

// Append appends the encoding of v to p and returns the extended slice. If p has room, the result
// lies there. If values of T, or this value, cannot be encoded, Append returns nil and an error
// that matches ErrValue.
func Append[T any](p []byte, v *T) ([]byte, error) {
	pl := planOf[T]()
	at := unsafe.Pointer(v)
	switch pl.format {
	case asBytes:
		return append(p, *(*[]byte)(at)...), nil
	case asString:
		return append(p, *(*string)(at)...), nil
	case asRaw:
		p, to := extend(p, headLen+pl.size)
		binary.LittleEndian.PutUint64(to, pl.head)
		pl.encode(to[headLen:], at, 1)
		return p, nil
	case asSlice:
		s := (*sliceHeader)(at)
		if s.len > maxLen/pl.size {
			return nil, fmt.Errorf("%w: encode %v: %d elements are too many for a message", ErrValue, reflect.TypeFor[T](), s.len)
		}
		p, to := extend(p, headLen+s.len*pl.size)
		binary.LittleEndian.PutUint64(to, pl.head)
		pl.encode(to[headLen:], s.data, s.len)
		return p, nil
	case asCBOR:
		own := *v // a copy, so that v can stay on the caller's stack
		return pl.appendCBOR(p, &own)
	}
	return nil, pl.err
}

// extend makes p longer by n bytes. It returns the longer slice and its last n bytes.
func extend(p []byte, n int) (whole, added []byte) {
	had := len(p)
	if cap(p)-had < n {
		p = append(p[:had:had], make([]byte, n)...)
	}
	p = p[:had+n]
	return p, p[had:]
}

// Decode reads a value that Append has encoded. If Decode fails, the error matches ErrValue and v
// is not changed.
func Decode[T any](p []byte, v *T) error {
	pl := planOf[T]()
	at := unsafe.Pointer(v)
	switch pl.format {
	case asBytes:
		*(*[]byte)(at) = append([]byte(nil), p...)
		return nil
	case asString:
		*(*string)(at) = string(p)
		return nil
	case asRaw:
		if len(p) != headLen+pl.size || binary.LittleEndian.Uint64(p) != pl.head {
			return wrong(p, pl)
		}
		if !pl.hasChecks {
			pl.decode(at, p[headLen:], 1)
			return nil
		}
		var own T
		if !pl.decode(unsafe.Pointer(&own), p[headLen:], 1) {
			return pl.corrupt()
		}
		*v = own
		return nil
	case asSlice:
		if len(p) < headLen || binary.LittleEndian.Uint64(p) != pl.head || (len(p)-headLen)%pl.size != 0 {
			return wrong(p, pl)
		}
		n := (len(p) - headLen) / pl.size
		if n == 0 {
			*(*sliceHeader)(at) = sliceHeader{}
			return nil
		}
		// Elements have no pointers and are aligned to at most 8 bytes.
		mem := make([]uint64, (n*pl.memSize+7)/8)
		if !pl.decode(unsafe.Pointer(&mem[0]), p[headLen:], n) {
			return pl.corrupt()
		}
		*(*sliceHeader)(at) = sliceHeader{unsafe.Pointer(&mem[0]), n, n}
		return nil
	case asCBOR:
		own := new(T)
		if err := pl.decodeCBOR(p, own); err != nil {
			return err
		}
		*v = *own
		return nil
	}
	return pl.err
}

// sliceHeader is the form of a slice in memory.
type sliceHeader struct {
	data     unsafe.Pointer
	len, cap int
}

// wrong returns an error that says why p cannot be decoded by pl.
func wrong(p []byte, pl *plan) error {
	what := "is of no known format"
	switch {
	case len(p) == 0:
		what = "is empty"
	case len(p) >= len(selfDescribed) && string(p[:len(selfDescribed)]) == selfDescribed:
		what = "is CBOR"
	case p[0] != byte(asRaw) && p[0] != byte(asSlice):
	case len(p) >= headLen && binary.LittleEndian.Uint64(p) == pl.head:
		what = "is too short or too long"
	case len(p) < headLen:
		what = "is too short"
	case p[0] == byte(asRaw):
		what = "is a raw value of another type"
	default:
		what = "is a slice of raw values of another type"
	}
	return fmt.Errorf("%w: decode %v: the payload of %d bytes %s", ErrValue, pl.name(), len(p), what)
}
