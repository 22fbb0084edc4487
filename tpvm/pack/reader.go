// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"fmt"
	"unsafe"
)

// A Reader unpacks a message. It refers to the message's memory. A Reader must not be used by
// several goroutines at the same time.
type Reader struct {
	enc   Encoding
	typed bool
	whole []byte // the message
	data  []byte // its values
	off   int    // of the next value
	desc  []byte // typed: the description of the spans after cur
	cur   span   // typed: the rest of the span at off
	env   Envelope
}

// NewReader returns a Reader of a message that Buffer.Encode wrote. enc and typed are the Buffer's
// Encoding and Typed. data must not change while the Reader is in use. NewReader fails with
// ErrDamaged if enc does not exist, or if a typed message does not agree with its description.
func NewReader(enc Encoding, typed bool, data []byte) (*Reader, error) {
	r := new(Reader)
	if err := r.Init(enc, typed, data); err != nil {
		return nil, err
	}
	return r, nil
}

// Init makes r a Reader of another message, as NewReader does. If Init fails, r is a Reader of an
// empty message.
func (r *Reader) Init(enc Encoding, typed bool, data []byte) error {
	*r = Reader{}
	if enc >= encodings {
		return fmt.Errorf("%w: %v", ErrDamaged, enc)
	}
	if typed {
		body, desc, err := splitTyped(data, enc == Default)
		if err != nil {
			return err
		}
		*r = Reader{enc: enc, typed: true, whole: data, data: body, desc: desc}
		return nil
	}
	r.enc, r.whole, r.data = enc, data, data
	return nil
}

// Rewind makes r unpack its message from the beginning.
func (r *Reader) Rewind() {
	r.off, r.cur = 0, span{}
	if r.typed {
		r.desc = r.whole[len(r.data) : len(r.whole)-trailer]
	}
}

// Encoding returns the encoding of the message.
func (r *Reader) Encoding() Encoding { return r.enc }

// Typed reports whether the message ends with a description of its types.
func (r *Reader) Typed() bool { return r.typed }

// Payload returns the whole message, as Encode wrote it. It is the memory that r reads.
func (r *Reader) Payload() []byte { return r.whole }

// Remaining returns the number of bytes of the values that have not been unpacked.
func (r *Reader) Remaining() int { return len(r.data) - r.off }

// Unpack unpacks values into v[0], v[stride], v[2*stride] and so on. The values must have been
// packed as the same PVM type, but not necessarily by one Pack or with the same stride. Bytes of
// encoding Default must be unpacked in the groups in which they were packed.
//
// Unpack fails with ErrNoData if the message has fewer values left, and with ErrBadParam if stride
// is not positive. It fails with ErrType if the values are of another type, which only typed
// messages know. After an error, the values can still be unpacked as something else.
func Unpack[T Number](r *Reader, v []T, stride int) error {
	if stride < 1 {
		return errStride(stride)
	}
	if len(v) == 0 {
		return nil
	}
	if len(v) == 1 && unpackWord(r, &v[0]) {
		return nil
	}
	return r.unpack(vectorOf(v, stride))
}

// UnpackOne unpacks one value.
func UnpackOne[T Number](r *Reader) (T, error) {
	var s [1]T
	if unpackWord(r, &s[0]) {
		return s[0], nil
	}
	err := r.unpack(vectorOf(s[:], 1))
	return s[0], err
}

// UnpackBytes fills p as Unpack does with a stride of 1.
func (r *Reader) UnpackBytes(p []byte) error { return Unpack(r, p, 1) }

// View returns the next n values, as Unpack does, without copying them if possible. It is possible
// if the encoding is Raw or InPlace, or the values are bytes, and if they lie in the message as
// this machine needs them in memory. The slice is then the memory of the message: it must not be
// written, and is valid as long as the message. Otherwise the slice is new.
func View[T Number](r *Reader, n int) ([]T, error) {
	if n < 0 {
		return nil, fmt.Errorf("%w: %d values", ErrBadParam, n)
	}
	if n == 0 {
		return nil, nil
	}
	var z T
	k := kindOf[T]()
	if err := r.check(k, n); err != nil { // check before n values are allocated
		return nil, err
	}
	if k == byteKind || r.enc != Default && isLittle() && k.size(false) == int(unsafe.Sizeof(z)) {
		p := unsafe.Pointer(unsafe.SliceData(r.data[r.off:]))
		if uintptr(p)%unsafe.Alignof(z) == 0 {
			r.skip(n, padIf(r.enc == Default, n*k.size(r.enc == Default)))
			return unsafe.Slice((*T)(p), n), nil
		}
	}
	v := make([]T, n)
	return v, r.unpack(vectorOf(v, 1))
}

