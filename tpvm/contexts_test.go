// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
	"github.com/rocl-go/rocl/tpvm/pack"
)

// reportMsgContext sends the parent the message context in which this program began, in that
// context. The program's first argument says what it does then, as in PVM's inherit1 to inherit3:
// "spawn" a child; "change" the context and spawn a child; or nothing. The program passes the
// report of a child on to its own parent.
func reportMsgContext(ctx context.Context, t *tpvm.Task) error {
	began := t.MsgContext()
	tell := func(c tpvm.MsgContext) error {
		return tpvm.SendValues(ctx, t.Thread, t.Parent(), 1, []uint32{uint32(c)})
	}
	if err := tell(began); err != nil {
		return err
	}
	switch t.Args()[0] {
	case "change":
		c, err := t.NewContext(ctx)
		if err != nil {
			return err
		}
		if err := tell(c); err != nil {
			return err
		}
		if _, err := t.SetContext(c); err != nil {
			return err
		}
		fallthrough
	case "spawn":
		if _, err := t.Spawn(ctx, tpvm.Self, 1, tpvm.Args("nothing"), program("inherit")); err != nil {
			return err
		}
		defer t.WaitChildren()
		var v [1]uint32
		if _, _, err := tpvm.RecvValues(ctx, t.Thread, tpvm.AnyTask, tpvm.AnyTag, v[:]); err != nil {
			return err
		}
		if _, err := t.SetContext(began); err != nil {
			return err
		}
		return tell(tpvm.MsgContext(v[0]))
	}
	return nil
}

func init() {
	programs["inherit"] = asTask(reportMsgContext)
}

// Children begin in the message context in which their parent was at the spawn. It is the one in
// which the parent began (PVM's inherita and inherit1), or one that the parent has made (inherit3).
func TestInherit(t *testing.T) {
	ctx := deadline(t)
	task := enrol(t, alone(t))
	mine := try.Get(task.NewContext(ctx))(t)
	old, err := task.SetContext(mine)
	if err != nil || old != 0 {
		t.Fatal(old, err)
	}
	for _, what := range []string{"spawn", "change"} {
		ids := try.Get(task.Spawn(ctx, self(t), 1, tpvm.Args(what), program("inherit")))(t)
		hear := func() tpvm.MsgContext { return tpvm.MsgContext(recvInt(t, task.Thread, ids[0], 1)) }
		try.Equal(t, hear(), mine, "%s: the folder of the child", what)
		want := mine
		if what == "change" {
			want = hear()
			if want == mine || want == 0 {
				t.Errorf("the child's new context is %v", want)
			}
		}
		try.Equal(t, hear(), want, "%s: the folder of the child's child", what)
	}
	try.OK(t, task.FreeContext(mine))
	try.Fails(task.FreeContext(mine))(t, tpvm.ErrBadParam)
}

// Messages of another context stay in the mailbox until their context is chosen, whatever their tag
// (inheritb). Threads inherit the context too.
func TestContextsSeparate(t *testing.T) {
	ctx := deadline(t)
	cl := rocltest.Cluster(t, 2)
	a, b := enrol(t, cl.Open(0)), enrol(t, cl.Open(1))
	c := try.Get(a.NewContext(ctx))(t)
	other, err := b.NewContext(ctx)
	if err != nil || other == c || strconv.Itoa(int(c)) != c.String() {
		t.Fatal(other, c, err)
	}
	sendInt(t, a.Thread, b.ID(), 1, 10)
	try.Get(a.SetContext(c))(t)
	sendInt(t, a.Thread, b.ID(), 1, 20)
	try.Get(b.SetContext(c))(t)
	try.Equal(t, recvInt(t, b.Thread, tpvm.AnyTask, tpvm.AnyTag), 20)
	try.Fails(b.TryRecv(tpvm.AnyTask, tpvm.AnyTag))(t, rocl.ErrEmpty)
	try.Gives(b.SetContext(0))(t, c)
	try.Equal(t, recvInt(t, b.Thread, a.ID(), 1), 10)
	try.Get(b.Export(ctx, "tells", func(ctx context.Context, th *tpvm.Thread) error {
		return tpvm.SendValues(ctx, th, th.Parent(), 1, []uint32{uint32(th.MsgContext())})
	}))(t)
	try.Get(a.Spawn(ctx, "tells", 1))(t)
	if k := recvInt(t, a.Thread, tpvm.AnyTask, tpvm.AnyTag); tpvm.MsgContext(k) != c {
		t.Error(k, c)
	}
	try.Fails(a.SetContext(1<<30))(t, tpvm.ErrBadParam)
}

