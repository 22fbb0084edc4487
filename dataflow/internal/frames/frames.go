// SPDX-License-Identifier: Apache-2.0

// Package frames is the form in which the items of a batch cross from one group to another.
//
// One item is what package codec, or the program's own codec, makes of it. Several items are one
// slice for package codec, if it encodes the elements of slices raw or as CBOR. Bytes, strings and
// items with a codec of the program lie behind their lengths, in four bytes each. An item that is
// a *rocl.Buffer is a message of its own, whose payload is the buffer.
package frames

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/codec"
)

// ErrCodec is returned if a codec of the program panics, or breaks the rules of rocl.Codec.
var ErrCodec = errors.New("dataflow: a codec has failed")

const (
	headLen   = 8 // of values and slices that package codec encodes raw
	isRaw     = 1 // the first byte of a raw value
	lengthLen = 4
	mostSmall = 2 << 10 // a message up to this length is copied behind others in any case
)

// A Format is the form of items of type T. Its methods are for one goroutine at a time.
type Format[T any] struct {
	own       rocl.Codec[T] // nil for package codec
	isBuffer  bool          // T is *rocl.Buffer
	hasLength bool          // each item of a batch lies behind its length
	fixed     int           // the size of each item if package codec encodes it raw, else 0
	scratch   []byte
	counts    []byte
	sent      atomic.Uint64
}

// Sent returns how many bytes Send has sent. It may be called concurrently.
func (f *Format[T]) Sent() uint64 { return f.sent.Load() }

// New returns the format of items of type T, with the program's own codec if that is not nil.
func New[T any](own rocl.Codec[T]) *Format[T] {
	t := reflect.TypeFor[T]()
	f := &Format[T]{
		own:      own,
		isBuffer: own == nil && t == reflect.TypeFor[*rocl.Buffer](),
		hasLength: own != nil || t.Kind() == reflect.String ||
			t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8,
	}
	var zero T
	if p, err := codec.Append(nil, &zero); !f.hasLength && err == nil && len(p) > headLen && p[0] == isRaw {
		f.fixed = len(p) - headLen
	}
	return f
}

// Fixed returns how many bytes each item of a batch takes, and 0 if that differs among items.
func (f *Format[T]) Fixed() int { return f.fixed }

// Size returns how many bytes an item takes. For items with a codec of the program it is unknown,
// and 0. It may be called concurrently.
func (f *Format[T]) Size(v T) int {
	switch {
	case f.own != nil:
		return 0
	case f.isBuffer:
		return asBuffer(&v).Len()
	}
	return codec.Size(&v)
}

// asBuffer returns an item whose type is *rocl.Buffer. It is nil for other types.
func asBuffer[T any](v *T) *rocl.Buffer {
	if b, ok := any(v).(**rocl.Buffer); ok {
		return *b
	}
	return nil
}

// Discard releases the buffers among items that no node will get.
func Discard[T any](items []T) {
	if reflect.TypeFor[T]() != reflect.TypeFor[*rocl.Buffer]() {
		return
	}
	for i := range items {
		if b := asBuffer(&items[i]); b != nil {
			b.Release()
		}
	}
}

// Origins of items: a sender with several inputs tells from which of them it made an item. The tag
// of one item has the number of the input in its highest 16 bits, and 0 if it has none. The tag of
// several items has there how many counts of four bytes lie behind the items: how many have no
// input, how many are of input 1, and so on.
const (
	originShift = 48
	countLen    = 4
	// MostOrigins is how many inputs can be told apart.
	MostOrigins = 1<<16 - 2
)

func originOf(tag uint64, n uint16) uint64 { return tag | uint64(n)<<originShift }

// countOrigins returns the counts that lie behind several items.
func (f *Format[T]) countOrigins(origins []uint16) []byte {
	n := countLen * (int(slices.Max(origins)) + 1)
	f.counts = slices.Grow(f.counts[:0], n)[:n]
	clear(f.counts)
	for _, i := range origins {
		at := f.counts[countLen*int(i):]
		binary.LittleEndian.PutUint32(at, binary.LittleEndian.Uint32(at)+1)
	}
	return f.counts
}

// Origins adds the origins of the items of a message to counts, by their inputs from 1, and returns
// the payload without them.
func Origins(m *rocl.Message, isOne bool, counts []atomic.Uint64) ([]byte, error) {
	p, n := m.Bytes(), int(m.Tag()>>originShift)
	switch {
	case n == 0:
	case isOne && n < len(counts):
		counts[n].Add(1)
	case !isOne && n <= len(counts) && n*countLen <= len(p):
		tail := p[len(p)-n*countLen:]
		for i := range n {
			counts[i].Add(uint64(binary.LittleEndian.Uint32(tail[countLen*i:])))
		}
		p = p[:len(p)-len(tail)]
	default:
		return nil, fmt.Errorf("%w: origins of more than %d inputs", codec.ErrValue, len(counts))
	}
	return p, nil
}

