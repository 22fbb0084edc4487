// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

func greet(ctx context.Context, t *tpvm.Thread) error { return t.SendPacked(ctx, t.Parent(), 3, "hi") }

func init() {
	programs["run"] = func() error { // waits until it is killed, and then sends to its parent
		return tpvm.Run(context.Background(), func(ctx context.Context, t *tpvm.Task) error {
			if _, err := t.Recv(ctx, t.Parent(), 1); ctx.Err() == nil {
				return err
			}
			return t.SendPacked(context.WithoutCancel(ctx), t.Parent(), 2, "killed")
		}, tpvm.WithRocl(rocl.WithSocket(os.Getenv("TPVM_TEST_SOCKET"))), tpvm.WithExport("greet", greet))
	}
}

// When a task in Run is killed, its context ends, and it exits. Self is the program of the test.
func TestRunKilled(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	ids := try.Get(task.Spawn(ctx, tpvm.Self, 1, program("run")))(t)
	threads := try.Get(task.Spawn(ctx, "greet", 1))(t) // exported as soon as the task has enrolled
	try.Get(task.RecvInto(ctx, threads[0], 3))(t)
	try.OK(t, task.Kill(ctx, ids[0]))
	var said string
	if _, err := task.RecvInto(ctx, ids[0], 2, &said); err != nil || said != "killed" {
		t.Error(said, err)
	}
	try.Fails(task.RecvInto(ctx, ids[0], 2))(t, rocl.ErrGone)
}

// Run returns the error of its function, after the task has exited.
func TestRunFails(t *testing.T) {
	c := rocltest.Cluster(t, 1).Open(0)
	try.Fails(tpvm.Run(deadline(t), func(ctx context.Context, task *tpvm.Task) error {
		return io.ErrUnexpectedEOF
	}, tpvm.WithContext(c), tpvm.WithVM("test")))(t, io.ErrUnexpectedEOF)
	for f, err := range c.FindAll(t.Context(), rocl.Match{"vm": "test"}) {
		t.Error("left behind:", f, err)
	}
}

// Values arrive as they were sent. RecvInto of a message about an end fails with rocl.ErrGone.
func TestSendPacked(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	try.OK(t, a.SendPacked(ctx, b.ID(), 3, "pi", 3.14, []int32{1, 2, 3}))
	var s string
	var f float64
	is := make([]int32, 3)
	i, err := b.RecvInto(ctx, tpvm.AnyTask, tpvm.AnyTag, &s, &f, is)
	if err != nil || i.Len != 4+3+8+12 || i.From != a.ID() || i.Tag != 3 || s != "pi" || f != 3.14 || is[2] != 3 {
		t.Error(i, s, f, is, err)
	}
	try.OK(t, a.SendPacked(ctx, b.ID(), 3, 7))
	try.Fails(b.RecvInto(ctx, a.ID(), 3, &f))(t, pack.ErrType, "an int is received as a float64:%v", f)
	untyped := a.Buffer(pack.Default)
	try.OK(t, errors.Join(pack.PackOne(untyped, 2.5), a.Send(ctx, b.ID(), 3, untyped)))
	if _, err := b.RecvInto(ctx, a.ID(), 3, &f); f != 2.5 || err != nil {
		t.Error(f, err)
	}
	try.Fails(a.SendPacked(ctx, b.ID(), 3, true))(t, pack.ErrBadParam)
	try.Get(b.Export(ctx, "end", func(context.Context, *tpvm.Thread) error { return nil }))(t)
	ids := try.Get(a.Spawn(ctx, "end", 1))(t)
	try.Get(a.Notify(ctx, 4, ids...))(t)
	if i, err := a.RecvInto(ctx, tpvm.AnyTask, 4, &s); !errors.Is(err, rocl.ErrGone) || i.From != ids[0] {
		t.Error(i, err)
	}
}
