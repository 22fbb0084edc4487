// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"strings"
	"unicode/utf8"

	"github.com/rocl-go/rocl/internal/display"
	"github.com/rocl-go/rocl/internal/sentinel"
)

// Limits of attribute lists.
const (
	MaxName  = 1 << 10  // bytes of a name
	MaxValue = 16 << 20 // bytes of a value
	MaxAttrs = 4096     // attributes of a list
	MaxList  = 32 << 20 // bytes of a list's wire form

	absent   = 1<<32 - 1
	listHead = 6 // bytes of the fields count and bytes
	attrHead = 6 // bytes of the fields nlen and vlen
)

// Errors about attribute lists.
var (
	// Cause: an attribute has no name. Remedy: name it.
	ErrEmptyName = errors.New("resource: attribute name is empty")
	// Cause: the name has other bytes. Remedy: put them into the value.
	ErrBadName  = errors.New("resource: attribute name is not UTF-8")
	ErrTooLarge = sentinel.New("resource: attribute list too large", sentinel.ErrTooLarge)
	// Cause: the prefix is reserved. Remedy: choose another name.
	ErrReservedName = errors.New("resource: attribute names starting with \"rocl.\" are the library's")
	ErrMalformed    = errors.New("resource: malformed attribute list")
)

// Protocol: Lists
//
// An attribute list is the number of attributes u16, the bytes of the whole list u32, and for each
// attribute: bytes of the name u16, bytes of the value u32, the name (UTF-8, not empty), the value.
// Names may repeat. If the bytes of the value are 2³²-1, the value is absent: wanted in a question,
// lacking in an answer. A pattern is a list. A resource matches if it has the values of the
// pattern. The answer has the pattern with the first value of each wanted name, or all attributes
// if none is wanted. A resource with a name that begins with `rocl.` is found only by patterns with
// the value of such a name.

// A List is a list of attributes. The zero List is empty and ready to use. A List that ParseList
// has returned is a view: the first change copies it. A List may be read concurrently. It may be
// copied as a value if it is not changed any more.
type List struct {
	buf  []byte // the wire form; nil for the empty list
	view []byte // the wire form of a list whose memory is not the List's own
}

var emptyWire = []byte{0, 0, listHead, 0, 0, 0}

// Wire returns the encoded list, as a view.
func (l *List) Wire() []byte {
	switch {
	case l.view != nil:
		return l.view
	case l.buf != nil:
		return l.buf
	}
	return emptyWire
}

// own copies the list to memory of its own if it is a view, with room for extra bytes.
func (l *List) own(extra int) {
	if l.buf == nil {
		w := l.Wire()
		l.buf = make([]byte, len(w), len(w)+max(extra, 64))
		copy(l.buf, w)
		l.view = nil
		l.stamp(l.Len())
	}
}

func (l *List) stamp(count int) {
	w := l.buf
	binary.LittleEndian.PutUint16(w, uint16(count))
	binary.LittleEndian.PutUint32(w[2:], uint32(len(w)))
}

// Len returns the number of attributes, known and absent.
func (l *List) Len() int { return int(binary.LittleEndian.Uint16(l.Wire())) }

