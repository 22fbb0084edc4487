// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

type tree struct {
	Name   string `json:"name"`
	secret int
	Leaves []tree
	Parts  map[string]*struct{ N [2]int8 }
	Left   int `json:"-"`
}

// Promise (Package rpc): A server tells the types of its calls, and an unknown call names those
// that exist.
func TestTypes(t *testing.T) {
	s, c := pair(t)
	nothing := func(context.Context, tree) (struct{}, error) { return struct{}{}, nil }
	try.OK(t, errors.Join(rpc.Register(s, "add", add), rpc.RegisterStream(s, "count", count), rpc.RegisterClientStream(s, "sum", sum),
		rpc.RegisterTwoWay(s, "sums", runningSums), rpc.Register(s, "tree", nothing)))
	var got []string
	for _, m := range try.Get(rpc.TypesOf(deadline(t), c, s.ID()))(t) {
		got = append(got, m.String())
	}
	want := []string{
		"add(rpc_test.addends {A int64; B int64}) int64",
		"count(int64) stream of int64",
		"sum(stream of int) int",
		"sums(stream of int) stream of int",
		"tree(rpc_test.tree {name string; Leaves []rpc_test.tree; Parts map[string]*{N [2]int8}}) {}",
	}
	try.Equal(t, strings.Join(got, "\n"), strings.Join(want, "\n"))
	_, err := rpc.Call[int, int](deadline(t), c, s.ID(), "ad", 1)
	if !errors.Is(err, rpc.ErrUnknownCall) || !strings.Contains(err.Error(), "it offers add, count, sum, sums, tree") {
		t.Error(err)
	}
	for i := range 1000 {
		try.OK(t, rpc.Register(s, fmt.Sprint("many", i), add))
	}
	if _, err := rpc.Call[int, int](deadline(t), c, s.ID(), "ad", 1); len(err.Error()) > 2<<10 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	_ = tree{}.secret
}
