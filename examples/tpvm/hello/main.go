// SPDX-License-Identifier: Apache-2.0

// Command hello starts a second process of itself and prints the greeting that it sends:
//
//	go run ./examples/tpvm/hello
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/rocl-go/rocl/tpvm"
)

func main() {
	if err := tpvm.Run(context.Background(), hello); err != nil {
		log.Fatal(err)
	}
}

func hello(ctx context.Context, t *tpvm.Task) error {
	if !t.Parent().IsZero() { // another task has spawned this one
		return t.SendPacked(ctx, t.Parent(), 1, "hello, world from "+t.Host())
	}
	ids, err := t.Spawn(ctx, tpvm.Self, 1)
	if err != nil {
		return err
	}
	var greeting string
	m, err := t.RecvInto(ctx, ids[0], tpvm.AnyTag, &greeting)
	if err != nil {
		return err
	}
	fmt.Printf("from %v: %s\n", m.From, greeting)
	return nil
}
