// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"io"
	"sync"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/tpvm"
)

// wantNothing waits until the test's virtual machine has no resources.
func wantNothing(t *testing.T, c *rocl.Context) {
	t.Helper()
	eventually.True(t, "no resource is left", func() bool {
		left := 0
		for _, err := range c.FindAll(deadline(t), rocl.Match{"vm": "test"}) {
			try.OK(t, err, "%d resources are left", left)
			left++
		}
		return left == 0
	})
}

// Exit may run at the same time as calls that start goroutines of the task. The calls fail, and
// leave nothing behind.
func TestExitDuringCalls(t *testing.T) {
	c := alone(t)
	ctx := deadline(t)
	wait := func(ctx context.Context, th *tpvm.Thread) error {
		<-ctx.Done()
		return nil
	}
	for range 3 {
		task := try.Get(tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithVM("test"), tpvm.WithExport("wait", wait)))(t)
		var calling, all sync.WaitGroup
		stop := make(chan struct{})
		repeat := func(f func()) {
			calling.Add(1)
			all.Go(func() {
				f()
				calling.Done()
				for {
					select {
					case <-stop:
						return
					default:
						f()
					}
				}
			})
		}
		callers, cancel := context.WithCancel(ctx)
		repeat(func() { _, _ = task.Spawn(callers, "wait", 2) })
		repeat(func() {
			if remove, err := task.AddHandler(tpvm.AnyTask, 7, 0, func(context.Context, *tpvm.Message) {}); err == nil {
				remove()
			}
		})
		repeat(func() { _ = task.Catchout(io.Discard) })
		repeat(func() { _, _ = task.Start(callers, "true", 1, tpvm.EndWithParent()) })
		repeat(func() {
			if stop, err := task.NotifyHosts(callers, 3); err == nil {
				stop()
			}
		})
		repeat(func() { _, _ = task.NewContext(callers) })
		calling.Wait()
		try.OK(t, task.Exit(ctx))
		try.Fails(task.Catchout(io.Discard))(t, tpvm.ErrExited)
		close(stop)
		cancel()
		all.Wait()
	}
	wantNothing(t, c)
}

// Exit and an Enrol that fails withdraw all resources of the task.
func TestExitWithdraws(t *testing.T) {
	c := alone(t)
	ctx := deadline(t)
	nop := func(context.Context, *tpvm.Thread) error { return nil }
	task := try.Get(tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithVM("test"), tpvm.WithExport("f", nop)))(t)
	try.Get(task.NewContext(ctx))(t)
	try.OK(t, task.Exit(ctx))
	wantNothing(t, c)
	try.Fails(task.Export(ctx, "g", nop))(t, tpvm.ErrExited)
	twice := tpvm.WithExport("f", nop)
	try.Fails(tpvm.Enrol(ctx, tpvm.WithContext(c), tpvm.WithVM("test"), twice, twice))(t, tpvm.ErrExported)
	wantNothing(t, c)
}

// A program that has not enrolled ends with its parent, also if the parent exits and is its
// launcher.
func TestExitEndsUnenrolled(t *testing.T) {
	ctx := deadline(t)
	task := try.Get(tpvm.Enrol(ctx, tpvm.WithContext(alone(t)), tpvm.WithVM("test")))(t)
	try.Get(task.Start(ctx, "sleep", 1, tpvm.Args("300"), tpvm.EndWithParent()))(t)
	try.OK(t, task.Exit(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		task.WaitChildren()
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("the program goes on")
		task.KillChildren()
		<-ended
	}
}
