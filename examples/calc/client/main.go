// SPDX-License-Identifier: Apache-2.0

// Command client finds a calculator and has it add two numbers.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/rpc"
)

// Addends are the arguments of the call "add".
type Addends struct{ A, B int }

func main() {
	ctx := context.Background()
	c, err := rocl.Open(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	cl, err := rpc.NewClient(ctx, c)
	if err != nil {
		log.Fatal(err)
	}
	defer cl.Close()
	sum, err := rpc.CallAny[Addends, int](ctx, cl, rocl.Match{"type": "calculator"}, "add", Addends{40, 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(sum.Value, sum.Provider) // 42, and which server it was
}