func checkName(name string) error {
	switch {
	case name == "":
		return ErrEmptyName
	case len(name) > MaxName:
		return fmt.Errorf("%w: a name of %d bytes, at most %d", ErrTooLarge, len(name), MaxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %q", ErrBadName, name)
	}
	return nil
}

// Add appends an attribute. The value is copied.
func (l *List) Add(name string, value []byte) error { return add(l, name, value, false) }

// AddString is Add with a text.
func (l *List) AddString(name, value string) error { return add(l, name, value, false) }

// Want appends an attribute whose value is wanted.
func (l *List) Want(name string) error { return add(l, name, "", true) }

func add[V string | []byte](l *List, name string, value V, wanted bool) error {
	vlen := uint32(absent)
	if !wanted {
		vlen = uint32(min(len(value), MaxValue)) // appendAttr refuses a longer value
	}
	return appendAttr(l, name, value, vlen)
}

// appendAttr appends an attribute with the given vlen, which is the value's length, absent, or a
// condition.
func appendAttr[V string | []byte](l *List, name string, value V, vlen uint32) error {
	if err := checkName(name); err != nil {
		return err
	}
	if len(value) > MaxValue {
		return fmt.Errorf("%w: the value of %q has %d bytes, at most %d", ErrTooLarge, name, len(value), MaxValue)
	}
	n := l.Len()
	size := attrHead + len(name) + len(value)
	if n >= MaxAttrs || len(l.Wire())+size > MaxList {
		return fmt.Errorf("%w: %d attributes, %d bytes", ErrTooLarge, n, len(l.Wire()))
	}
	l.own(size)
	l.buf = binary.LittleEndian.AppendUint16(l.buf, uint16(len(name)))
	l.buf = binary.LittleEndian.AppendUint32(l.buf, vlen)
	l.buf = append(l.buf, name...)
	l.buf = append(l.buf, value...)
	l.stamp(n + 1)
	return nil
}

// attr is one attribute in a wire form.
type attr struct {
	wire  []byte // the whole attribute
	name  []byte
	value []byte // nil if absent; the operand of a condition
	known bool
	op    Op // 0: no condition
}

// each yields the attributes of a valid wire form.
func each(w []byte) iter.Seq[attr] {
	return func(yield func(attr) bool) {
		for at := listHead; at < len(w); {
			a := attrAt(w, at)
			if !yield(a) {
				return
			}
			at += len(a.wire)
		}
	}
}

// absent reports whether the attribute has no value: it is wanted, or lacking.
func (a attr) absent() bool { return !a.known && a.op == 0 }

func attrAt(w []byte, at int) attr {
	n := int(binary.LittleEndian.Uint16(w[at:]))
	v := vlenOf(w, at)
	end := at + attrHead + n
	a := attr{name: w[at+attrHead : end : end]}
	if v != absent {
		size := int(v)
		if v <= MaxValue {
			a.known = true
		} else {
			a.op, size, _ = conditionOf(v)
		}
		a.value = w[end : end+size : end+size]
		end += size
	}
	a.wire = w[at:end]
	return a
}

// Get returns the value of the first known attribute with that name, as a view.
func (l *List) Get(name string) ([]byte, bool) { return get(l, name) }

// get is Get with a name that may be a view.
func get[N string | []byte](l *List, name N) ([]byte, bool) {
	for a := range each(l.Wire()) {
		if a.known && string(a.name) == string(name) {
			return a.value, true
		}
	}
	return nil, false
}

// GetString returns the value of Get as a text, or "" if the name has none.
func (l *List) GetString(name string) string {
	v, _ := l.Get(name)
	return string(v)
}

// Values yields the known values of a name, in order.
func (l *List) Values(name string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for a := range each(l.Wire()) {
			if a.known && string(a.name) == name && !yield(a.value) {
				return
			}
		}
	}
}

// All yields the known attributes, in order. The values are views.
func (l *List) All() iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for a := range each(l.Wire()) {
			if a.known && !yield(string(a.name), a.value) {
				return
			}
		}
	}
}

// Wanted yields the names of the absent attributes, in order.
func (l *List) Wanted() iter.Seq[string] {
	return func(yield func(string) bool) {
		for a := range each(l.Wire()) {
			if a.absent() && !yield(string(a.name)) {
				return
			}
		}
	}
}

// Complete reports whether no attribute is absent.
func (l *List) Complete() bool {
	w := l.Wire()
	for at := listHead; at < len(w); {
		end := at + attrHead + int(binary.LittleEndian.Uint16(w[at:]))
		switch v := vlenOf(w, at); {
		case v <= MaxValue:
			end += int(v)
		case v == absent:
			return false
		default:
			end += int(v & operandMask)
		}
		at = end
	}
	return true
}

// Replace gives a name one value. The value replaces that of the first attribute with the name, and
// later attributes with the name are removed. If no attribute has the name, Replace adds one.
func (l *List) Replace(name string, value []byte) error { return l.set(name, value, true) }

// Set sets the value of the first attribute with that name, or adds an attribute.
func (l *List) Set(name string, value []byte) error { return l.set(name, value, false) }

