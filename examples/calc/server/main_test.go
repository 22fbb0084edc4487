// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/examples/internal/example"
	"github.com/rocl-go/rocl/rpc"
)

func TestMain(m *testing.M) { example.Main(m, main) }

// The server adds, and ends when it is interrupted.
func TestServer(t *testing.T) {
	node := example.New(t)
	calculators := rocl.Match{"type": "calculator"}
	server := node.Start(calculators, []string{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cl, err := rpc.NewClient(ctx, node.Open())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	sum, err := rpc.CallAny[Addends, int](ctx, cl, calculators, "add", Addends{40, 2})
	if err != nil || sum.Value != 42 {
		t.Errorf("40 and 2 are %d, %v", sum.Value, err)
	}
	node.Interrupt(server...)
}
