// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
)

// Attributes are the source of a list, such as Attrs, Match or a List itself.
type Attributes interface {
	// AppendAttrs adds the attributes to l.
	AppendAttrs(l *List) error
}

// AppendAttrs adds the attributes of l to another list.
func (l *List) AppendAttrs(to *List) error {
	for a := range each(l.Wire()) {
		if err := appendAttr(to, string(a.name), a.value, vlenOf(a.wire, 0)); err != nil {
			return err
		}
	}
	return nil
}

// Attrs is a list written as a literal. The attributes are put in the order of their names. A List
// can have repeated names and values that are not text.
type Attrs map[string]string

// AppendAttrs implements Attributes.
func (a Attrs) AppendAttrs(l *List) error {
	var few [8]string
	names := few[:0]
	for name, value := range a {
		if len(a) == 1 {
			return l.AddString(name, value)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := l.AddString(name, a[name]); err != nil {
			return err
		}
	}
	return nil
}

// Match is a pattern written as a literal: a resource matches if it has every one of these
// attributes. The empty Match matches every resource.
type Match map[string]string

// AppendAttrs implements Attributes.
func (m Match) AppendAttrs(l *List) error { return Attrs(m).AppendAttrs(l) }

// NewPattern returns a pattern of the attributes that must match and the names whose values are
// wanted.
func NewPattern(a Attributes, want ...string) (*List, error) {
	var with struct { // one allocation for the List and the bytes of most patterns
		List
		scratch [64]byte
	}
	l := &with.List
	l.buf = append(with.scratch[:0], emptyWire...)
	if a != nil {
		if err := a.AppendAttrs(l); err != nil {
			return nil, err
		}
	}
	for _, name := range want {
		if err := l.Want(name); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Matches reports whether a resource has each known attribute of a pattern, and its comparisons and
// alternatives hold. It ignores the pattern's owner, which is not an attribute of the resource: see
// Meets. It does not allocate unless both lists have many attributes.
func Matches(resource, pattern *List) bool {
	p, r := pattern.Wire(), resource.Wire()
	if bytes.Equal(p, r) {
		return true
	}
	if pattern.Len() > few && resource.Len() > few {
		if all, ok := hasAll(r, p, pattern.Len()); ok {
			return all && compares(resource, p)
		}
	}
	conditions := false
	for at := listHead; at < len(p); {
		end := at + attrHead + int(binary.LittleEndian.Uint16(p[at:]))
		switch v := vlenOf(p, at); {
		case v <= MaxValue:
			if end += int(v); !has(r, p[at:end]) {
				return false
			}
		case v != absent:
			conditions = true
			end += int(v & operandMask)
		}
		at = end
	}
	return !conditions || compares(resource, p)
}

func has(w, want []byte) bool {
	for a, at := KnownAt(w, 0); a != nil; a, at = KnownAt(w, at) {
		if bytes.Equal(a, want) {
			return true
		}
	}
	return false
}

// hasAll reports whether r has each of the n known attributes of p, by a table of p. ok is false if
// two attributes of p have the same hash; then all means nothing.
func hasAll(r, p []byte, n int) (all, ok bool) {
	seed := maphash.MakeSeed()
	missing := make(map[uint64][]byte, n)
	for want, at := KnownAt(p, 0); want != nil; want, at = KnownAt(p, at) {
		h := maphash.Bytes(seed, want)
		if other, is := missing[h]; is && !bytes.Equal(other, want) {
			return false, false
		}
		missing[h] = want
	}
	for a, at := KnownAt(r, 0); a != nil && len(missing) > 0; a, at = KnownAt(r, at) {
		h := maphash.Bytes(seed, a)
		if want, is := missing[h]; is && bytes.Equal(want, a) {
			delete(missing, h)
		}
	}
	return len(missing) == 0, true
}

// KnownAt returns the encoding of the first known attribute at or after position at of a wire form
// that this package has made, and the position for the next call. The first call uses 0. It returns
// nil if there is no further known attribute. It is for indexes, because equal attributes have
// equal encodings.
func KnownAt(wire []byte, at int) (encoded []byte, next int) {
	for at = max(at, listHead); at < len(wire); {
		n := int(binary.LittleEndian.Uint16(wire[at:]))
		v := vlenOf(wire, at)
		end := at + attrHead + n
		if v <= MaxValue {
			end += int(v)
			return wire[at:end:end], end
		}
		if v != absent {
			end += int(v & operandMask)
		}
		at = end
	}
	return nil, at
}

// SystemPrefix is the prefix of attribute names that belong to the library.
const SystemPrefix = "rocl."

// kindName is the attribute of resources that belong to the library, such as contexts and nodes.
const kindName = SystemPrefix + "kind"

// CheckUser returns an error if a list has an attribute that belongs to the library, or a
// condition.
func CheckUser(l *List) error {
	for a := range each(l.Wire()) {
		if strings.HasPrefix(string(a.name), SystemPrefix) {
			return ErrReservedName
		}
		if a.op != 0 {
			return fmt.Errorf("%w: a resource has attributes, not conditions", ErrCondition)
		}
	}
	return nil
}

// IsSystem reports whether a resource belongs to the library. Only patterns that name an attribute
// of the library find such a resource.
func IsSystem(l *List) bool {
	_, ok := l.Get(kindName)
	return ok
}

// SeesSystem reports whether a pattern has an attribute of the library as a known or compared one.
func SeesSystem(pattern *List) bool {
	for a := range each(pattern.Wire()) {
		if (a.known || a.op.compares() || a.op == opOneOf) && bytes.HasPrefix(a.name, []byte(SystemPrefix)) {
			return true
		}
	}
	return false
}
