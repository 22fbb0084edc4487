// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
)

// Messages of one sender keep their order. A receive selects by sender, by tag, by both or by
// neither.
func TestRecv(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b, d := enrol(t, c.Open(0)), enrol(t, c.Open(1)), enrol(t, c.Open(1))
	const n = 1000
	for i := range int32(n) {
		sendInt(t, a.Thread, b.ID(), int(i%3), i)
	}
	for i := range int32(n) {
		if v := recvInt(t, b.Thread, tpvm.AnyTask, tpvm.AnyTag); v != i {
			t.Fatalf("message %d is %d", i, v)
		}
	}
	sendInt(t, a.Thread, b.ID(), 1, 10)
	sendInt(t, a.Thread, b.ID(), 2, 20)
	sendInt(t, a.Thread, b.ID(), 3, 30)
	sendInt(t, d.Thread, b.ID(), 1, 40)
	for _, r := range []struct {
		from tpvm.TID
		tag  int
		want int32
	}{{tpvm.AnyTask, 3, 30}, {d.ID(), tpvm.AnyTag, 40}, {a.ID(), 2, 20}, {tpvm.AnyTask, tpvm.AnyTag, 10}} {
		try.Equal(t, recvInt(t, b.Thread, r.from, r.tag), r.want, "from %v with tag %d", r.from, r.tag)
	}
	try.Fails(b.TryRecv(tpvm.AnyTask, tpvm.AnyTag))(t, rocl.ErrEmpty)
	try.Fails(b.Probe(tpvm.AnyTask, tpvm.AnyTag))(t, rocl.ErrEmpty)
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	try.Fails(b.Recv(short, a.ID(), 1))(t, context.DeadlineExceeded)
	beyond := tpvm.MaxTag
	beyond++ // less than 0 where int has 32 bits
	for _, tag := range []int{-2, beyond} {
		if m, err := b.Recv(ctx, tpvm.AnyTask, tag); !errors.Is(err, tpvm.ErrBadParam) {
			t.Error(tag, m, err)
		}
		try.Fails(a.Send(ctx, b.ID(), tag, nil))(t, tpvm.ErrBadParam, "%v", tag)
	}
}

// Notify sends one message for each identifier that it is given, at once if the task or thread has
// ended before. After stop it sends none.
func TestNotify(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b := enrol(t, c.Open(0)), enrol(t, c.Open(1))
	try.Get(b.Export(ctx, "waits", func(ctx context.Context, _ *tpvm.Thread) error { <-ctx.Done(); return nil }))(t)
	ids := try.Get(a.Spawn(ctx, "waits", 2))(t)
	notify := func(tag int, ids ...tpvm.TID) (stop func()) {
		t.Helper()
		return try.Get(a.Notify(ctx, tag, ids...))(t)
	}
	wantGone := func(tag int, id tpvm.TID) {
		t.Helper()
		m := try.Get(a.Recv(ctx, tpvm.AnyTask, tag))(t)
		if !m.IsGone() || m.From() != id {
			t.Errorf("a notice of %v, gone: %v", m.From(), m.IsGone())
		}
		m.Release()
	}
	stop := notify(1, ids...)
	notify(2, ids[0], ids[1], ids[0])
	stop()
	try.OK(t, a.Kill(ctx, ids[0]))
	wantGone(2, ids[0])
	wantGone(2, ids[0])
	notify(3, ids[0], b.ID()) // ids[0] has ended already
	wantGone(3, ids[0])
	try.OK(t, a.Kill(ctx, ids[1]))
	wantGone(2, ids[1])
	try.OK(t, b.Exit(ctx))
	wantGone(3, b.ID())
	try.Fails(a.TryRecv(tpvm.AnyTask, tpvm.AnyTag))(t, rocl.ErrEmpty)
}
