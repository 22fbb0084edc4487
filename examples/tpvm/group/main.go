// SPDX-License-Identifier: Apache-2.0

// Command group makes processes join a group, meet in a barrier, add up their values, and leave:
//
//	go run ./examples/tpvm/group -n 4
package main

import (
	"context"
	"flag"
	"fmt"
	"log"

	"github.com/rocl-go/rocl/tpvm"
)

// The tags of messages.
const (
	sum  = iota // of Reduce
	left        // to the parent: a member has left
)

var n = flag.Int("n", 4, "number of members")

func main() {
	flag.Parse()
	if err := tpvm.Run(context.Background(), run); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, t *tpvm.Task) error {
	if !t.Parent().IsZero() {
		return member(ctx, t)
	}
	members, err := t.Spawn(ctx, tpvm.Self, *n, tpvm.Args("-n", fmt.Sprint(*n)), tpvm.EndWithParent())
	if err != nil {
		return err
	}
	for _, id := range members {
		var instance, total int
		if _, err := t.RecvInto(ctx, id, left, &instance, &total); err != nil {
			return err
		}
		if instance == 0 {
			fmt.Printf("%d members, sum of their squares: %d\n", *n, total)
		}
	}
	size, err := t.GroupSize(ctx, "squares")
	fmt.Printf("members that are left: %d\n", size)
	return err
}

func member(ctx context.Context, t *tpvm.Task) error {
	g, err := t.Join(ctx, "squares")
	if err != nil {
		return err
	}
	if err := g.Barrier(ctx, *n); err != nil { // until all have joined
		return err
	}
	i := g.Instance()
	total, err := tpvm.Reduce(ctx, g, sum, 0, []int{i * i}, tpvm.Sum)
	if err != nil {
		return err
	}
	if i != 0 {
		total = []int{0} // instance 0 has the result
	}
	if err := g.Barrier(ctx, *n); err != nil { // no member leaves before all have called Reduce
		return err
	}
	if err := g.Leave(ctx); err != nil {
		return err
	}
	return t.SendPacked(ctx, t.Parent(), left, i, total[0])
}
