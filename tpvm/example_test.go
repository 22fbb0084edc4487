// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// A task spawns threads of a function that it exports itself, and gives each a number to square.
func Example() {
	square := func(ctx context.Context, th *tpvm.Thread) error {
		var x float64
		if _, err := th.RecvInto(ctx, th.Parent(), 1, &x); err != nil {
			return err
		}
		return th.SendPacked(ctx, th.Parent(), 2, x*x)
	}
	err := tpvm.Run(context.Background(), func(ctx context.Context, t *tpvm.Task) error {
		ids, err := t.Spawn(ctx, "square", 3)
		if err != nil {
			return err
		}
		for i, id := range ids {
			if err := t.SendPacked(ctx, id, 1, float64(i+1)); err != nil {
				return err
			}
		}
		for _, id := range ids {
			var y float64
			if _, err := t.RecvInto(ctx, id, 2, &y); err != nil {
				return err
			}
			fmt.Println(y)
		}
		return nil
	}, tpvm.WithExport("square", square))
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// 1
	// 4
	// 9
}

// A message to several threads is packed once. Each thread unpacks its values in their order.
func ExampleThread_Mcast() {
	sum := func(ctx context.Context, th *tpvm.Thread) error {
		m, err := th.Recv(ctx, th.Parent(), 1)
		if err != nil {
			return err
		}
		defer m.Release()
		n, err := pack.UnpackOne[int32](&m.Reader)
		if err != nil {
			return err
		}
		v, err := pack.View[float64](&m.Reader, int(n))
		if err != nil {
			return err
		}
		total := 0.0
		for _, x := range v {
			total += x
		}
		return th.SendPacked(ctx, th.Parent(), 2, total)
	}
	err := tpvm.Run(context.Background(), func(ctx context.Context, t *tpvm.Task) error {
		ids, err := t.Spawn(ctx, "sum", 2)
		if err != nil {
			return err
		}
		b := t.Buffer(pack.Default)
		if err := b.PackValues(int32(3), []float64{1, 2, 4}); err != nil {
			return err
		}
		if err := t.Mcast(ctx, ids, 1, b); err != nil {
			return err
		}
		for range ids {
			var total float64
			if _, err := t.RecvInto(ctx, tpvm.AnyTask, 2, &total); err != nil {
				return err
			}
			fmt.Println(total)
		}
		return nil
	}, tpvm.WithExport("sum", sum))
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// 7
	// 7
}
