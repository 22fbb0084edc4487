// SPDX-License-Identifier: Apache-2.0

package display

import (
	"reflect"
	"slices"
	"time"
	"unicode/utf8"
)

// Limits of what [Clean] leaves.
const (
	MaxText    = 512     // bytes of a text, before its escapes
	MaxEntries = 100_000 // of a list
	MaxNumber  = 1 << 56 // of a count, of bytes and of nanoseconds
)

// Clean makes what another process has told safe to show and to compute with, in place: texts are
// as [Short] makes them, lists have at most MaxEntries, numbers are from 0 to MaxNumber, and times
// in the years from 1970 to 2261. Fields that are named Number, Tag, Tags or ID tell things apart
// and stay, as do unexported ones. v is a pointer.
func Clean(v any) { clean(reflect.ValueOf(v).Elem()) }

func clean(v reflect.Value) {
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		v.SetInt(min(max(v.Int(), 0), MaxNumber, 1<<(v.Type().Bits()-1)-1))
	case reflect.Uint64:
		v.SetUint(min(v.Uint(), MaxNumber))
	case reflect.String:
		v.SetString(Short(v.String()))
	case reflect.Slice:
		v.Set(v.Slice(0, min(v.Len(), MaxEntries)))
		for i := range v.Len() {
			clean(v.Index(i))
		}
	case reflect.Map:
		cleanMap(v)
	case reflect.Struct:
		if t, isTime := v.Addr().Interface().(*time.Time); isTime {
			if y := t.Year(); y < 1970 || y > 2261 {
				*t = time.Time{}
			}
			return
		}
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !slices.Contains([]string{"Number", "Tag", "Tags", "ID"}, f.Name) {
				clean(v.Field(i))
			}
		}
	}
}

func cleanMap(v reflect.Value) {
	if v.Len() == 0 {
		return
	}
	limited := reflect.MakeMap(v.Type())
	for old := v.MapRange(); old.Next() && limited.Len() < MaxEntries; {
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		key.Set(old.Key())
		value.Set(old.Value())
		clean(key)
		clean(value)
		limited.SetMapIndex(key, value)
	}
	v.Set(limited)
}

// Short returns s, cut if it has more than MaxText bytes, with escapes as [Escape] has them.
func Short(s string) string {
	if len(s) > MaxText {
		n := MaxText
		for !utf8.RuneStart(s[n]) && n > MaxText-utf8.UTFMax {
			n--
		}
		s = s[:n] + "…"
	}
	return Escape(s)
}
