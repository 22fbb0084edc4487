// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/interrupt"
	"github.com/rocl-go/rocl/cmd/rocl/internal/cli"
	"go.uber.org/goleak"
)

// TestMain runs the tests. If the environment says so, the test binary is rocl, or a program.
func TestMain(m *testing.M) {
	ctx, stop := interrupt.Context(context.Background())
	switch os.Getenv("BE_PROGRAM") {
	case "rocl":
		root := cli.Root()
		root.AddCommand(Commands()...)
		code := cli.Run(ctx, root, os.Args[1:])
		stop()
		os.Exit(code)
	case "shard":
		be(ctx, shard)
	case "sender":
		be(ctx, sender)
	}
	stop()
	goleak.VerifyTestMain(m)
}

// be runs a program, which ends with its standard input.
func be(ctx context.Context, program func(context.Context, *rocl.Context) error) {
	c, err := rocl.Open(ctx)
	if err == nil {
		err = program(ctx, c)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	_, _ = os.Stdin.Read(make([]byte, 1))
	c.Close()
	os.Exit(0)
}

// shard has a resource, and does not receive.
func shard(ctx context.Context, c *rocl.Context) error {
	_, err := c.Register(ctx, rocl.Attrs{"name": "shard", "n": "2"})
	fmt.Println("ready")
	return err
}

// sender sends the shard 300 messages.
func sender(ctx context.Context, c *rocl.Context) error {
	me, err := c.Register(ctx, rocl.Attrs{"name": "sender"})
	if err != nil {
		return err
	}
	to, err := c.Find(ctx, rocl.Match{"name": "shard"})
	for i := 0; i < 300 && err == nil; i++ {
		err = me.SendBytes(ctx, to.ID, 7, []byte("hello"))
	}
	fmt.Println("ready")
	return err
}
