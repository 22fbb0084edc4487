// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/examples/internal/example"
	"github.com/rocl-go/rocl/rpc"
)

func TestMain(m *testing.M) { example.Main(m, main) }

// The client prints the sum and the server, and fails without a server.
func TestClient(t *testing.T) {
	node := example.New(t)
	node.Fails("no such resource")
	s, err := rpc.NewServer(t.Context(), node.Open(), rocl.Attrs{"type": "calculator"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	err = rpc.Register(s, "add", func(_ context.Context, in Addends) (int, error) { return in.A + in.B, nil })
	if err != nil {
		t.Fatal(err)
	}
	if said, want := node.Run(), fmt.Sprintln(42, s.ID()); said != want {
		t.Errorf("the client says %q, not %q", said, want)
	}
}
