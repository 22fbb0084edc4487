// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"fmt"
	"slices"
)

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