// Send sends items from one resource to another: as one message with the tag one if there is one
// item, as messages with the tag one if they are buffers, and otherwise as a message with the tag
// many. Buffers belong to Send, whether it fails or not. origins is nil, or has the origin of each
// item.
func (f *Format[T]) Send(ctx context.Context, from *rocl.Resource, to rocl.GID, one, many uint64, items []T, origins []uint16) error {
	if f.isBuffer {
		for i := range items {
			b := asBuffer(&items[i])
			if b == nil {
				Discard(items[i:])
				return fmt.Errorf("%w: the item is a nil buffer", codec.ErrValue)
			}
			n, tag := b.Len(), one
			if origins != nil {
				tag = originOf(one, origins[i])
			}
			if err := from.Send(ctx, to, tag, b); err != nil {
				Discard(items[i:])
				return err
			}
			f.sent.Add(uint64(n))
		}
		return nil
	}
	tag, tail := many, []byte(nil)
	switch {
	case len(items) == 1 && len(origins) == 1:
		tag = originOf(one, origins[0])
	case len(items) == 1:
		tag = one
	case origins != nil:
		tail = f.countOrigins(origins)
		tag = originOf(many, uint16(len(tail)/countLen))
	}
	size := f.sizeOf(items) + len(tail)
	if size <= mostSmall {
		p, err := f.append(f.scratch[:0], items)
		if err != nil {
			return err
		}
		p = append(p, tail...)
		if cap(p) <= 2*mostSmall {
			f.scratch = p
		}
		f.sent.Add(uint64(len(p)))
		return from.SendBytes(ctx, to, tag, p)
	}
	b, err := f.buffer(ctx, from.Context(), items, tail, size)
	if err != nil {
		return err
	}
	f.sent.Add(uint64(b.Len()))
	if err := from.Send(ctx, to, tag, b); err != nil {
		b.Release()
		return err
	}
	return nil
}

// sizeOf estimates how many bytes the items take together.
func (f *Format[T]) sizeOf(items []T) int {
	switch {
	case f.own != nil:
		return 256 * len(items)
	case len(items) == 1:
		return codec.Size(&items[0])
	case !f.hasLength:
		return codec.Size(&items)
	}
	n := 0
	for i := range items {
		n += lengthLen + codec.Size(&items[i])
	}
	return n
}

// buffer returns a pooled buffer with the items and what lies behind them, about size bytes.
func (f *Format[T]) buffer(ctx context.Context, c *rocl.Context, items []T, tail []byte, size int) (*rocl.Buffer, error) {
	b, err := c.BufferWait(ctx, size)
	if err != nil {
		return nil, err
	}
	if err := b.Resize(b.Cap()); err != nil {
		b.Release()
		return nil, err
	}
	mem := b.Bytes()
	p, err := f.append(mem[:0], items)
	if err != nil {
		b.Release()
		return nil, err
	}
	p = append(p, tail...)
	if len(p) != 0 && (len(p) > len(mem) || &p[0] != &mem[0]) { // the items are longer than the estimate
		b.Release()
		if b, err = c.BufferWait(ctx, len(p)); err != nil {
			return nil, err
		}
		copy(b.Bytes(), p)
		return b, nil
	}
	return b, b.Resize(len(p))
}

// append appends the items to p: the value of one item, or a batch of several.
func (f *Format[T]) append(p []byte, items []T) ([]byte, error) {
	if len(items) == 1 {
		return f.appendOne(p, &items[0])
	}
	return f.AppendMany(p, items)
}

// AppendMany appends a batch to p, which Many decodes. The items are no buffers.
func (f *Format[T]) AppendMany(p []byte, items []T) ([]byte, error) {
	if !f.hasLength {
		return codec.Append(p, &items)
	}
	for i := range items {
		at := len(p)
		var err error
		if p, err = f.appendOne(append(p, 0, 0, 0, 0), &items[i]); err != nil {
			return nil, err
		}
		binary.LittleEndian.PutUint32(p[at:], uint32(len(p)-at-lengthLen))
	}
	return p, nil
}

// appendOne appends one item to p.
func (f *Format[T]) appendOne(p []byte, v *T) (q []byte, err error) {
	if f.own == nil {
		return codec.Append(p, v)
	}
	defer recovered(&err)
	if q, err = f.own.Append(p, *v); err == nil && len(q) < len(p) {
		err = fmt.Errorf("%w: Append has returned %d bytes for a slice of %d", ErrCodec, len(q), len(p))
	}
	return q, err
}

// recovered makes an error of a panic of the program's codec.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = fmt.Errorf("%w: it has panicked: %v", ErrCodec, v)
	}
}

// One decodes into v the item of a message to a resource of c. The message was sent with the tag
// one.
func (f *Format[T]) One(c *rocl.Context, m *rocl.Message, v *T) (err error) {
	if !f.isBuffer {
		return f.decodeOne(m.Bytes(), v)
	}
	b := m.Buffer()
	if b == nil { // the payload is empty
		if b, err = c.Buffer(0); err != nil {
			return err
		}
	}
	*any(v).(**rocl.Buffer) = b
	return nil
}

// decodeOne decodes one item.
func (f *Format[T]) decodeOne(p []byte, v *T) (err error) {
	if f.own == nil {
		return codec.Decode(p, v)
	}
	defer recovered(&err)
	*v, err = f.own.Decode(p)
	return err
}

// Many returns the items of a message that Send has sent with the tag many, or of AppendMany. The
// payload comes from another process and may be any bytes.
func (f *Format[T]) Many(p []byte) (items []T, err error) {
	if f.isBuffer {
		return nil, fmt.Errorf("%w: several buffers are one message", codec.ErrValue)
	}
	if !f.hasLength {
		return items, codec.Decode(p, &items)
	}
	for len(p) != 0 {
		if len(p) < lengthLen || uint64(len(p)-lengthLen) < uint64(binary.LittleEndian.Uint32(p)) {
			return nil, fmt.Errorf("%w: item %d of a batch is cut off", codec.ErrValue, len(items))
		}
		n := lengthLen + int(binary.LittleEndian.Uint32(p))
		var v T
		if err := f.decodeOne(p[lengthLen:n], &v); err != nil {
			return nil, err
		}
		items, p = append(items, v), p[n:]
	}
	return items, nil
}
