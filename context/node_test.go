// SPDX-License-Identifier: Apache-2.0

package context_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// A node is found, looked up and watched like any resource, does not match patterns for the
// program's resources, and receives no messages.
//
// Promise (Nodes): Sending to a node fails with `ErrGone`.
func TestNode(t *testing.T) {
	eachTransport(t, func(t *testing.T, open func(...context.Option) *context.Context) {
		c := open()
		me := register(t, c, resource.Attrs{"type": "mine"})
		f, err := c.Find(bg, resource.Match{context.AttrKind: "node"})
		if err != nil || f.Attrs.GetString(context.AttrNode) == "" || f.ID.Node() != c.ID().Node() {
			t.Fatalf("%+v, %v", f, err)
		}
		if g, err := c.Lookup(bg, f.ID); err != nil || !g.Attrs.Equal(&f.Attrs) {
			t.Errorf("looked up: %+v, %v", g, err)
		}
		if err := me.SendBytes(bg, f.ID, 1, []byte("hello")); !errors.Is(err, dispatch.ErrGone) || strings.Count(err.Error(), f.ID.String()) != 1 {
			t.Errorf("sending to a node: %v", err)
		}
		if ids := idsOf(all(t, c.FindAll(bg, nil))); !slices.Equal(ids, []resource.GID{me.ID()}) {
			t.Errorf("the user's resources are %v", ids)
		}
	})
}
