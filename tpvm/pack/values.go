// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"fmt"
	"reflect"
)

// PackValues packs each of vs, like one call of Pack, PackOne or PackString for each. vs are
// numbers, strings, and slices of numbers. The length of a slice is not packed.
//
// PackValues fails with ErrBadParam for a value of another type. The values before the failed one
// have been packed.
func (b *Buffer) PackValues(vs ...any) error {
	for i, v := range vs {
		if err := b.packValue(reflect.ValueOf(v)); err != nil {
			return fmt.Errorf("value %d: %w", i, err)
		}
	}
	return nil
}

func (b *Buffer) packValue(v reflect.Value) error {
	switch {
	case !v.IsValid():
	case v.Kind() == reflect.String:
		return b.PackString(v.String())
	case v.Kind() == reflect.Slice && kindOfType(v.Type().Elem()) != noKind:
		return b.packSlice(vectorOfSlice(v))
	case kindOfType(v.Type()) != noKind:
		s := reflect.MakeSlice(reflect.SliceOf(v.Type()), 1, 1)
		s.Index(0).Set(v)
		return b.pack(vectorOfSlice(s))
	}
	return errValue(v)
}

// UnpackValues unpacks into each of ps, like one call of Unpack, UnpackOne or UnpackString for
// each. ps are pointers to numbers and strings, and slices of numbers, which are filled.
//
// UnpackValues fails with ErrBadParam for a value of another type. The values before the failed one
// have been unpacked.
func (r *Reader) UnpackValues(ps ...any) error {
	for i, p := range ps {
		if err := r.unpackValue(reflect.ValueOf(p)); err != nil {
			return fmt.Errorf("value %d: %w", i, err)
		}
	}
	return nil
}

func (r *Reader) unpackValue(p reflect.Value) error {
	switch {
	case !p.IsValid():
	case p.Kind() == reflect.Slice && kindOfType(p.Type().Elem()) != noKind:
		if p.Len() == 0 {
			return nil
		}
		return r.unpack(vectorOfSlice(p))
	case p.Kind() != reflect.Pointer || p.IsNil():
	case p.Type().Elem().Kind() == reflect.String:
		s, err := r.UnpackString()
		if err == nil {
			p.Elem().SetString(s)
		}
		return err
	case kindOfType(p.Type().Elem()) != noKind:
		s := reflect.MakeSlice(reflect.SliceOf(p.Type().Elem()), 1, 1)
		err := r.unpack(vectorOfSlice(s))
		if err == nil {
			p.Elem().Set(s.Index(0))
		}
		return err
	}
	return errValue(p)
}

// vectorOfSlice is vectorOf for a slice of numbers that is given by reflection.
func vectorOfSlice(v reflect.Value) vector {
	t := v.Type().Elem()
	k := kindOfType(t)
	return vector{v.UnsafePointer(), v.Len(), 1, k, (k == longKind || k == ulongKind) && t.Size() == 4}
}

func errValue(v reflect.Value) error {
	if !v.IsValid() {
		return fmt.Errorf("%w: the value is nil", ErrBadParam)
	}
	return fmt.Errorf("%w: the value has type %v", ErrBadParam, v.Type())
}