// UnpackString unpacks a string that PackString packed. A zero byte at its end is left out.
func (r *Reader) UnpackString() (string, error) {
	if err := r.check(strKind, 1); err != nil {
		return "", err
	}
	s, n, err := stringAt(r.data[r.off:], r.enc == Default)
	if err != nil {
		return "", err
	}
	str := string(s)
	r.skip(1, n)
	return str, nil
}

// stringAt returns the bytes of the string at the start of p, and the number of bytes that it takes
// in p.
func stringAt(p []byte, xdr bool) (s []byte, n int, err error) {
	if len(p) < 4 {
		return nil, 0, fmt.Errorf("%w: %d bytes cannot hold a string", ErrNoData, len(p))
	}
	n = getInt(p, xdr)
	switch p = p[4:]; {
	case n < 0:
		return nil, 0, fmt.Errorf("%w: the string has %d bytes", ErrDamaged, n)
	case n > len(p):
		return nil, 0, fmt.Errorf("%w: the string has %d bytes, and %d are left", ErrNoData, n, len(p))
	}
	if s = p[:n]; n > 0 && s[n-1] == 0 {
		s = s[:n-1]
	}
	return s, 4 + min(padIf(xdr, n), len(p)), nil
}

// unpack unpacks the values of x.
func (r *Reader) unpack(x vector) error {
	xdr, n := r.enc == Default, x.count()
	if err := r.check(x.k, n); err != nil {
		return err
	}
	if !r.typed {
		size := n * x.k.size(xdr)
		if !x.get(r.data[r.off:r.off+size], x.k, xdr) {
			return errHalf(x)
		}
		r.skip(n, padIf(xdr, size))
		return nil
	}
	was := *r
	for done := 0; done < n; {
		r.fill()
		part := min(n-done, r.cur.n)
		size := part * r.cur.k.size(xdr)
		if !x.from(done).first(part).get(r.data[r.off:r.off+size], r.cur.k, xdr) {
			*r = was
			return errHalf(x)
		}
		r.skip(part, padIf(xdr, size))
		done += part
	}
	return nil
}

// fill makes cur the next span if cur has no values left. There must be a next span.
func (r *Reader) fill() {
	if r.cur.n == 0 {
		r.cur, r.desc, _ = nextSpan(r.desc)
	}
}

// skip advances r by n values, which take size bytes. The padding after the last value may be
// missing.
func (r *Reader) skip(n, size int) {
	r.off = min(r.off+size, len(r.data))
	for r.typed && n > 0 {
		r.fill()
		part := min(n, r.cur.n)
		r.cur.n -= part
		n -= part
	}
}

// check returns an error unless the next n values are of kind k.
func (r *Reader) check(k kind, n int) error {
	if r.typed {
		return r.checkTyped(k, n)
	}
	if size := k.size(r.enc == Default); size > 0 && n > (len(r.data)-r.off)/size {
		return fmt.Errorf("%w: %d %v of %d bytes in %d", ErrNoData, n, k, size, len(r.data)-r.off)
	}
	return nil
}

// checkTyped is check for a typed message.
func (r *Reader) checkTyped(k kind, n int) error {
	cur, desc, whole := r.cur, r.desc, r.cur.n == 0
	for want := n; ; {
		if cur.n == 0 {
			if len(desc) == 0 {
				return fmt.Errorf("%w: %d of %d %v are left", ErrNoData, n-want, n, k)
			}
			cur, desc, _ = nextSpan(desc)
		}
		if cur.k.plain() != k {
			return fmt.Errorf("%w: %d %v, but value %d was packed as %v", ErrType, n, k, n-want+1, cur.k)
		}
		if k == byteKind && r.enc == Default && (cur.n != n || !whole) {
			if n > cur.n && len(desc) == 0 {
				return fmt.Errorf("%w: %d of %d bytes are left", ErrNoData, cur.n, n)
			}
			return fmt.Errorf("%w: %d bytes, but %d were packed at once", ErrType, n, cur.n)
		}
		if cur.n >= want {
			return nil
		}
		want -= cur.n
		cur.n = 0
	}
}

func errHalf(x vector) error {
	return fmt.Errorf("%w: %d %v do not all fit into an int of this machine", ErrOverflow, x.count(), x.k)
}
