// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/rpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fileSum returns the checksum of the bytes of a file.
func fileSum(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum, err := sumOf(f)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// When several versions of one file are put at once, one of them is left, with its own sum.
// Requests for the file meanwhile do not change that.
func TestVersionsAtOnce(t *testing.T) {
	const size = 20_000
	dir := t.TempDir()
	s := newServer(dir, nil)
	path, kept := filepath.Join(dir, "f"), filepath.Join(dir, ".f.sum")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if err := os.RemoveAll(kept); err != nil { // so that stat sums the file
			t.Fatal(err)
		}
		var done sync.WaitGroup
		for _, v := range []string{"a", "b"} {
			part := filepath.Join(dir, ".f."+v+".part")
			if err := os.WriteFile(part, []byte(strings.Repeat(v, size)), 0o644); err != nil {
				t.Fatal(err)
			}
			want := file{"f", size, fileSum(t, part)}
			done.Go(func() {
				f, err := os.Open(part)
				if err == nil {
					defer f.Close()
					err = s.complete(f, part, path, want)
				}
				if err != nil {
					t.Error(err)
				}
			})
			done.Go(func() {
				if _, err := s.stat("f"); err != nil {
					t.Error(err)
				}
			})
		}
		done.Wait()
		if got, err := s.stat("f"); err != nil || got.Sum != fileSum(t, path) {
			t.Fatalf("%v, %v: the sum of the file is %s", got, err, fileSum(t, path))
		}
	}
}

// A sum that a killed server has not written to its end is ignored.
func TestSumCutShort(t *testing.T) {
	dir := t.TempDir()
	for _, f := range []struct{ name, text string }{{"f", "bytes"}, {".f.sum", ""}} { // the sum is not older
		if err := os.WriteFile(filepath.Join(dir, f.name), []byte(f.text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := newServer(dir, nil).stat("f"); err != nil || got.Sum != fileSum(t, filepath.Join(dir, "f")) {
		t.Errorf("%v, %v", got, err)
	}
}

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
