// SPDX-License-Identifier: Apache-2.0

// Command server offers the call "add".
package main

import (
	"context"
	"log"
	"os"
	"os/signal"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rpc"
)

// Addends are the arguments of the call "add".
type Addends struct{ A, B int }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	s, err := rpc.NewServer(ctx, c, rocl.Attrs{"type": "calculator"})
	if err != nil {
		log.Fatal(err)
	}
	err = rpc.Register(s, "add", func(ctx context.Context, in Addends) (int, error) { return in.A + in.B, nil })
	if err != nil {
		log.Fatal(err)
	}
	<-ctx.Done()
	_ = s.Close(context.Background())
}
