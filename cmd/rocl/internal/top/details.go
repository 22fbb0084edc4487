// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/rocl-go/rocl/internal/display"
)

// details returns a line for each field of a struct of package observe, or more for a list. Names
// are those of JSON.
func details(v any) []string {
	var all []string
	eachField(reflect.ValueOf(v), func(name string, f reflect.Value) {
		if strings.HasPrefix(name, "more ") && f.IsZero() { // the list is complete
			return
		}
		if f.Kind() == reflect.Slice {
			for i := range f.Len() {
				all = append(all, fmt.Sprintf("  %-16s %s", cmp.Or(strings.Repeat(" ", min(i, 1)), name), value(f.Index(i))))
			}
			return
		}
		all = append(all, fmt.Sprintf("  %-16s %s", name, value(f)))
	})
	return all
}

// eachField calls f with the fields of a struct, also of those that it embeds.
func eachField(v reflect.Value, f func(name string, v reflect.Value)) {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Anonymous {
			eachField(v.Field(i), f)
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		f(strings.ReplaceAll(cmp.Or(name, strings.ToLower(field.Name)), "_", " "), v.Field(i))
	}
}

// value returns a field as text that is safe on a terminal.
func value(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return cmp.Or(age(x).text, "-")
	case time.Time:
		if x.IsZero() {
			return "-"
		}
		return x.Local().Format(time.DateTime)
	case float64:
		return size(x).text + "/s"
	case fmt.Stringer:
		return display.Quote(x.String())
	}
	if v.Kind() != reflect.Struct {
		return display.Quote(fmt.Sprint(v.Interface()))
	}
	var parts []string
	eachField(v, func(name string, f reflect.Value) {
		if !f.IsZero() {
			parts = append(parts, name+" "+value(f))
		}
	})
	return strings.Join(parts, ", ")
}
