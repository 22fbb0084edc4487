// SPDX-License-Identifier: Apache-2.0

package context

import (
	"fmt"

	"github.com/rocl-go/rocl/resource"
)

// AttrContext is an attribute of any resource, if it is asked for: the identifier of the context
// that owns the resource. No resource has it in the directory.
const AttrContext = "rocl.context"

// NewPattern returns the pattern of a question: the attributes a, the names of the attributes that
// the answers have, and what the functions add. A value of AttrContext becomes a condition on the
// owner.
func NewPattern(a resource.Attributes, want []string, add ...func(*resource.List) error) (*resource.List, error) {
	l, err := resource.NewPattern(a, want...)
	if err != nil {
		return nil, err
	}
	for _, add := range add {
		if err := add(l); err != nil {
			return nil, err
		}
	}
	if _, named := l.Get(AttrContext); !named {
		return l, nil
	}
	var owners []resource.GID
	for v := range l.Values(AttrContext) {
		id, err := resource.ParseGID(string(v))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", AttrContext, err)
		}
		owners = append(owners, id)
	}
	wanted := Wants(l, AttrContext)
	l.Remove(AttrContext)
	for _, id := range owners {
		if err := l.OwnedBy(id); err != nil {
			return nil, err
		}
	}
	if wanted {
		return l, l.Want(AttrContext)
	}
	return l, nil
}

// Wants reports whether a list asks for the value of the attribute with the given name.
func Wants(l *resource.List, name string) bool {
	for w := range l.Wanted() {
		if w == name {
			return true
		}
	}
	return false
}
