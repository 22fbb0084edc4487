// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"encoding"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/fxamacker/cbor/v2"
)

// A format is the way in which the values of a type are encoded. The numbers of raw values and
// slices are on the wire.
type format uint8

const (
	unfit    format = 0 // values of the type are not encoded
	asRaw    format = 1
	asSlice  format = 2
	asBytes  format = 3
	asString format = 4
	asCBOR   format = 5
)

// Protocol: Values
//
// Package codec encodes a value by its type:
//
// | type | payload |
// |---|---|
// | bytes, a string | the bytes |
// | raw: a bool, number, array or struct of these | head u64, then the value: little-endian, no
// padding; a bool is 0 or 1 |
// | a slice of raw elements | head u64, then the elements |
// | any other | CBOR behind the tag 55799 |
//
// The head is the FNV-1a hash, 64 bits, of the type's text, shifted left by 8, and 1 for a value or
// 2 for a slice (of the element's text). The text is `bool`, `int8` to `int64`, `uint8` to
// `uint64`, `float32`, `float64`, `complex64`, `complex128`; Go's `int` and `uint` are `int64` and
// `uint64`; `[N]` and the element's; `{` and for each field its name, a blank, its text and `;`,
// then `}`: `{A int64;B [2]float32;}`.

// A plan has the format of a type. It is made once, and then only read.
type plan struct {
	typ    reflect.Type
	of     unsafe.Pointer // the address of the type of a pointer to typ
	format format
	err    error // the reason if the type is unfit

	// For raw values, and for the elements of slices:
	text      string // the layout, whose hash is in head
	head      uint64 // first bytes of the payload, little-endian
	size      int    // bytes on the wire
	memSize   int    // bytes in memory
	isFlat    bool   // both forms have the same bytes
	hasChecks bool   // some payloads of the right length are invalid
	ops       []op

	// For CBOR:
	isOpen bool         // values may be nested to any depth, or contain themselves
	lately atomic.Int64 // recent size of an encoded value in bytes
}

var plans sync.Map // of *plan, by reflect.Type

// lately has, for each hash of a type's address, the plan that was used last. planOf looks there
// before it looks in plans, which takes ten times as long. A call of package rpc needs six plans.
var lately [64]atomic.Pointer[plan]

func planOf[T any]() *plan {
	// The type of a pointer is known without a value.
	t := reflect.TypeOf((*T)(nil))
	address := (*[2]unsafe.Pointer)(unsafe.Pointer(&t))[1]
	last := &lately[uintptr(address)>>5%uintptr(len(lately))]
	if pl := last.Load(); pl != nil && pl.of == address { // a comparison of two reflect.Type takes a call
		return pl
	}
	return planSlowly(t, address, last)
}

// planSlowly is planOf for a type whose plan is not in lately, where last is its place.
func planSlowly(t reflect.Type, address unsafe.Pointer, last *atomic.Pointer[plan]) *plan {
	pl, ok := plans.Load(t)
	if !ok {
		made := newPlan(t.Elem())
		made.of = address
		pl, _ = plans.LoadOrStore(t, made)
	}
	last.Store(pl.(*plan))
	return pl.(*plan)
}

func newPlan(t reflect.Type) *plan {
	pl := &plan{typ: t}
	switch {
	case t.Kind() == reflect.String:
		pl.format = asString
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		pl.format = asBytes
	case isRaw(t):
		pl.format = asRaw
		pl.lay(t)
	case t.Kind() == reflect.Slice && t.Elem().Size() > 0 && isRaw(t.Elem()):
		pl.format = asSlice
		pl.lay(t.Elem())
	default:
		pl.format = asCBOR
		pl.lately.Store(256)
		if pl.isOpen, pl.err = survey(t); pl.err != nil {
			pl.format = unfit
		}
	}
	return pl
}

