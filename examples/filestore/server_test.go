// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A server that closes or has ended is gone. A server whose handler made a call that found no
// server is not gone.
func TestIsGone(t *testing.T) {
	ctx := t.Context()
	c := rocltest.Cluster(t, 1).Open(0)
	s, err := rpc.NewServer(ctx, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	begun, end := make(chan struct{}), make(chan struct{})
	for name, f := range map[string]func(context.Context, struct{}) (struct{}, error){
		"nested": func(context.Context, struct{}) (struct{}, error) {
			return struct{}{}, fmt.Errorf("nested: %w, %w, %w", rocl.ErrGone, rocl.ErrUnreachable, rocl.ErrNoReply)
		},
		"wait":  func(context.Context, struct{}) (struct{}, error) { close(begun); <-end; return struct{}{}, nil },
		"quick": func(context.Context, struct{}) (struct{}, error) { return struct{}{}, nil },
	} {
		if err := rpc.Register(s, name, f); err != nil {
			t.Fatal(err)
		}
	}
	cl, err := rpc.NewClient(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	call := func(name string) error {
		_, err := rpc.Call[struct{}, struct{}](ctx, cl, s.ID(), name, struct{}{})
		return err
	}
	if err := call("nested"); err == nil || isGone(err) {
		t.Errorf("an error of a nested call: %v", err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = call("wait") })
	<-begun
	running.Go(func() { _ = s.Close(ctx) })
	for err = call("quick"); err == nil; { // until the server closes
		err = call("quick")
	}
	if !isGone(err) {
		t.Errorf("a server that closes: %v", err)
	}
	close(end)
	running.Wait()
	if err := call("quick"); !isGone(err) {
		t.Errorf("a server that has ended: %v", err)
	}
}
