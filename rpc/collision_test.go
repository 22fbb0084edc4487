// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// The identifier of a name is its 64-bit xxhash, which other programs compute too.
//
// Promise (Package rpc): The identifier of a name is its xxhash. A colliding name is refused. See
// also TestCollision.
func TestGoldenNames(t *testing.T) {
	for name, want := range map[string]uint64{"": 0xef46db3751d8e999, "a": 0xd24ec4f1a98c6e5b, "abc": 0x44bc2cf5ad770999} {
		try.Equal(t, callID(name), want, "%q", name)
	}
}

// A name whose identifier another name has is refused, and the error names both.
func TestCollision(t *testing.T) {
	c := try.Get(rocl.Open(t.Context(), rocl.WithSocket(freeaddr.Socket(t))))(t)
	defer c.Close()
	s := try.Get(NewServer(t.Context(), c, nil))(t)
	defer s.Close(t.Context())
	names := maps.Clone(*s.names.Load()) // as if the two names had the same hash
	names[callID("second")] = &method{name: "first", stats: new(methodStats)}
	s.names.Store(&names)
	f := func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil }
	err := Register(s, "second", f)
	if !errors.Is(err, ErrCollision) || !strings.Contains(err.Error(), `"first"`) || !strings.Contains(err.Error(), `"second"`) {
		t.Error(err)
	}
	try.Check(t, Register(s, "third", f))
	try.Fails(Register(s, "third", f))(t, ErrExists)
}
