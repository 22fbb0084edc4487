// SPDX-License-Identifier: Apache-2.0

// Command ring passes a token around processes that all run the same code and know each other as
// siblings (SPMD: single program, multiple data):
//
//	go run ./examples/tpvm/ring -n 4
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"slices"

	"github.com/rocl-go/rocl/tpvm"
)

const token = 4 // the tag of the message

var n = flag.Int("n", 4, "number of processes")

func main() {
	flag.Parse()
	if err := tpvm.Run(context.Background(), run); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, t *tpvm.Task) error {
	if !t.Parent().IsZero() {
		return pass(ctx, t)
	}
	ids, err := t.Spawn(ctx, tpvm.Self, *n, tpvm.EndWithParent())
	if err != nil {
		return err
	}
	var hops int
	if _, err = t.RecvInto(ctx, ids[0], token, &hops); err == nil {
		fmt.Printf("the token made %d hops\n", hops)
	}
	return err
}

// pass sends the token on, one hop older. The first sibling starts the token, and sends it to the
// parent in the end.
func pass(ctx context.Context, t *tpvm.Task) error {
	ring, err := t.Siblings(ctx)
	if err != nil {
		return err
	}
	me, n, hops := slices.Index(ring, t.ID()), len(ring), 0
	left, right := ring[(me+n-1)%n], ring[(me+1)%n]
	if me > 0 {
		if _, err := t.RecvInto(ctx, left, token, &hops); err != nil {
			return err
		}
	}
	if err := t.SendPacked(ctx, right, token, hops+1); err != nil || me > 0 {
		return err
	}
	if _, err := t.RecvInto(ctx, left, token, &hops); err != nil {
		return err
	}
	return t.SendPacked(ctx, t.Parent(), token, hops)
}
