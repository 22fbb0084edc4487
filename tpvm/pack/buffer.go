// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"

	"github.com/rocl-go/rocl"
)

// maxMessage is the size in bytes of the largest message, as in package rocl.
const maxMessage = math.MaxInt32

// An Option changes one default of NewBuffer.
type Option func(*Buffer)

// WithTypes makes the message typed: it ends with a description of the types of its values, and
// unpacking as another type fails with ErrType. The description takes about two bytes for each
// change of type. Reset keeps this option.
func WithTypes() Option { return func(b *Buffer) { b.typed = true } }

// A Buffer is a message that is being packed. The zero Buffer is empty and of encoding Default. A
// Buffer must not be used by several goroutines at the same time.
type Buffer struct {
	enc   Encoding
	typed bool
	data  []byte // encoded values; InPlace: the parts that do not lie in the caller's memory
	items []item // InPlace: the parts of the message, in order
	size  int    // bytes of the encoded values
	spans []span // typed: the kinds and counts of the packed values
}

// An item is a part of a message of encoding InPlace: values of the caller, a rocl.Buffer, or a
// part of the Buffer's data.
type item struct {
	x      vector       // values of the caller, or
	buf    *rocl.Buffer // a buffer, or
	lo, hi int          // a part of data
}

// A span is a number of values of one kind, in the description of a typed message.
type span struct {
	k kind
	n int
}

// NewBuffer returns an empty Buffer.
func NewBuffer(enc Encoding, opts ...Option) *Buffer {
	b := &Buffer{enc: enc}
	for _, o := range opts {
		if o != nil {
			o(b)
		}
	}
	return b
}

// Reset empties b for a message of encoding enc. b keeps its memory, so packing a message of the
// same size again does not allocate. b drops its references to the caller's values, and releases
// each rocl.Buffer that was packed.
func (b *Buffer) Reset(enc Encoding) {
	for i := range b.items {
		if m := b.items[i].buf; m != nil {
			m.Release()
		}
	}
	clear(b.items)
	b.enc, b.data, b.items, b.spans, b.size = enc, b.data[:0], b.items[:0], b.spans[:0], 0
}

// Encoding returns the encoding of the message.
func (b *Buffer) Encoding() Encoding { return b.enc }

// Typed reports whether the message ends with a description of its types.
func (b *Buffer) Typed() bool { return b.typed }

// Len returns the number of bytes of the packed values, without the description of a typed message.
func (b *Buffer) Len() int { return b.size }

// Size returns the number of bytes of the whole message, which Encode writes.
func (b *Buffer) Size() int {
	if !b.typed {
		return b.size
	}
	return b.size + descriptionSize(b.spans)
}

// Encode writes the message to the start of dst, and returns its Size. It fails with
// io.ErrShortBuffer if dst is too short. Values that were packed InPlace are read now. Encode does
// not allocate, and b may be encoded any number of times.
func (b *Buffer) Encode(dst []byte) (int, error) {
	size := b.Size()
	if len(dst) < size {
		return 0, fmt.Errorf("pack: encode %d bytes into %d: %w", size, len(dst), io.ErrShortBuffer)
	}
	if b.enc != InPlace {
		copy(dst, b.data)
	} else {
		rest := dst
		for i := range b.items {
			it, n := &b.items[i], 0
			switch {
			case it.buf != nil:
				n = copy(rest, it.buf.Bytes())
			case it.x.k != noKind:
				n = it.x.count() * it.x.k.size(false)
				it.x.put(rest[:n], it.x.k, false)
			default:
				n = copy(rest, b.data[it.lo:it.hi])
			}
			rest = rest[n:]
		}
		runtime.KeepAlive(b)
	}
	if b.typed {
		putDescription(dst[b.size:size], b.spans)
	}
	return size, nil
}

// AppendTo appends the message to dst and returns the extended slice.
func (b *Buffer) AppendTo(dst []byte) ([]byte, error) {
	n := len(dst)
	dst = slices.Grow(dst, b.Size())
	size, err := b.Encode(dst[n:cap(dst)])
	if err != nil {
		return dst[:n], err
	}
	return dst[:n+size], nil
}

// Whole returns the rocl.Buffer that is the whole message. It reports false unless the message is
// exactly one rocl.Buffer that was packed InPlace by PackBuffer, and untyped. Such a message can be
// sent without a copy. The reference stays b's: a caller that sends the rocl.Buffer calls Retain
// first.
func (b *Buffer) Whole() (*rocl.Buffer, bool) {
	if b.typed || len(b.items) != 1 || b.items[0].buf == nil {
		return nil, false
	}
	return b.items[0].buf, true
}

// Pack appends v[0], v[stride], v[2*stride] and so on to the message. A stride of 1 packs all of v.
// With encoding InPlace, v must not change until the message has been sent.
//
// Pack fails with ErrBadParam if stride is not positive. It fails with ErrOverflow if a long does
// not fit into the four bytes of a long in encoding Default; typed messages have no such limit. A
// Pack that fails packs nothing.
func Pack[T Number](b *Buffer, v []T, stride int) error {
	if stride < 1 {
		return errStride(stride)
	}
	if len(v) == 1 && packWord(b, &v[0]) {
		return nil
	}
	return b.packSlice(vectorOf(v, stride))
}

// PackOne packs one value. It keeps no reference to the value, whatever the encoding is.
func PackOne[T Number](b *Buffer, v T) error {
	if packWord(b, &v) {
		return nil
	}
	s := [1]T{v}
	return b.pack(vectorOf(s[:], 1))
}

// PackBytes packs p as Pack does with a stride of 1.
func (b *Buffer) PackBytes(p []byte) error { return Pack(b, p, 1) }

