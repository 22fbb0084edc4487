// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Protocol: Identifiers
//
// An identifier has 16 bytes, big-endian: the node u48, the context's number on it u48, a serial
// u32. Serial 0 is the context itself. A context counts the serials of its resources from 1 and
// gives none twice. A serial has bit 31 set if the resource is [bounded](#credit); 2,147,483,647 is
// for [replies](#calls). As text: `000000000001-2-3`, hexadecimal.

// NodeID identifies a node. 48 bits are used.
type NodeID uint64

// MarshalText implements encoding.TextMarshaler: 12 hexadecimal digits.
func (n NodeID) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%012x", uint64(n)), nil }

// UnmarshalText reads the form that MarshalText writes.
func (n *NodeID) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 16, 48)
	if err != nil || len(b) != 12 {
		return fmt.Errorf("%w: node %q", ErrBadGID, b)
	}
	*n = NodeID(v)
	return nil
}

// GID identifies a resource; see the package comment. It is comparable, and
// the zero GID identifies nothing.
type GID struct{ hi, lo uint64 }

// MakeGID returns the identifier with a node, a context number (48 bits) and a serial.
func MakeGID(node NodeID, ctx uint64, serial uint32) GID {
	return GID{uint64(node)<<16 | ctx>>32&0xffff, ctx<<32 | uint64(serial)}
}

// Node returns the node on which g was made.
func (g GID) Node() NodeID { return NodeID(g.hi >> 16) }

// Ctx returns the number of the context that made g, unique on its node.
func (g GID) Ctx() uint64 { return g.hi&0xffff<<32 | g.lo>>32 }

// Serial returns the serial, which distinguishes the resources of one context.
func (g GID) Serial() uint32 { return uint32(g.lo) }

// Context returns the identifier of the context that made g.
func (g GID) Context() GID { return GID{g.hi, g.lo &^ 0xffffffff} }

// WithSerial returns the identifier of another resource of the same context.
func (g GID) WithSerial(s uint32) GID { return GID{g.hi, g.lo&^0xffffffff | uint64(s)} }

// IsZero reports whether g identifies nothing.
func (g GID) IsZero() bool { return g == GID{} }

// Compare orders identifiers by node, context and serial.
func (g GID) Compare(o GID) int {
	return cmp.Or(cmp.Compare(g.hi, o.hi), cmp.Compare(g.lo, o.lo))
}

// String writes g as node-context-serial in hexadecimal, the zero GID as "-".
func (g GID) String() string {
	if g.IsZero() {
		return "-"
	}
	return fmt.Sprintf("%012x-%x-%x", uint64(g.Node()), g.Ctx(), g.Serial())
}

// ErrBadGID is returned for a text that is not an identifier.
//
// Cause: the text is no identifier. Remedy: copy it as `rocl find` prints it.
var ErrBadGID = errors.New("resource: malformed identifier")

// ParseGID reads the form that String writes.
func ParseGID(s string) (GID, error) {
	if s == "-" {
		return GID{}, nil
	}
	parts := strings.Split(s, "-")
	if len(parts) != 3 || len(parts[0]) != 12 {
		return GID{}, fmt.Errorf("%w: %q", ErrBadGID, s)
	}
	node, err1 := strconv.ParseUint(parts[0], 16, 48)
	ctx, err2 := strconv.ParseUint(parts[1], 16, 48)
	serial, err3 := strconv.ParseUint(parts[2], 16, 32)
	if err := errors.Join(err1, err2, err3); err != nil {
		return GID{}, fmt.Errorf("%w: %q", ErrBadGID, s)
	}
	return MakeGID(NodeID(node), ctx, uint32(serial)), nil
}

// MarshalText implements encoding.TextMarshaler.
func (g GID) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (g *GID) UnmarshalText(b []byte) (err error) {
	*g, err = ParseGID(string(b))
	return err
}

// PutGID writes the 16 bytes of g to b.
func PutGID(b []byte, g GID) {
	binary.BigEndian.PutUint64(b, g.hi)
	binary.BigEndian.PutUint64(b[8:], g.lo)
}

// GetGID reads the 16 bytes at the start of b.
func GetGID(b []byte) GID {
	return GID{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}
}

// idsName is the attribute of a pattern that selects resources by their identifiers. No
// resource has it.
const idsName = SystemPrefix + "ids"

const gidLen = 16 // bytes of an identifier as PutGID writes it

// NewIDs returns the pattern that the resources with these identifiers match, whatever their
// attributes. Only watches use such a pattern. NewIDs fails with ErrTooLarge for more than
// MaxValue/16 identifiers (1,048,576).
func NewIDs(ids ...GID) (*List, error) {
	ids = slices.Clone(ids)
	slices.SortFunc(ids, GID.Compare)
	ids = slices.Compact(ids)
	b := make([]byte, gidLen*len(ids))
	for i, id := range ids {
		PutGID(b[gidLen*i:], id)
	}
	l := new(List)
	if err := l.Add(idsName, b); err != nil {
		return nil, fmt.Errorf("a pattern of %d identifiers: %w", len(ids), err)
	}
	return l, nil
}

// IDs returns the identifiers of a pattern that NewIDs has made. It reports false for any
// other pattern.
func IDs(pattern *List) (ids map[GID]struct{}, ok bool) {
	b, ok := pattern.Get(idsName)
	if !ok {
		return nil, false
	}
	ids = make(map[GID]struct{}, len(b)/gidLen)
	for ; len(b) >= gidLen; b = b[gidLen:] {
		ids[GetGID(b)] = struct{}{}
	}
	return ids, true
}