// set is Replace if the attribute is to be the only one with its name, else Set.
func (l *List) set(name string, value []byte, only bool) error {
	if err := checkName(name); err != nil {
		return err
	}
	is := func(a attr) bool { return string(a.name) == name && a.op == 0 }
	found, met := false, false
	for a := range each(l.Wire()) {
		found = found || is(a)
	}
	if !found {
		return l.Add(name, value)
	}
	kept := l.rebuilt(len(l.Wire())+len(value), func(b []byte, a attr) []byte {
		switch {
		case !is(a), met && !only:
			return append(b, a.wire...)
		case met:
			return b
		}
		met = true
		return a.appendWith(b, value)
	})
	if len(value) > MaxValue || len(kept.buf) > MaxList {
		return fmt.Errorf("%w: the value of %q has %d bytes", ErrTooLarge, name, len(value))
	}
	*l = kept
	return nil
}

// rebuilt returns the list of what put appends for each attribute of l. For an attribute that is to
// be left out, put appends nothing. size is about how many bytes the result has.
func (l *List) rebuilt(size int, put func(b []byte, a attr) []byte) List {
	b, n := make([]byte, listHead, size), 0
	for a := range each(l.Wire()) {
		had := len(b)
		if b = put(b, a); len(b) > had {
			n++
		}
	}
	r := List{buf: b}
	r.stamp(n)
	return r
}

// appendWith appends the attribute with another value to b.
func (a attr) appendWith(b, value []byte) []byte {
	at := len(b)
	b = append(b, a.wire[:len(a.wire)-len(a.value)]...)
	binary.LittleEndian.PutUint32(b[at+2:], uint32(len(value)))
	return append(b, value...)
}

// Remove removes every attribute with that name and returns how many it removed.
func (l *List) Remove(name string) (removed int) {
	kept := l.without(func(a attr) bool { return string(a.name) == name })
	if removed = l.Len() - kept.Len(); removed > 0 {
		*l = kept
	}
	return removed
}

// without returns a copy of the list without the attributes for which drop reports true.
func (l *List) without(drop func(attr) bool) List {
	return l.rebuilt(len(l.Wire()), func(b []byte, a attr) []byte {
		if drop(a) {
			return b
		}
		return append(b, a.wire...)
	})
}

// few is up to how many attributes of one list are searched one by one in another list. For more of
// them a table is made, so that the cost grows with the length of the lists and not with its
// square.
const few = 16

// Fill gives each absent attribute its value in from. An attribute that from lacks stays absent,
// and so does one whose value would make the list too large.
func (l *List) Fill(from *List) { *l = l.filled(from) }

// filled returns what Fill makes of the list.
func (l *List) filled(from *List) List {
	v := l.filler(from)
	return l.rebuilt(l.FilledLen(from), func(b []byte, a attr) []byte {
		if value := v.of(a); value != nil {
			return a.appendWith(b, value)
		}
		return append(b, a.wire...)
	})
}

// FilledLen returns how many bytes the wire form of the list would have after Fill.
func (l *List) FilledLen(from *List) int {
	v := l.filler(from)
	for a := range each(l.Wire()) {
		v.of(a)
	}
	return v.size
}

// A filler has the values with which Fill fills a list.
type filler struct {
	from  *List
	table map[string][]byte // the first value of each name in from; nil: few are looked for
	size  int               // of the wire form of the list, with the values so far
}

// filler returns the filler for l.
func (l *List) filler(from *List) filler {
	v, absent := filler{from: from, size: len(l.Wire())}, 0
	for range l.Wanted() {
		absent++
	}
	if absent > few {
		v.table = make(map[string][]byte, from.Len())
		for a := range each(from.Wire()) {
			if _, ok := v.table[string(a.name)]; !ok && a.known {
				v.table[string(a.name)] = a.value
			}
		}
	}
	return v
}

// of returns the value for an attribute of the list, nil if the attribute stays as it is. It must
// be called once with each attribute, in order.
func (v *filler) of(a attr) (value []byte) {
	switch {
	case !a.absent():
		return nil
	case v.table != nil:
		value = v.table[string(a.name)]
	default:
		value, _ = get(v.from, a.name)
	}
	if v.size+len(value) > MaxList {
		return nil
	}
	v.size += len(value)
	return value
}

// Clone returns a copy that shares no memory with l.
func (l *List) Clone() List {
	var c List
	if w := l.Wire(); len(w) > listHead {
		c.buf = make([]byte, len(w))
		copy(c.buf, w)
	}
	return c
}

// Reset empties the list and keeps its memory.
func (l *List) Reset() {
	l.view = nil
	if l.buf != nil {
		l.buf = l.buf[:listHead]
		l.stamp(0)
	}
}