var (
	binaryMarshaler = reflect.TypeFor[encoding.BinaryMarshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	cborMarshaler   = reflect.TypeFor[cbor.Marshaler]()
)

// has reports whether t or a pointer to t implements one of the interfaces.
func has(t reflect.Type, of ...reflect.Type) bool {
	for _, i := range of {
		if t.Implements(i) || reflect.PointerTo(t).Implements(i) {
			return true
		}
	}
	return false
}

// isRaw reports whether values of t have a fixed size and no pointers.
func isRaw(t reflect.Type) bool {
	switch k := t.Kind(); k {
	case reflect.Array:
		return isRaw(t.Elem())
	case reflect.Struct:
		for f := range t.Fields() {
			if !isRaw(f.Type) {
				return false
			}
		}
		return !has(t, binaryMarshaler, cborMarshaler)
	default:
		return k >= reflect.Bool && k <= reflect.Complex128 && k != reflect.Uintptr
	}
}

// lay sets the layout of a raw type.
func (pl *plan) lay(t reflect.Type) {
	l := layout{isBig: binary.NativeEndian.Uint16([]byte{0, 1}) == 1}
	l.add(t, 0)
	h := fnv.New64a()
	pl.text = l.text.String()
	_, _ = h.Write([]byte(pl.text))
	pl.head = h.Sum64()<<8 | uint64(pl.format)
	pl.set(&l, int(t.Size()))
}

// mostName is the most bytes of a layout in the name of a type.
const mostName = 300

// TypeName returns the name of a type for errors. If both sides must have the same fields, the name
// has their names and kinds too: "main.Addends {A int64; B int64}".
func TypeName(t reflect.Type) string { return newPlan(t).name() }

func (pl *plan) name() string {
	at := strings.IndexByte(pl.text, '{')
	if at < 0 {
		return pl.typ.String()
	}
	text := strings.ReplaceAll(strings.ReplaceAll(pl.text[at:], ";}", "}"), ";", "; ")
	if len(text) > mostName {
		text = text[:mostName] + "…"
	}
	return pl.typ.String() + " " + text
}

func (pl *plan) set(l *layout, memSize int) {
	pl.size, pl.memSize, pl.ops, pl.hasChecks = l.size, memSize, l.ops, l.hasChecks
	pl.isFlat = l.size == memSize && covers(l.ops)
}

// covers reports whether ops only copy bytes to the same places.
func covers(ops []op) bool {
	for i := range ops {
		o := &ops[i]
		switch {
		case o.mem != o.wire:
			return false
		case o.kind == opRepeat && (o.memStep != o.wireStep || !covers(o.sub)):
			return false
		case o.kind > opRepeat:
			return false
		}
	}
	return true
}

// An op moves a part of a value between memory and the wire. mem and wire are the offsets of the
// part.
type op struct {
	kind              opKind
	mem, wire         int
	n                 int  // bytes of opCopy and opBool; numbers or elements of the others
	sub               []op // ops of each element of opRepeat
	memStep, wireStep int  // bytes from one element to the next; memStep: also of opSwap
}

type opKind uint8

const (
	opCopy   opKind = iota
	opBool          // a copy, where each byte must be 0 or 1
	opRepeat        // sub, n times

	// These are for big-endian machines and for machines with an int of 4 bytes:
	opSwap   // a number of memStep bytes, big-endian in memory
	opInt32  // an int of 4 bytes in memory, and 8 on the wire
	opUint32 // a uint of 4 bytes in memory, and 8 on the wire
)

// A layout collects the ops and the text of a raw type.
type layout struct {
	isBig     bool // numbers are big-endian in memory
	text      strings.Builder
	ops       []op
	size      int
	hasChecks bool
}

// add appends a type whose values begin at the offset mem.
func (l *layout) add(t reflect.Type, mem int) {
	switch k := t.Kind(); k {
	case reflect.Array:
		fmt.Fprintf(&l.text, "[%d]", t.Len())
		l.array(t, mem)
	case reflect.Struct:
		l.text.WriteByte('{')
		for f := range t.Fields() {
			l.text.WriteString(f.Name)
			l.text.WriteByte(' ')
			l.add(f.Type, mem+int(f.Offset))
			l.text.WriteByte(';')
		}
		l.text.WriteByte('}')
	case reflect.Bool:
		l.text.WriteString("bool")
		l.hasChecks = true
		l.put(op{kind: opBool, mem: mem, wire: l.size, n: 1}, 1)
	case reflect.Int, reflect.Uint:
		l.text.WriteString(k.String() + "64")
		switch {
		case t.Size() == 8:
			l.number(mem, 8, 1)
		case k == reflect.Int:
			l.hasChecks = true
			l.put(op{kind: opInt32, mem: mem, wire: l.size, n: 1}, 8)
		default:
			l.hasChecks = true
			l.put(op{kind: opUint32, mem: mem, wire: l.size, n: 1}, 8)
		}
	case reflect.Complex64, reflect.Complex128:
		l.text.WriteString(k.String())
		l.number(mem, int(t.Size())/2, 2)
	default:
		l.text.WriteString(k.String())
		l.number(mem, int(t.Size()), 1)
	}
}

// number appends n numbers of some bytes each.
func (l *layout) number(mem, bytes, n int) {
	if l.isBig && bytes > 1 {
		l.put(op{kind: opSwap, mem: mem, wire: l.size, n: n, memStep: bytes}, n*bytes)
		return
	}
	l.put(op{kind: opCopy, mem: mem, wire: l.size, n: n * bytes}, n*bytes)
}

// put appends an op for size bytes on the wire, or extends the last op if possible.
func (l *layout) put(o op, size int) {
	l.size += size
	if n := len(l.ops); n > 0 && o.kind <= opBool {
		last := &l.ops[n-1]
		if last.kind == o.kind && last.mem+last.n == o.mem && last.wire+last.n == o.wire {
			last.n += o.n
			return
		}
	}
	l.ops = append(l.ops, o)
}

func (l *layout) array(t reflect.Type, mem int) {
	e := layout{isBig: l.isBig}
	e.add(t.Elem(), 0)
	l.text.WriteString(e.text.String())
	l.hasChecks = l.hasChecks || e.hasChecks && t.Len() > 0
	n, step := t.Len(), int(t.Elem().Size())
	switch {
	case n == 0 || e.size == 0:
	case len(e.ops) == 1 && e.ops[0].kind <= opBool && e.ops[0].n == step && e.size == step:
		l.put(op{kind: e.ops[0].kind, mem: mem, wire: l.size, n: n * step}, n*step)
	default:
		l.put(op{kind: opRepeat, mem: mem, wire: l.size, n: n, sub: e.ops, memStep: step, wireStep: e.size}, n*e.size)
	}
}

// encode writes n values, which lie one after another at from, to p, which has room for them.
func (pl *plan) encode(p []byte, from unsafe.Pointer, n int) {
	if n == 0 {
		return
	}
	if pl.isFlat {
		copy(p, unsafe.Slice((*byte)(from), n*pl.memSize))
		return
	}
	encode(pl.ops, p, from, n, pl.memSize, pl.size)
}

// decode is the reverse of encode. It reports false if p, which has the right length, is not n
// values. Then a part of the memory has been written.
func (pl *plan) decode(to unsafe.Pointer, p []byte, n int) bool {
	if n == 0 {
		return true
	}
	if pl.isFlat && !pl.hasChecks {
		copy(unsafe.Slice((*byte)(to), n*pl.memSize), p)
		return true
	}
	return decode(pl.ops, to, p, n, pl.memSize, pl.size)
}

func (pl *plan) corrupt() error {
	return fmt.Errorf("%w: decode %v: a boolean is neither 0 nor 1, or a number does not fit into this machine's int", ErrValue, pl.typ)
}

func encode(ops []op, p []byte, from unsafe.Pointer, times, memStep, wireStep int) {
	for k := range times {
		from := unsafe.Add(from, k*memStep) // never after the last value, where another object may lie
		for i := range ops {
			o := &ops[i]
			at, to := unsafe.Add(from, o.mem), p[o.wire:]
			switch o.kind {
			case opCopy, opBool:
				copy(to, unsafe.Slice((*byte)(at), o.n))
			case opRepeat:
				encode(o.sub, to, at, o.n, o.memStep, o.wireStep)
			default:
				for j := range o.n {
					o.encodeNumber(to, at, j)
				}
			}
		}
		p = p[wireStep:]
	}
}

func decode(ops []op, to unsafe.Pointer, p []byte, times, memStep, wireStep int) bool {
	for k := range times {
		to := unsafe.Add(to, k*memStep)
		for i := range ops {
			o := &ops[i]
			at, from := unsafe.Add(to, o.mem), p[o.wire:]
			switch o.kind {
			case opBool:
				for _, c := range from[:o.n] {
					if c > 1 {
						return false
					}
				}
				copy(unsafe.Slice((*byte)(at), o.n), from)
			case opCopy:
				copy(unsafe.Slice((*byte)(at), o.n), from)
			case opRepeat:
				if !decode(o.sub, at, from, o.n, o.memStep, o.wireStep) {
					return false
				}
			default:
				for j := range o.n {
					if !o.decodeNumber(at, from, j) {
						return false
					}
				}
			}
		}
		p = p[wireStep:]
	}
	return true
}

// encodeNumber encodes number j of an op other than a copy. Memory is big-endian for opSwap.
func (o *op) encodeNumber(to []byte, at unsafe.Pointer, j int) {
	switch o.kind {
	case opSwap:
		swap(to[o.memStep*j:], o.bytes(at, j))
	case opInt32:
		binary.LittleEndian.PutUint64(to[8*j:], uint64(*(*int32)(unsafe.Add(at, 4*j))))
	case opUint32:
		binary.LittleEndian.PutUint64(to[8*j:], uint64(*(*uint32)(unsafe.Add(at, 4*j))))
	}
}

// bytes returns the memory of number j of opSwap.
func (o *op) bytes(at unsafe.Pointer, j int) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(at, o.memStep*j)), o.memStep)
}

// swap copies a number in the other order of bytes.
func swap(to, from []byte) {
	for i, b := range from {
		to[len(from)-1-i] = b
	}
}

// decodeNumber is the reverse of encodeNumber. It reports false if the number is too large.
func (o *op) decodeNumber(at unsafe.Pointer, from []byte, j int) bool {
	switch o.kind {
	case opSwap:
		swap(o.bytes(at, j), from[o.memStep*j:][:o.memStep])
	case opInt32:
		v := int64(binary.LittleEndian.Uint64(from[8*j:]))
		if v < math.MinInt32 || v > math.MaxInt32 {
			return false
		}
		*(*int32)(unsafe.Add(at, 4*j)) = int32(v)
	case opUint32:
		v := binary.LittleEndian.Uint64(from[8*j:])
		if v > math.MaxUint32 {
			return false
		}
		*(*uint32)(unsafe.Add(at, 4*j)) = uint32(v)
	}
	return true
}
