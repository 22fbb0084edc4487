// SPDX-License-Identifier: Apache-2.0

package group_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/group"
)

// Two members, mostly of different processes. The error of one ends both, and names it.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	c, err := rocl.Open(ctx, rocl.WithSocket(filepath.Join(dir, "socket"))) // a program needs no WithSocket
	if err != nil {
		panic(err)
	}
	defer c.Close()

	source, err := group.Join(ctx, c, "indexing", rocl.Attrs{"role": "source"})
	if err != nil {
		panic(err)
	}
	worker, err := group.Join(ctx, c, "indexing", rocl.Attrs{"role": "worker", "shard": "3"})
	if err != nil {
		panic(err)
	}
	source.Go(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	worker.Go(func(context.Context) error { return errors.New("the disk is full") })

	var failure *group.Error
	if errors.As(source.Wait(), &failure) {
		fmt.Println(failure.Member, failure.Err)
	}
	if errors.As(worker.Wait(), &failure) {
		fmt.Println(failure.Member, failure.Err)
	}
	// Output:
	// role=worker shard=3 the disk is full
	// role=worker shard=3 the disk is full
}