// PackString packs a string in the form that a C program reads: its length as an int, its bytes,
// and a zero byte, which the length counts. For a C program, the string ends at its first zero
// byte.
func (b *Buffer) PackString(s string) error {
	if len(s) > maxMessage-8 {
		return b.tooLarge(len(s))
	}
	xdr := b.enc == Default
	n := 4 + len(s) + 1
	if xdr {
		n = padded(n)
	}
	p, err := b.grow(n)
	if err != nil {
		return err
	}
	b.add(span{strKind, 1})
	putInt(p, len(s)+1, xdr)
	clear(p[4+copy(p[4:], s):])
	return nil
}

// PackBuffer packs the bytes of m, as PackBytes does. With encoding InPlace, b takes its own
// reference to m, which Reset releases; see Whole.
func (b *Buffer) PackBuffer(m *rocl.Buffer) error {
	if b.enc != InPlace || m.Len() == 0 {
		return b.PackBytes(m.Bytes())
	}
	if err := b.refer(item{buf: m}, m.Len(), span{byteKind, m.Len()}); err != nil {
		return err
	}
	m.Retain()
	return nil
}

// packSlice packs x, to which b refers with encoding InPlace.
func (b *Buffer) packSlice(x vector) error {
	if x.n == 0 {
		return b.valid()
	}
	if b.enc != InPlace {
		return b.pack(x)
	}
	size, err := b.sizeOf(x.k, x.count())
	if err != nil {
		return err
	}
	return b.refer(item{x: x}, size, span{x.k, x.count()})
}

// pack encodes x, and keeps no reference to it.
func (b *Buffer) pack(x vector) error {
	k, n, xdr := x.k, x.count(), b.enc == Default
	if xdr && (k == longKind || k == ulongKind) && !x.fits() {
		if !b.typed {
			what := fmt.Sprintf("a %v does not fit", k)
			if n > 1 {
				what = fmt.Sprintf("one of %d %vs does not fit", n, k)
			}
			return fmt.Errorf("%w: %s into four bytes; pack it Raw, InPlace or into a typed message", ErrOverflow, what)
		}
		if k = hyperKind; x.k == ulongKind {
			k = uhyperKind
		}
	}
	size, err := b.sizeOf(k, n)
	if err != nil {
		return err
	}
	p, err := b.grow(padIf(xdr, size))
	if err != nil {
		return err
	}
	b.add(span{k, n})
	x.put(p[:size], k, xdr)
	clear(p[size:])
	return nil
}

// sizeOf returns the bytes of n values of kind k, without padding. It fails if they do not fit into
// a message.
func (b *Buffer) sizeOf(k kind, n int) (int, error) {
	size := k.size(b.enc == Default)
	if n > (maxMessage-3)/size {
		return 0, b.tooLarge(n)
	}
	return n * size, nil
}

// padIf returns n, rounded up to a multiple of four if xdr is set.
func padIf(xdr bool, n int) int {
	if xdr {
		return padded(n)
	}
	return n
}

// grow adds n bytes to data, and returns them for the caller to write.
func (b *Buffer) grow(n int) ([]byte, error) {
	if err := b.checkFits(n); err != nil {
		return nil, err
	}
	lo := len(b.data)
	if cap(b.data)-lo < n {
		b.data = slices.Grow(b.data, n)
	}
	b.data = b.data[:lo+n]
	if b.enc == InPlace {
		if last := len(b.items) - 1; last >= 0 && b.items[last].isData() {
			b.items[last].hi += n
		} else {
			b.items = append(b.items, item{lo: lo, hi: lo + n})
		}
	}
	b.size += n
	return b.data[lo:], nil
}

// isData reports whether it is a part of the Buffer's data.
func (it *item) isData() bool { return it.buf == nil && it.x.k == noKind }

// refer adds an item of n bytes, and adds the span to the description.
func (b *Buffer) refer(it item, n int, r span) error {
	if err := b.checkFits(n); err != nil {
		return err
	}
	b.items = append(b.items, it)
	b.size += n
	b.add(r)
	return nil
}

// add adds a span to the description of a typed message. A span of the same kind as the last one
// becomes a part of that, except bytes of encoding Default, which are padded each time.
func (b *Buffer) add(r span) {
	if !b.typed {
		return
	}
	if last := len(b.spans) - 1; last >= 0 && b.spans[last].k == r.k && (r.k != byteKind || b.enc != Default) {
		b.spans[last].n += r.n
		return
	}
	b.spans = append(b.spans, r)
}

// valid returns an error if the encoding does not exist.
func (b *Buffer) valid() error {
	if b.enc >= encodings {
		return fmt.Errorf("%w: %v", ErrBadParam, b.enc)
	}
	return nil
}

// checkFits returns an error if n more bytes do not fit into a message.
func (b *Buffer) checkFits(n int) error {
	if err := b.valid(); err != nil {
		return err
	}
	if n < 0 || n > maxMessage-b.size {
		return b.tooLarge(n)
	}
	return nil
}

func (b *Buffer) tooLarge(n int) error {
	return fmt.Errorf("pack: add %d bytes to a message of %d bytes: %w", n, b.size, rocl.ErrTooLarge)
}

func errStride(stride int) error {
	return fmt.Errorf("%w: the stride is %d", ErrBadParam, stride)
}

// putInt writes n as a PVM int.
func putInt(p []byte, n int, xdr bool) {
	if xdr {
		binary.BigEndian.PutUint32(p, uint32(n))
	} else {
		binary.LittleEndian.PutUint32(p, uint32(n))
	}
}

// getInt reads a PVM int.
func getInt(p []byte, xdr bool) int {
	if xdr {
		return int(int32(binary.BigEndian.Uint32(p)))
	}
	return int(int32(binary.LittleEndian.Uint32(p)))
}
