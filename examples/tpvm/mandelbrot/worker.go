// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/rocl-go/rocl/tpvm"
)

// wait is the main function of a worker process. It waits until ctx ends, and prints that if a user
// has started the process.
func wait(ctx context.Context, t *tpvm.Task) error {
	if t.Parent().IsZero() {
		fmt.Printf("rendering for virtual machine %s on %s\n", t.VM(), t.Host())
	}
	<-ctx.Done()
	return nil
}

// render is the function of a thread. It renders the tiles that its parent asks for.
func render(ctx context.Context, t *tpvm.Thread) error {
	var v view
	_, err := t.RecvInto(ctx, t.Parent(), show, &v.Re, &v.Im, &v.Width, &v.X, &v.Y, &v.Limit, &v.Samples)
	if err == nil {
		err = v.check()
	}
	for err == nil {
		var k int
		m, e := t.RecvInto(ctx, t.Parent(), tpvm.AnyTag, &k)
		if err = e; err != nil || m.Tag == end {
			break
		}
		err = t.SendPacked(ctx, t.Parent(), tile, k, v.render(k).Pix)
	}
	return err
}
