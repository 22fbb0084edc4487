// SPDX-License-Identifier: Apache-2.0

//go:build ofi

package fabric

import (
	"errors"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/ownnode"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

func TestMain(m *testing.M) { ownnode.Main(m) }

// Contexts of the commands exchange messages over the fabric.
func TestOptions(t *testing.T) {
	ctx := eventually.Context(t)
	open := func() *rocl.Context {
		c := try.Get(rocl.Open(ctx, Options()...))(t)
		t.Cleanup(func() { c.Close() })
		return c
	}
	to, err := open().Register(ctx, nil, rocl.Over("ofi"))
	if errors.Is(err, rocl.ErrRule) {
		t.Skip(err) // no libfabric
	}
	try.OK(t, err)
	from := try.Get(open().Register(ctx, nil))(t)
	try.OK(t, from.SendBytes(ctx, to.ID(), 1, []byte("hello")))
	m := try.Get(to.Recv(ctx))(t)
	defer m.Release()
	try.Equal(t, string(m.Bytes()), "hello", "message")
}