// Equal reports whether two lists have the same attributes in the same order.
func (l *List) Equal(o *List) bool { return bytes.Equal(l.Wire(), o.Wire()) }

// String returns the list in a readable form: {name=value, other=?}. A name or a value is in double
// quotes, with Go's escapes, in two cases: it has characters that are not safe on a terminal, or it
// could be mistaken for another part of the text.
func (l *List) String() string {
	b := []byte{'{'}
	for a := range each(l.Wire()) {
		if len(b) > 1 {
			b = append(b, ", "...)
		}
		name, value := string(a.name), string(a.value)
		name = display.QuoteIf(strings.ContainsAny(name, `=",`), name)
		if a.op != 0 {
			b = appendText(b, a, name)
			continue
		}
		b = append(b, name...)
		if a.known {
			b = append(b, '=')
			b = append(b, display.QuoteIf(value == "?" || strings.HasPrefix(value, `"`) || strings.Contains(value, ", "), value)...)
		} else {
			b = append(b, "=?"...)
		}
	}
	return string(append(b, '}'))
}

// A MalformedError describes an invalid wire form, with the position of the fault. It matches
// ErrMalformed.
type MalformedError struct {
	Offset int
	What   string
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("%v: %s at byte %d", ErrMalformed, e.What, e.Offset)
}

// Unwrap returns ErrMalformed.
func (e *MalformedError) Unwrap() error { return ErrMalformed }

// ParseList checks b completely and returns a List that is a view of b. b must not change while the
// list is used.
//
// ParseList refuses a list with conditions: see ParsePattern.
func ParseList(b []byte) (List, error) { return parse(b, false) }

func parse(b []byte, conditions bool) (List, error) {
	bad := func(at int, what string) (List, error) { return List{}, &MalformedError{at, what} }
	if len(b) < listHead {
		return bad(len(b), "too short")
	}
	count := int(binary.LittleEndian.Uint16(b))
	if size := binary.LittleEndian.Uint32(b[2:]); uint64(size) != uint64(len(b)) || len(b) > MaxList {
		return bad(2, "wrong length")
	}
	if count > MaxAttrs {
		return bad(0, "too many attributes")
	}
	at, conds := listHead, met{}
	for range count {
		if len(b)-at < attrHead {
			return bad(at, "truncated attribute")
		}
		n := int(binary.LittleEndian.Uint16(b[at:]))
		v := vlenOf(b, at)
		rest := len(b) - at - attrHead
		if n > rest {
			return bad(at, "name beyond the end")
		}
		size := int(v) // the length of a known value, which most attributes have
		var op Op
		conditional := false
		if v > MaxValue {
			op, size, conditional = conditionOf(v)
			switch {
			case conditional && !conditions:
				return bad(at+2, "a condition, or a value beyond the end")
			case !conditional && v != absent:
				return bad(at+2, "value beyond the end")
			}
		}
		if size > rest-n {
			return bad(at+2, "value beyond the end")
		}
		name := b[at+attrHead : at+attrHead+n]
		if n == 0 || n > MaxName || !isText(name) {
			return bad(at+attrHead, "bad name")
		}
		at += attrHead + n
		if conditional {
			if what := conds.check(name, b[at:at+size], op); what != "" {
				return bad(at, what)
			}
		}
		at += size
	}
	if at != len(b) {
		return bad(at, "bytes after the last attribute")
	}
	return List{view: b}, nil
}

// isText reports whether b is UTF-8. Short ASCII, as most names are, is checked without a call.
func isText(b []byte) bool {
	if len(b) <= 16 {
		var all byte
		for _, c := range b {
			all |= c
		}
		if all < utf8.RuneSelf {
			return true
		}
	}
	return utf8.Valid(b)
}

// View is ParseList of a wire form that this package has made and that has not changed. It checks
// only the length.
func View(b []byte) (List, error) {
	if len(b) < listHead || binary.LittleEndian.Uint32(b[2:]) != uint32(len(b)) {
		return List{}, &MalformedError{0, "not a wire form"}
	}
	return List{view: b}, nil
}

// A Record is a resource as a directory has it: its attributes with their owner and revision. The
// function that returns a Record says whether its attributes may be changed.
type Record struct {
	ID, Owner GID
	Revision  uint64 // grows with every change of the attributes
	Attrs     List
}
