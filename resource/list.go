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
	at, end int // bounds of the whole attribute
	name    []byte
	value   []byte // nil if absent; the operand of a condition
	known   bool
	op      Op // 0: no condition
}

// each yields the attributes of a valid wire form.
func each(w []byte) iter.Seq[attr] {
	return func(yield func(attr) bool) {
		for at := listHead; at < len(w); {
			a := attrAt(w, at)
			if !yield(a) {
				return
			}
			at = a.end
		}
	}
}

// absent reports whether the attribute has no value: it is wanted, or lacking.
func (a *attr) absent() bool { return !a.known && a.op == 0 }

func attrAt(w []byte, at int) attr {
	n := int(binary.LittleEndian.Uint16(w[at:]))
	v := vlenOf(w, at)
	a := attr{at: at, end: at + attrHead + n}
	a.name = w[at+attrHead : a.end : a.end]
	if v == absent {
		return a
	}
	size := int(v)
	if v <= MaxValue {
		a.known = true
	} else {
		a.op, size, _ = conditionOf(v)
	}
	a.value = w[a.end : a.end+size : a.end+size]
	a.end += size
	return a
}

// Get returns the value of the first known attribute with that name, as a view.
func (l *List) Get(name string) ([]byte, bool) {
	w := l.Wire()
	for at := listHead; at < len(w); {
		a := attrAt(w, at)
		if a.known && string(a.name) == name {
			return a.value, true
		}
		at = a.end
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
func (l *List) Replace(name string, value []byte) error {
	n := 0
	for a := range each(l.Wire()) {
		if string(a.name) == name && a.op == 0 {
			n++
		}
	}
	if n > 1 {
		value = bytes.Clone(value) // value may be a view of the list
		var kept List
		kept.own(len(l.Wire()))
		w, count, met := l.Wire(), 0, false
		for a := range each(w) {
			if string(a.name) == name && a.op == 0 {
				if met {
					continue
				}
				met = true
			}
			kept.buf = append(kept.buf, w[a.at:a.end]...)
			count++
		}
		kept.stamp(count)
		if err := kept.Set(name, value); err != nil {
			return err
		}
		*l = kept
		return nil
	}
	return l.Set(name, value)
}

// Set sets the value of the first attribute with that name, or adds an attribute.
func (l *List) Set(name string, value []byte) error {
	if err := checkName(name); err != nil {
		return err
	}
	for a := range each(l.Wire()) {
		if string(a.name) != name || a.op != 0 {
			continue
		}
		grown := len(l.Wire()) - len(a.value) + len(value)
		if len(value) > MaxValue || grown > MaxList {
			return fmt.Errorf("%w: the value of %q has %d bytes", ErrTooLarge, name, len(value))
		}
		l.own(len(value))
		if len(value) != len(a.value) {
			value = bytes.Clone(value) // value may be a view of the bytes that splice moves
		}
		l.splice(a, value)
		return nil
	}
	return l.Add(name, value)
}

// splice replaces the value of the attribute a of an owned list, in place if its memory has room.
func (l *List) splice(a attr, value []byte) {
	n := l.Len()
	from, to := a.end-len(a.value), a.end
	tail := len(l.buf) - to
	size := from + len(value) + tail
	if size > cap(l.buf) {
		b := make([]byte, size, size+64)
		copy(b, l.buf[:from])
		copy(b[from+len(value):], l.buf[to:])
		copy(b[from:], value)
		l.buf = b
	} else {
		old := l.buf[to:]
		l.buf = l.buf[:size]
		copy(l.buf[from+len(value):], old)
		copy(l.buf[from:], value)
	}
	binary.LittleEndian.PutUint32(l.buf[a.at+2:], uint32(len(value)))
	l.stamp(n)
}

// Remove removes every attribute with that name and returns how many it removed.
func (l *List) Remove(name string) (removed int) {
	var kept List
	kept.own(len(l.Wire()))
	n := 0
	w := l.Wire()
	for a := range each(w) {
		if string(a.name) == name {
			removed++
			continue
		}
		kept.buf = append(kept.buf, w[a.at:a.end]...)
		n++
	}
	if removed > 0 {
		kept.stamp(n)
		*l = kept
	}
	return removed
}

// few is up to how many attributes of one list are searched one by one in another list. For more of
// them a table is made, so that the cost grows with the length of the lists and not with its
// square.
const few = 16

// Fill gives each absent attribute its value in from. An attribute that from lacks stays absent.
// Fill works in place if there is room and few attributes are absent.
func (l *List) Fill(from *List) {
	l.own(0)
	if l.lacksMany() {
		l.fillMany(from)
		return
	}
	for at := listHead; at < len(l.buf); {
		a := attrAt(l.buf, at)
		if a.absent() {
			if v, ok := from.Get(string(a.name)); ok && len(l.buf)+len(v) <= MaxList {
				l.splice(a, v)
				a = attrAt(l.buf, at)
			}
		}
		at = a.end
	}
}

// lacksMany reports whether more than few attributes are absent.
func (l *List) lacksMany() bool {
	n := 0
	for a := range each(l.Wire()) {
		if a.absent() {
			n++
		}
		if n > few {
			return true
		}
	}
	return false
}

// fillMany is Fill for any number of absent attributes. The list must be owned.
func (l *List) fillMany(from *List) {
	size, values := l.filled(from.firstValues())
	b := make([]byte, listHead, size)
	i := 0
	for a := range each(l.Wire()) {
		at := len(b)
		b = append(b, l.Wire()[a.at:a.end]...)
		if !a.absent() {
			continue
		}
		if v := values[i]; v != nil {
			binary.LittleEndian.PutUint32(b[at+2:], uint32(len(v)))
			b = append(b, v...)
		}
		i++
	}
	n := l.Len()
	l.buf = b
	l.stamp(n)
}

// FilledLen returns how many bytes the wire form of the list would have after Fill.
func (l *List) FilledLen(from *List) int {
	get := from.Get
	if l.lacksMany() {
		get = from.firstValues()
	}
	size, _ := l.filled(get)
	return size
}

// filled returns the value for each absent attribute, in order, nil for an attribute that stays
// absent. size is the length of the wire form with the values.
func (l *List) filled(get func(name string) ([]byte, bool)) (size int, values [][]byte) {
	size = len(l.Wire())
	for name := range l.Wanted() {
		v, ok := get(name)
		if !ok || size+len(v) > MaxList {
			v = nil
		} else if v == nil {
			v = []byte{}
		}
		size += len(v)
		values = append(values, v)
	}
	return size, values
}

// firstValues returns a function like Get that uses a table of the list.
func (l *List) firstValues() func(name string) ([]byte, bool) {
	table := make(map[string][]byte, l.Len())
	for a := range each(l.Wire()) {
		if _, ok := table[string(a.name)]; !ok && a.known {
			table[string(a.name)] = a.value
		}
	}
	return func(name string) ([]byte, bool) { v, ok := table[name]; return v, ok }
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
			b = appendText(b, &a, name)
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
