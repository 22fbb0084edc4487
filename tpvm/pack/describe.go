// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"encoding/binary"
	"fmt"
	"math"
)

// The description of a typed message follows its values. It has one byte for each span, with the
// kind in the low five bits and the count in the high three. If the count there is zero, the count
// minus 8 follows as an unsigned varint. The spans are followed by their length in bytes, in four
// bytes, low first.

const trailer = 4

// descriptionSize returns the number of bytes that putDescription writes.
func descriptionSize(spans []span) int {
	n := trailer
	for _, r := range spans {
		n++
		if r.n > 7 {
			n++
			for c := uint64(r.n-8) >> 7; c > 0; c >>= 7 {
				n++
			}
		}
	}
	return n
}

// putDescription writes the description of spans to dst, which has exactly its size.
func putDescription(dst []byte, spans []span) {
	size, rest := len(dst)-trailer, dst
	for _, r := range spans {
		if r.n <= 7 {
			rest[0] = byte(r.k) | byte(r.n)<<5
			rest = rest[1:]
			continue
		}
		rest[0] = byte(r.k)
		rest = rest[1+binary.PutUvarint(rest[1:], uint64(r.n-8)):]
	}
	binary.LittleEndian.PutUint32(rest, uint32(size))
}

// nextSpan takes the first span off a description. ok is false if desc does not begin with a span.
func nextSpan(desc []byte) (r span, rest []byte, ok bool) {
	if len(desc) == 0 {
		return span{}, nil, false
	}
	r, desc = span{kind(desc[0] & 31), int(desc[0] >> 5)}, desc[1:]
	if r.n == 0 {
		n, used := binary.Uvarint(desc)
		if used <= 0 || n > math.MaxInt32 {
			return span{}, nil, false
		}
		r.n, desc = int(n)+8, desc[used:]
		if r.n < 8 { // an int of four bytes has overflowed
			return span{}, nil, false
		}
	}
	if r.k == noKind || r.k >= kinds {
		return span{}, nil, false
	}
	return r, desc, true
}

// splitTyped splits a typed message into the values and their description, and checks that they
// agree.
func splitTyped(p []byte, xdr bool) (body, desc []byte, err error) {
	if len(p) < trailer {
		return nil, nil, fmt.Errorf("%w: %d bytes cannot hold a description of types", ErrDamaged, len(p))
	}
	p, n := p[:len(p)-trailer], binary.LittleEndian.Uint32(p[len(p)-trailer:])
	if uint64(n) > uint64(len(p)) {
		return nil, nil, fmt.Errorf("%w: the description has %d bytes, and %d are left", ErrDamaged, n, len(p))
	}
	body, desc = p[:len(p)-int(n)], p[len(p)-int(n):]
	left := body
	for d := desc; len(d) > 0; {
		r, rest, ok := nextSpan(d)
		if !ok || !xdr && (r.k == hyperKind || r.k == uhyperKind) {
			return nil, nil, fmt.Errorf("%w: the description of types is invalid", ErrDamaged)
		}
		if left, ok = skipSpan(left, r, xdr); !ok {
			return nil, nil, fmt.Errorf("%w: %d %v are not within its %d bytes", ErrDamaged, r.n, r.k, len(body))
		}
		d = rest
	}
	if len(left) > 0 {
		return nil, nil, fmt.Errorf("%w: %d of its %d bytes are not described", ErrDamaged, len(left), len(body))
	}
	return body, desc, nil
}

// skipSpan returns p without the values of r. ok is false if p does not hold them.
func skipSpan(p []byte, r span, xdr bool) (rest []byte, ok bool) {
	switch size := r.k.size(xdr); {
	case size > 0:
		if r.n > len(p)/size {
			return nil, false
		}
		n := r.n * size
		if n = padIf(xdr, n); n > len(p) {
			return nil, false
		}
		return p[n:], true
	case r.k == strKind:
		for range r.n {
			_, n, err := stringAt(p, xdr)
			if err != nil || n > len(p) {
				return nil, false
			}
			p = p[n:]
		}
	default:
		for range r.n {
			n, err := new(inner).parse(p, xdr)
			if err != nil || n > len(p) {
				return nil, false
			}
			p = p[n:]
		}
	}
	return p, true
}
