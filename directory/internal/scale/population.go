// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/resource"
)

// attributes lists the attributes of each resource. No two resources share a value, which is the
// worst case for a summary.
var attributes = [...]string{"name", "serial", "address", "build"}

// described returns resource i of a node after a number of changes.
func described(node, i, changes int) *resource.List {
	l := new(resource.List)
	value := fmt.Sprintf("%d-%d-%d", node, i, changes)
	for _, a := range attributes {
		if err := l.AddString(a, value); err != nil {
			panic(err) // none of them is empty or too long
		}
	}
	return l
}

func pattern(name string) *resource.List {
	l, err := resource.NewPattern(resource.Match{"name": name})
	if err != nil {
		panic(err)
	}
	return l
}

// A holder is a node that holds resources and has a summary of them.
type holder struct {
	node    int
	changes []int // of each resource
	summary *search.Filters
}

// newHolder returns a node that holds a number of resources, in a cluster of members nodes.
func newHolder(node, holds, members int) *holder {
	h := &holder{node: node, changes: make([]int, holds), summary: search.NewFilters()}
	h.renew(members)
	return h
}

// renew makes a new summary.
func (h *holder) renew(members int) {
	h.summary.Renew(search.NewSummary(h.everything(), members))
}

// everything yields all resources of h.
func (h *holder) everything() iter.Seq[*resource.List] {
	return func(yield func(*resource.List) bool) {
		for i := range h.changes {
			if !yield(h.one(i)) {
				return
			}
		}
	}
}

// one returns resource i of h as it is now.
func (h *holder) one(i int) *resource.List { return described(h.node, i, h.changes[i]) }

// change replaces a resource by another one.
func (h *holder) change(i int) {
	h.changes[i]++
	h.summary.Add(h.one(i))
}

// age changes so many resources that the given share of the summary's room for growth is used up.
func (h *holder) age(share float64) {
	// A new summary has room for half as many attributes again as there are.
	for n := int(share * float64(len(h.changes)) / 2); n > 0; n-- {
		h.change(n % len(h.changes))
	}
}

// question returns the question for a name, in the format of package cluster: a kind, an
// identifier, the pattern.
func question(name string) []byte { return append(make([]byte, 17), pattern(name).Wire()...) }

// asked returns the pattern of a question.
func asked(question []byte) *resource.List {
	l, err := resource.View(question[17:])
	if err != nil {
		panic(err)
	}
	return &l
}

// answer returns the answer of a holder to a question, in the format of package directory: an
// identifier, its owner, a revision, the attributes.
func answer(node int, question []byte) []byte {
	id := resource.MakeGID(resource.NodeID(node+1), 1, 1)
	b := make([]byte, 40, 40+len(question))
	resource.PutGID(b, id)
	resource.PutGID(b[16:], id.Context())
	binary.LittleEndian.PutUint64(b[32:], 1)
	return append(b, asked(question).Wire()...)
}
