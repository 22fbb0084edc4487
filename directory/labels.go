// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/resource"
)

// Limits of labels, which every answer that lists nodes contains.
const (
	maxLabels     = 256
	maxLabelBytes = 16 << 10 // of their wire form
)

// ErrLabels is returned if labels are too many or too large.
//
// Cause: more than 256 labels, or 16 KiB. Remedy: use fewer.
var ErrLabels = errors.New("rocl: too many labels")

// Labels are attributes that the operator gives a node. A value of this type is valid; the zero
// value has no labels.
type Labels struct{ list resource.List }

// NewLabels makes labels of a. It refuses names that belong to the library, names without a value,
// and more than maxLabels or maxLabelBytes.
func NewLabels(a resource.Attributes) (Labels, error) {
	l, err := resource.NewPattern(a)
	if err == nil {
		err = checkLabels(l)
	}
	if err != nil {
		return Labels{}, fmt.Errorf("directory: labels: %w", err)
	}
	return Labels{l.Clone()}, nil
}

// checkLabels returns the error of NewLabels.
func checkLabels(l *resource.List) error {
	if n, b := l.Len(), len(l.Wire()); n > maxLabels || b > maxLabelBytes {
		return fmt.Errorf("%w: %d of %d bytes; at most %d of %d", ErrLabels, n, b, maxLabels, maxLabelBytes)
	}
	if !l.Complete() {
		return ErrIncomplete
	}
	return resource.CheckUser(l)
}

// AppendAttrs implements resource.Attributes.
func (l Labels) AppendAttrs(to *resource.List) error { return l.list.AppendAttrs(to) }

// wire returns the wire form of the labels, which is empty, but not nil, if there are none.
func (l Labels) wire() []byte {
	if l.list.Len() == 0 {
		return []byte{}
	}
	return l.list.Wire()
}

// parseLabels returns the labels of a wire form. A malformed one has no labels.
func parseLabels(b []byte) Labels {
	if len(b) == 0 {
		return Labels{}
	}
	list, err := resource.ParseList(b)
	if err != nil {
		return Labels{}
	}
	l, err := NewLabels(&list)
	if err != nil {
		return Labels{}
	}
	return l
}
