// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/rocl-go/rocl/tpvm"
)

// said counts what a process that was started by hand prints about its threads.
var said struct {
	sync.Mutex
	threads, tiles int
}

// wait is the main function of a worker process. It waits until ctx ends, and prints that if a user
// has started the process.
func wait(ctx context.Context, t *tpvm.Task) error {
	if !t.Parent().IsZero() {
		<-ctx.Done()
		return nil
	}
	hosts, err := t.Hosts(ctx)
	if err != nil {
		return err
	}
	tasks := -1 // all tasks but this one
	for _, h := range hosts {
		tasks += h.Tasks
	}
	fmt.Printf("rendering for virtual machine %s on %s (node %012x); %s, %s\n",
		t.VM(), t.Host(), uint64(t.ID().Node()), count(len(hosts), "node", "nodes"), count(max(0, tasks), "other task", "other tasks"))
	<-ctx.Done()
	fmt.Println("ended: this process renders no more")
	return nil
}

// render is the function of a thread. It renders the tiles that its parent asks for.
func render(ctx context.Context, t *tpvm.Thread) error {
	var v view
	_, err := t.RecvInto(ctx, t.Parent(), show, &v.Re, &v.Im, &v.Width, &v.X, &v.Y, &v.Limit, &v.Samples)
	if err == nil {
		err = v.check()
	}
	begin(t)
	n := 0
	for err == nil {
		var k int
		var m tpvm.Info
		if m, err = t.RecvInto(ctx, t.Parent(), tpvm.AnyTag, &k); err != nil || m.Tag == end {
			break
		}
		if err = t.SendPacked(ctx, t.Parent(), tile, k, v.render(k).Pix); err == nil {
			n++
		}
	}
	finish(t, n)
	return err
}

// begin is called by each thread of a picture, and prints that the first of them renders.
func begin(t *tpvm.Thread) {
	said.Lock()
	defer said.Unlock()
	if said.threads++; said.threads == 1 && t.Task().Parent().IsZero() {
		fmt.Println("rendering a picture of task", t.Parent())
	}
}

// finish counts the tiles of a thread, and prints the sum when the last thread has ended.
func finish(t *tpvm.Thread, tiles int) {
	said.Lock()
	defer said.Unlock()
	said.tiles += tiles
	if said.threads--; said.threads > 0 {
		return
	}
	if t.Task().Parent().IsZero() {
		fmt.Printf("rendered %s; waiting for the next picture\n", count(said.tiles, "tile", "tiles"))
	}
	said.tiles = 0
}

// count returns a number of things in words.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
