// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// Errors describe what is wrong in the words of the caller.
func TestErrorTexts(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, rocltest.Cluster(t, 1).Open(0))
	g := try.Get(task.Join(ctx, "g"))(t)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, c := range []struct {
		err  error
		is   error
		want string
	}{
		{second(task.Recv(ended, tpvm.AnyTask, 2)), context.Canceled, "tpvm: receive tag 2 from any task: "},
		{second(task.Recv(ended, task.ID(), tpvm.AnyTag)), context.Canceled, "tpvm: receive any tag from " + task.ID().String() + ": "},
		{second(task.Recv(ctx, tpvm.AnyTask, -5)), tpvm.ErrBadParam, "tpvm: receive tag -5 from any task: a tag is 0 to MaxTag, or AnyTag"},
		{task.Send(ctx, task.ID(), -5, nil), tpvm.ErrBadParam, "tag -5: a tag is 0 to MaxTag"},
		{task.Send(ctx, tpvm.TID{}, 1, nil), tpvm.ErrBadParam, "tpvm: send: the zero TID is no task"},
		{task.SendPacked(ctx, tpvm.TID{}, 1, 1), tpvm.ErrBadParam, "tpvm: send: the zero TID is no task"},
		{task.Mcast(ctx, []tpvm.TID{task.ID(), {}}, 1, nil), tpvm.ErrBadParam, "tpvm: mcast to 2: the zero TID is no task"},
		{g.Barrier(ctx, 0), tpvm.ErrBadParam, `tpvm: barrier of group "g" as member 0: count 0 is not positive`},
		{second(task.Join(ctx, "")), tpvm.ErrBadParam, "the name is empty"},
		{second(task.Export(ctx, "f", nil)), tpvm.ErrBadParam, `tpvm: export "f": the function is nil`},
		{second(task.GroupTID(ctx, "g", 9)), tpvm.ErrNoInstance, "instance 9: "},
		{task.DelHosts(ctx, "foo"), tpvm.ErrNoPod, `there is no host "foo"`},
		{pack.PackOne(task.Buffer(pack.Default), int64(1<<40)), pack.ErrOverflow, "a long does not fit into four bytes"},
		{second(task.Spawn(ctx, self(t), 3, tpvm.Dir("/nonexistent"))), nil, "directory /nonexistent on " + task.Host() + ": no such file"},
		{second(task.Spawn(ctx, "no-such-program", 3)), tpvm.ErrNoProgram, "3 of 3 not started: no-such-program.0, no-such-program.1 and 1 more: tpvm: "},
		{second(task.Start(ctx, "no-such-program", 2)), tpvm.ErrNoProgram, "not started: no-such-program.0 and no-such-program.1: tpvm: "},
	} {
		if c.err == nil || c.is != nil && !errors.Is(c.err, c.is) || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v: want %v, %q", c.err, c.is, c.want)
		}
	}
}
