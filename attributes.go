// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"fmt"

	"github.com/rocl-go/rocl/resource"
)

// Parse returns the pattern that a text describes, such as
//
//	type=model load<3 zone=a|b name="two words"
//
// The conditions have white space between them, and all of them must hold:
//
//   - name=value: the resource has the attribute with this value;
//   - name=one|two: it has the attribute with one of these values;
//   - name<3, and the same with <=, >, >=, == and !=: [At] holds.
//
// A name or a value in double quotes, with the escapes of Go, may have any characters. A pattern
// has at most 16 conditions other than name=value, and at most 64 alternatives in one. It cannot
// exclude a text, look into one, or have alternatives of several names.
//
// Parse fails with ErrCondition for a text that is no pattern, with ErrTooLarge, and with
// ErrEmptyName or ErrBadName. [List.OneOf] adds alternatives to a pattern without quotes and
// escapes.
func Parse(text string) (*List, error) {
	l, err := resource.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("rocl: parse a pattern: %w", err)
	}
	return l, nil
}

// AttrsOf returns the attributes that the fields of a struct, or of the struct that v points to,
// describe. A field with a tag is an attribute:
//
//	type Worker struct {
//		Type  string   `rocl:"type"`
//		Load  float64  `rocl:"load"`
//		Zones []string `rocl:"zone"`          // an attribute for each element
//		GPU   string   `rocl:"gpu,omitempty"` // none if it is the zero value
//		Cores *int     `rocl:"cores"`         // none if it is nil
//		queue chan int                        // without a tag: no attribute
//	}
//
// The field is exported. Its type is string, []byte, bool, an integer, a floating-point number, or
// a type with the methods of encoding.TextMarshaler and TextUnmarshaler, such as time.Time and GID;
// or a pointer to one of these, or a slice of these. Numbers become decimal texts, which [At]
// compares; a time.Duration is a number of nanoseconds. An embedded struct without a tag adds its
// fields.
//
// AttrsOf fails with ErrValue for a field of another type, for a number that is not finite, and for
// a struct without such fields. It fails with ErrTooLarge, ErrEmptyName or ErrBadName for an
// attribute that cannot be.
func AttrsOf(v any) (*List, error) {
	l, err := resource.AttrsOf(v)
	if err != nil {
		return nil, fmt.Errorf("rocl: the attributes of %T: %w", v, err)
	}
	return l, nil
}

// Into sets the fields of the struct to which v points from the attributes of a resource. The
// fields are those of [AttrsOf]. A slice gets all values of its attribute, in order; another field
// gets the first one. A field keeps its value if the resource lacks the attribute.
//
// Into fails with ErrValue if a value is not one of the field's type, does not fit into it, or if v
// is no such pointer. Then the struct is unchanged. It shares no memory with f.
func Into(f Found, v any) error {
	if err := f.Attrs.Into(v); err != nil {
		return fmt.Errorf("rocl: the attributes of %v as %T: %w", f.ID, v, err)
	}
	return nil
}
