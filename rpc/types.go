// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/rocl-go/rocl"
)

// A Form says whether the arguments and the results of a call are streams.
type Form uint8

// The forms of calls, with the functions that register and make them.
const (
	FormCall         Form = iota // Register, Call
	FormStream                   // RegisterStream, Stream: a stream of results
	FormClientStream             // RegisterClientStream, ClientStream: a stream of arguments
	FormTwoWay                   // RegisterTwoWay, TwoWay: both
)

func (f Form) String() string {
	switch f {
	case FormCall:
		return "call"
	case FormStream:
		return "server stream"
	case FormClientStream:
		return "client stream"
	case FormTwoWay:
		return "two-way stream"
	}
	return fmt.Sprintf("form %d", uint8(f))
}

func (f Form) hasResults() bool { return f == FormStream || f == FormTwoWay }
func (f Form) hasItems() bool   { return f == FormClientStream || f == FormTwoWay }

// formOf returns the form of a request with flags.
func formOf(flags byte) (f Form) {
	if flags&flagStream != 0 {
		f = FormStream
	}
	if flags&flagItems != 0 {
		f += FormClientStream
	}
	return f
}

// MethodTypes has the types of one call that a server offers, as its Go program has them. The text
// of a struct has its fields, with the names that they have in JSON: "main.Addends {A int; B int}".
type MethodTypes struct {
	Name string `json:"name"`
	Form Form   `json:"form"`
	In   string `json:"in"`  // of the arguments, or of each of a stream
	Out  string `json:"out"` // of the result, or of each of a stream
}

// String returns the call as Go would declare it: "add(main.Addends {A int; B int}) int".
func (m MethodTypes) String() string {
	in, out := m.In, m.Out
	if m.Form.hasItems() {
		in = "stream of " + in
	}
	if m.Form.hasResults() {
		out = "stream of " + out
	}
	return m.Name + "(" + in + ") " + out
}

// ownTypes is the name of the call by which every server returns its types.
const ownTypes = "rpc.types"

// isOwn reports whether the call is one that every server offers.
func (m *method) isOwn() bool { return m.name == ownStats || m.name == ownTypes }

// TypesOf returns the types of the calls that a provider offers: its [Server.Types]. It fails with
// ErrUnknownCall if the provider has an older version of this package.
func TypesOf(ctx context.Context, c *Client, provider rocl.GID) ([]MethodTypes, error) {
	return Call[struct{}, []MethodTypes](ctx, c, provider, ownTypes, struct{}{})
}

// Types returns the types of the calls that the server offers, in the order of their names. The
// calls that every server offers are left out.
func (s *Server) Types() []MethodTypes {
	all := []MethodTypes{}
	for _, m := range *s.names.Load() {
		if !m.isOwn() {
			all = append(all, MethodTypes{m.name, m.form, typeText(m.in), typeText(m.out)})
		}
	}
	slices.SortFunc(all, func(a, b MethodTypes) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

const (
	mostTypeText = 1 << 10 // bytes of the text of a type
	mostOffered  = 1 << 10 // bytes of the names in an error
)

// offers returns the names of the calls that the server offers, for an error.
func (s *Server) offers() string {
	var names []string
	for _, m := range *s.names.Load() {
		if !m.isOwn() {
			names = append(names, m.name)
		}
	}
	slices.Sort(names)
	return cut(cmp.Or(strings.Join(names, ", "), "none"), mostOffered)
}

// cut returns at most n bytes of a text.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}

// typeText returns the text of a type.
func typeText(t reflect.Type) string {
	var b strings.Builder
	writeType(&b, t, nil)
	return cut(b.String(), mostTypeText)
}

// writeType writes the text of a type. The fields of a struct among outer, in which it is, are left
// out.
func writeType(b *strings.Builder, t reflect.Type, outer []reflect.Type) {
	if b.Len() > mostTypeText {
		return
	}
	switch k := t.Kind(); {
	case k == reflect.Struct:
		if t.Name() != "" {
			b.WriteString(t.String())
			if t.NumField() == 0 || slices.Contains(outer, t) {
				return
			}
			b.WriteByte(' ')
		}
		writeFields(b, t, append(outer, t))
	case t.Name() != "":
		b.WriteString(t.String())
		if e := cmp.Or(element(t), t); e != t && e.Kind() == reflect.Struct {
			b.WriteString(" of ")
			writeType(b, e, outer)
		}
	case k == reflect.Pointer:
		b.WriteByte('*')
		writeType(b, t.Elem(), outer)
	case k == reflect.Slice:
		b.WriteString("[]")
		writeType(b, t.Elem(), outer)
	case k == reflect.Array:
		fmt.Fprintf(b, "[%d]", t.Len())
		writeType(b, t.Elem(), outer)
	case k == reflect.Map:
		b.WriteString("map[")
		writeType(b, t.Key(), outer)
		b.WriteByte(']')
		writeType(b, t.Elem(), outer)
	default:
		b.WriteString(t.String())
	}
}

// element returns the type of the elements of a named slice, array, map or pointer, or nil.
func element(t reflect.Type) reflect.Type {
	switch t.Kind() {
	case reflect.Slice, reflect.Array, reflect.Map, reflect.Pointer:
		return t.Elem()
	}
	return nil
}

// writeFields writes the fields of a struct that travel.
func writeFields(b *strings.Builder, t reflect.Type, outer []reflect.Type) {
	b.WriteByte('{')
	sep := ""
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() && !f.Anonymous || name == "-" {
			continue
		}
		b.WriteString(sep)
		b.WriteString(cmp.Or(name, f.Name))
		b.WriteByte(' ')
		writeType(b, f.Type, outer)
		sep = "; "
	}
	b.WriteByte('}')
}
