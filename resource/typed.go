// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/sentinel"
)

// AttrsOf returns the attributes that the fields of a struct, or of the struct that v points to,
// describe. Package rocl documents the fields. AttrsOf fails with codec.ErrValue, and with the
// errors of Add.
func AttrsOf(v any) (*List, error) {
	s := reflect.ValueOf(v)
	if s.Kind() == reflect.Pointer && !s.IsNil() {
		s = s.Elem()
	}
	fields, err := fieldsOf(s)
	if err != nil {
		return nil, err
	}
	l := new(List)
	for _, f := range fields {
		if f.omitsZero && f.IsZero() {
			continue
		}
		for i := range f.count() {
			e, ok := f.element(i)
			if !ok {
				continue
			}
			text, err := textOf(e)
			if err != nil {
				return nil, f.wrap(err)
			}
			if err := l.Add(f.name, text); err != nil {
				return nil, f.wrap(err)
			}
		}
	}
	return l, nil
}

// Into sets the fields of the struct to which v points from the attributes of the list. The fields
// are those of AttrsOf. If Into fails, which is with codec.ErrValue, the struct is unchanged.
func (l *List) Into(v any) error {
	to := reflect.ValueOf(v)
	if to.Kind() != reflect.Pointer || to.IsNil() {
		return fmt.Errorf("%w: %T is no pointer to a struct", sentinel.ErrValue, v)
	}
	filled := reflect.New(to.Type().Elem()).Elem()
	filled.Set(to.Elem())
	fields, err := fieldsOf(filled)
	if err != nil {
		return err
	}
	for _, f := range fields {
		isFirst := true
		for text := range l.Values(f.name) {
			e := f.Value
			if f.isList {
				if isFirst {
					f.SetZero()
				}
				e = reflect.New(f.Type().Elem()).Elem()
			}
			if err := setText(e, text); err != nil {
				return f.wrap(err)
			}
			if !f.isList {
				break
			}
			f.Set(reflect.Append(f.Value, e))
			isFirst = false
		}
	}
	to.Elem().Set(filled)
	return nil
}

// A field is a field of a struct that is an attribute.
type field struct {
	reflect.Value
	name      string
	omitsZero bool
	isList    bool // each element is an attribute
}

func (f *field) wrap(err error) error { return fmt.Errorf("attribute %q: %w", f.name, err) }

// count returns how many attributes the field has, without regard to nil.
func (f *field) count() int {
	if f.isList {
		return f.Len()
	}
	return 1
}

// element returns the value of attribute i. ok is false for a nil pointer.
func (f *field) element(i int) (e reflect.Value, ok bool) {
	if e = f.Value; f.isList {
		e = f.Index(i)
	}
	if e.Kind() == reflect.Pointer {
		return e.Elem(), !e.IsNil()
	}
	return e, true
}

// fieldsOf returns the fields of a struct that are attributes.
func fieldsOf(s reflect.Value) ([]field, error) {
	if s.Kind() != reflect.Struct {
		return nil, fmt.Errorf("%w: no struct, and no pointer to one", sentinel.ErrValue)
	}
	fields, err := appendFields(nil, s)
	if err == nil && len(fields) == 0 {
		err = fmt.Errorf("%w: no field of %v has a tag such as `rocl:\"load\"`", sentinel.ErrValue, s.Type())
	}
	return fields, err
}

func appendFields(fields []field, s reflect.Value) ([]field, error) {
	for i := range s.NumField() {
		t := s.Type().Field(i)
		tag, isTagged := t.Tag.Lookup("rocl")
		name, option, _ := strings.Cut(tag, ",")
		switch {
		case !isTagged && t.Anonymous && t.Type.Kind() == reflect.Struct:
			var err error
			if fields, err = appendFields(fields, s.Field(i)); err != nil {
				return nil, err
			}
		case !isTagged || tag == "-":
		case !t.IsExported() || name == "" || option != "" && option != "omitempty":
			return nil, fmt.Errorf("%w: field %s of %v must be exported, with a tag NAME or NAME,omitempty", sentinel.ErrValue, t.Name, s.Type())
		case slices.ContainsFunc(fields, func(f field) bool { return f.name == name }):
			return nil, fmt.Errorf("%w: two fields of %v are the attribute %q", sentinel.ErrValue, s.Type(), name)
		default:
			fields = append(fields, field{s.Field(i), name, option != "", isList(t.Type)})
		}
	}
	return fields, nil
}

