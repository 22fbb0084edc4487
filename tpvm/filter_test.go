// SPDX-License-Identifier: Apache-2.0

package tpvm_test

import (
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rocltest"
	"github.com/rocl-go/rocl/tpvm"
)

// Filters select by sender, tag and message context, whatever the context of the receiver is.
// Matches reports true for the messages that they select.
func TestRecvFilter(t *testing.T) {
	ctx := deadline(t)
	c := rocltest.Cluster(t, 2)
	a, b, other := enrol(t, c.Open(0)), enrol(t, c.Open(1)), enrol(t, c.Open(0))
	send := func(from *tpvm.Task, mc tpvm.MsgContext, tag int, v int32) {
		t.Helper()
		try.Get(from.SetContext(mc))(t)
		sendInt(t, from.Thread, b.ID(), tag, v)
	}
	receive := func(want int32, fs ...tpvm.Filter) {
		t.Helper()
		m := try.Get(b.RecvFilter(ctx, fs...))(t)
		defer m.Release()
		try.Equal(t, number(m), want, "%v received", fs)
		for i, f := range fs {
			try.Equal(t, f.Matches(m), i == 0, "%v matches the message", f)
		}
	}
	send(a, 1, 5, 10)
	send(a, 2, 6, 20)
	send(a, 3, 5, 30)
	send(a, 2, 5, 40)
	receive(20, tpvm.Filter{Tag: tpvm.AnyTag, Context: 2}, tpvm.Filter{Tag: tpvm.AnyTag, Context: 4})
	receive(40, tpvm.Filter{From: a.ID(), Tag: 5, Context: 2}, tpvm.Filter{From: other.ID(), Tag: 5, Context: 1})
	receive(10, tpvm.Filter{Tag: 5, Context: tpvm.AnyContext}, tpvm.Filter{From: other.ID(), Tag: tpvm.AnyTag, Context: tpvm.AnyContext})
	receive(30, tpvm.Filter{From: a.ID(), Tag: tpvm.AnyTag, Context: tpvm.AnyContext}, tpvm.Filter{Tag: 6, Context: 3})
	try.Fails(b.TryRecvFilter(tpvm.Filter{Tag: tpvm.AnyTag, Context: tpvm.AnyContext}))(t, rocl.ErrEmpty)
	beyond := tpvm.MaxTag
	beyond++ // less than 0 where int has 32 bits
	for _, fs := range [][]tpvm.Filter{nil, {{Tag: -2}}, {{Tag: beyond}}, {{Tag: 1}, {Context: 1 << 30}}} {
		try.Fails(b.TryRecvFilter(fs...))(t, tpvm.ErrBadParam, "%v", fs)
	}
}
