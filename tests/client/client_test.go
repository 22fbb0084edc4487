// SPDX-License-Identifier: Apache-2.0

// Package client_test has a client in another language, and runs it.
package client_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A program that was written from docs/PROTOCOL.md alone registers a resource, finds one, sends it
// a message over TCP, and receives the answer.
func TestClient(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	socket := filepath.Join(t.TempDir(), "socket")
	c, err := rocl.Open(t.Context(), rocl.WithSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := c.Register(t.Context(), rocl.Attrs{"name": "echo"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context()) // ends if the client has failed
	answered := make(chan error, 1)
	go func() { answered <- answer(ctx, c, r) }()
	out, err := exec.CommandContext(ctx, python, "client.py", socket, "echo", "7", "hello").CombinedOutput()
	if want := "8 HELLO\n"; err != nil || string(out) != want {
		t.Errorf("the client printed %q, want %q: %v", out, want, err)
		cancel()
	}
	try.Check(t, <-answered)
	cancel()
}

// answer receives a message of the client, finds the resource that the client has registered, and
// sends to it.
func answer(ctx context.Context, c *rocl.Context, r *rocl.Resource) error {
	m, err := r.Recv(ctx)
	if err != nil {
		return err
	}
	defer m.Release()
	found, err := c.Find(ctx, rocl.Match{"type": "python"})
	if err != nil {
		return err
	}
	if found.ID != m.From() {
		return fmt.Errorf("%v is found, and the message is from %v", found.ID, m.From())
	}
	return r.SendBytes(ctx, found.ID, m.Tag()+1, bytes.ToUpper(m.Bytes()))
}
