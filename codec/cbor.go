// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"fmt"
	"iter"
	"reflect"

	"github.com/fxamacker/cbor/v2"
)

// selfDescribed is the tag that marks bytes as CBOR (RFC 8949, section 3.4.6).
const selfDescribed = "\xd9\xd9\xf7"

// deepest is how many levels of values may be nested. A value that contains itself has more.
const deepest = 1000

var (
	encMode = must(cbor.EncOptions{
		Time:          cbor.TimeRFC3339Nano,
		TextMarshaler: cbor.TextMarshalerTextString,
	}.UserBufferEncMode())
	decMode = must(cbor.DecOptions{
		MaxNestedLevels:   deepest + 100, // tags count as levels
		MaxArrayElements:  maxLen,        // more than a message can have: each element has at least one byte
		MaxMapPairs:       maxLen,
		UTF8:              cbor.UTF8DecodeInvalid, // the encoder does not check UTF-8 either
		TextUnmarshaler:   cbor.TextUnmarshalerTextString,
		ExtraReturnErrors: cbor.ExtraDecErrorUnknownField,
	}.DecMode())
)

func must[M any](m M, err error) M {
	if err != nil {
		panic(err) // at the start of the program: the options are constants
	}
	return m
}

// appendCBOR appends the value that v points to.
func (pl *plan) appendCBOR(p []byte, v any) ([]byte, error) {
	if pl.isOpen {
		if err := tooDeep(reflect.ValueOf(v).Elem(), 0); err != nil {
			return nil, fmt.Errorf("%w: encode %v: %w", ErrValue, pl.typ, err)
		}
	}
	had := len(p)
	w := bytes.NewBuffer(append(p, selfDescribed...))
	if err := encMode.MarshalToBuffer(v, w); err != nil {
		return nil, fmt.Errorf("%w: encode %v: %w", ErrValue, pl.typ, err)
	}
	// A little more than the value's size, so that a slightly larger value still fits.
	if n := int64(w.Len() - had); n > pl.lately.Load() || n < pl.lately.Load()/4 {
		pl.lately.Store(n + n/8)
	}
	return w.Bytes(), nil
}

// decodeCBOR decodes into the zero value that v points to.
func (pl *plan) decodeCBOR(p []byte, v any) (err error) {
	rest, is := bytes.CutPrefix(p, []byte(selfDescribed))
	if !is {
		return wrong(p, pl)
	}
	defer func() { // methods of the value's parts decode bytes from another process
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: decode %v: panic: %v", ErrValue, pl.typ, r)
		}
	}()
	if err := decMode.Unmarshal(rest, v); err != nil {
		return fmt.Errorf("%w: decode %v: %w", ErrValue, pl.typ, err)
	}
	return nil
}

// isOpaque reports whether methods of t encode its values.
func isOpaque(t reflect.Type) bool { return has(t, binaryMarshaler, textMarshaler, cborMarshaler) }

// fieldsOf yields the fields of a struct that CBOR encodes.
func fieldsOf(t reflect.Type) iter.Seq[reflect.StructField] {
	return func(yield func(reflect.StructField) bool) {
		for f := range t.Fields() {
			tag := f.Tag.Get("cbor")
			if tag == "" {
				tag = f.Tag.Get("json")
			}
			if tag != "-" && (f.IsExported() || f.Anonymous) && !yield(f) {
				return
			}
		}
	}
}

// survey reports whether values of t may be nested to any depth. It fails if t has a part that
// cannot be encoded, or that would be lost.
func survey(t reflect.Type) (isOpen bool, err error) {
	within := map[reflect.Type]bool{} // true: the type contains the current one; false: the type was visited
	var visit func(reflect.Type) error
	visit = func(u reflect.Type) error {
		around, seen := within[u]
		isOpen = isOpen || around || u.Kind() == reflect.Interface
		if seen || u.Kind() == reflect.Interface || isOpaque(u) {
			return nil
		}
		within[u] = true
		defer func() { within[u] = false }()
		switch u.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			return visit(u.Elem())
		case reflect.Map:
			if err := visit(u.Key()); err != nil {
				return err
			}
			return visit(u.Elem())
		case reflect.Chan, reflect.Func, reflect.UnsafePointer:
			return fmt.Errorf("%w: %v: a %v cannot be sent", ErrValue, t, u)
		case reflect.Struct:
			n := 0
			for f := range fieldsOf(u) {
				n++
				if err := visit(f.Type); err != nil {
					return err
				}
			}
			if n == 0 && u.NumField() > 0 {
				return fmt.Errorf("%w: %v: no field of %v is exported, so none would be sent", ErrValue, t, u)
			}
		}
		return nil
	}
	err = visit(t)
	return isOpen, err
}

// tooDeep returns an error for a value with too many nested levels, such as a value that contains
// itself.
func tooDeep(v reflect.Value, depth int) error {
	if depth > deepest {
		return fmt.Errorf("more than %d values lie within each other", deepest)
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() || isSimple(v.Type()) {
			return nil
		}
		return tooDeep(v.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		if isSimple(v.Type().Elem()) {
			return nil
		}
		for i := range v.Len() {
			if err := tooDeep(v.Index(i), depth+1); err != nil {
				return err
			}
		}
	case reflect.Map:
		if isSimple(v.Type().Key()) && isSimple(v.Type().Elem()) {
			return nil
		}
		for it := v.MapRange(); it.Next(); {
			if err := tooDeep(it.Key(), depth+1); err != nil {
				return err
			}
			if err := tooDeep(it.Value(), depth+1); err != nil {
				return err
			}
		}
	case reflect.Struct:
		if isOpaque(v.Type()) {
			return nil
		}
		for f := range fieldsOf(v.Type()) {
			if err := tooDeep(v.FieldByIndex(f.Index), depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// isSimple reports whether values of t contain no other values, as far as its kind shows.
func isSimple(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Array, reflect.Map, reflect.Struct:
		return t.Kind() != reflect.Interface && isOpaque(t)
	}
	return true
}