// pvm_recv receives what pvm_psend has sent, and the reverse, in each encoding. A buffer of the
// caller travels as it is.
func TestValues(t *testing.T) {
	ctx := deadline(t)
	cl := rocltest.Cluster(t, 1)
	a, b := enrol(t, cl.Open(0)), enrol(t, cl.Open(0))
	try.OK(t, tpvm.SendValues(ctx, a.Thread, b.ID(), 1, []float64{1, 2, 3}))
	m, err := b.Recv(ctx, a.ID(), 1)
	if err != nil || m.Len() != 24 {
		t.Fatal(m, err)
	}
	v := make([]float64, 3)
	if err := pack.Unpack(&m.Reader, v, 1); err != nil || v[2] != 3 {
		t.Error(v, err)
	}
	m.Release()
	for _, enc := range []pack.Encoding{pack.Default, pack.Raw, pack.InPlace} {
		testValues(t, a.Thread, b.Thread, enc, []int8{-1, 2})
		testValues(t, a.Thread, b.Thread, enc, []uint16{1, 65535})
		testValues(t, a.Thread, b.Thread, enc, []int32{-7, 8, 9})
		testValues(t, a.Thread, b.Thread, enc, []int{-7, 8, 9})
		testValues(t, a.Thread, b.Thread, enc, []float32{1.5})
		testValues(t, a.Thread, b.Thread, enc, []complex128{1i})
	}
	try.OK(t, a.SendBytes(ctx, b.ID(), 2, []byte("abc")))
	two := make([]byte, 2)
	if n, i, err := tpvm.RecvValues(ctx, b.Thread, a.ID(), 2, two); n != 2 || string(two) != "ab" || !errors.Is(err, tpvm.ErrTruncated) || i.Len != 3 {
		t.Error(n, two, i, err)
	}
	try.Fails(tpvm.SendValues(ctx, a.Thread, b.ID(), -1, []int8{1}))(t, tpvm.ErrBadParam)

	mem := try.Get(a.Rocl().Buffer(1 << 20))(t)
	clear(mem.Bytes())
	mem.Bytes()[1<<20-1] = 42
	p := a.Buffer(pack.InPlace)
	try.OK(t, p.PackBuffer(mem))
	at := &mem.Bytes()[0]
	try.OK(t, a.Mcast(ctx, []tpvm.TID{b.ID(), b.ID()}, 3, p))
	try.OK(t, a.SendBuffer(ctx, b.ID(), 3, mem))
	p.Reset(pack.InPlace)
	for range 3 {
		if i, err := b.Probe(a.ID(), 3); err != nil || i.Len != 1<<20 || i.Tag != 3 {
			t.Error(i, err)
		}
		m := try.Get(b.Recv(ctx, a.ID(), 3))(t)
		got, err := pack.View[byte](&m.Reader, m.Len())
		if err != nil || len(got) != 1<<20 || got[1<<20-1] != 42 || &got[0] != at {
			t.Error("the memory was copied, or is another", len(got), err)
		}
		m.Release()
	}
}

func testValues[T pack.Number](t *testing.T, a, b *tpvm.Thread, enc pack.Encoding, v []T) {
	t.Helper()
	ctx := deadline(t)
	p := a.Buffer(enc)
	try.OK(t, pack.Pack(p, v, 1))
	try.OK(t, a.Send(ctx, b.ID(), 4, p))
	got := make([]T, len(v)+2)
	n, i, err := tpvm.RecvValues(ctx, b, tpvm.AnyTask, tpvm.AnyTag, got)
	if n != len(v) && !(enc == pack.Default && n == 4) /* bytes, padded */ || err != nil || i.Tag != 4 || i.From != a.ID() {
		t.Fatal(enc, n, i, err)
	}
	for k := range v {
		try.Equal(t, got[k], v[k], "%v %v %v", enc, v, got)
	}
}