var (
	marshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	unmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// isList reports whether each element of a value of type t is an attribute.
func isList(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 && !p.Implements(marshaler) && !p.Implements(unmarshaler)
}

// textOf returns the value of an attribute.
func textOf(e reflect.Value) ([]byte, error) {
	if reflect.PointerTo(e.Type()).Implements(marshaler) {
		p := reflect.New(e.Type()) // e may have no address
		p.Elem().Set(e)
		b, err := p.Interface().(encoding.TextMarshaler).MarshalText()
		if err != nil {
			err = fmt.Errorf("%w: %w", sentinel.ErrValue, err)
		}
		return b, err
	}
	switch {
	case e.Kind() == reflect.String:
		return []byte(e.String()), nil
	case isBytes(e):
		return e.Bytes(), nil
	case e.Kind() == reflect.Bool:
		return strconv.AppendBool(nil, e.Bool()), nil
	case e.CanInt():
		return strconv.AppendInt(nil, e.Int(), 10), nil
	case e.CanUint():
		return strconv.AppendUint(nil, e.Uint(), 10), nil
	case e.CanFloat() && isFinite(e.Float()):
		return strconv.AppendFloat(nil, e.Float(), 'g', -1, e.Type().Bits()), nil
	case e.CanFloat():
		return nil, fmt.Errorf("%w: %v is not finite", sentinel.ErrValue, e.Float())
	}
	return nil, unfit(e)
}

func isBytes(e reflect.Value) bool {
	return e.Kind() == reflect.Slice && e.Type().Elem().Kind() == reflect.Uint8
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func unfit(e reflect.Value) error {
	return fmt.Errorf("%w: no attribute has the type %v", sentinel.ErrValue, e.Type())
}

// setText sets e, which can be set, to the value of an attribute.
func setText(e reflect.Value, text []byte) (err error) {
	if e.Kind() == reflect.Pointer {
		n := reflect.New(e.Type().Elem())
		if err := setText(n.Elem(), text); err != nil {
			return err
		}
		e.Set(n)
		return nil
	}
	bits := 0
	if e.CanInt() || e.CanUint() || e.CanFloat() {
		bits = e.Type().Bits()
	}
	switch {
	case reflect.PointerTo(e.Type()).Implements(unmarshaler):
		err = e.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText(bytes.Clone(text))
	case e.Kind() == reflect.String:
		e.SetString(string(text))
	case isBytes(e):
		e.SetBytes(append([]byte{}, text...))
	case e.Kind() == reflect.Bool:
		var v bool
		v, err = strconv.ParseBool(string(text))
		e.SetBool(v)
	case e.CanInt():
		var v int64
		v, err = strconv.ParseInt(string(text), 10, bits)
		e.SetInt(v)
	case e.CanUint():
		var v uint64
		v, err = strconv.ParseUint(string(text), 10, bits)
		e.SetUint(v)
	case e.CanFloat():
		var v float64
		if v, err = strconv.ParseFloat(string(text), bits); err == nil && !isFinite(v) {
			err = strconv.ErrSyntax
		}
		e.SetFloat(v)
	default:
		return unfit(e)
	}
	var number *strconv.NumError
	if errors.As(err, &number) {
		err = number.Err // without the text, which may be long
	}
	if err != nil {
		return fmt.Errorf("%w: %s is no %v: %w", sentinel.ErrValue, display.Quote(string(text[:min(len(text), maxNumber)])), e.Type(), err)
	}
	return nil
}
