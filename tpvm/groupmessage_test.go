// SPDX-License-Identifier: Apache-2.0

package tpvm

import (
	"reflect"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
)

// outOfRange are messages with instance numbers that no coordinator can have given.
var outOfRange = []groupMessage{
	{Op: opView, Members: []member{{Inst: 0}, {Inst: maxInstance + 1}}},
	{Op: opJoined, Tokens: []uint64{1}, Members: []member{{Inst: -1}}},
	{Op: opReserved, Tokens: []uint64{1}, Inst: maxInstance + 1},
	{Op: opJoin, Tokens: []uint64{1}, Inst: -2},
}

// An instance number that no coordinator can have given is refused, before memory for that many
// members is allocated.
func TestGroupMessageInstance(t *testing.T) {
	for _, m := range outOfRange {
		p := try.Get(m.appendTo(nil))(t)
		try.Fails(new(groupMessage).decode(p))(t, errGroupMessage, "%+v", m)
	}
}

// Messages of other tasks are decoded or refused. A decoded message has one encoding.
func FuzzGroupMessage(f *testing.F) {
	for _, m := range []groupMessage{
		{Op: opArrive, Version: 3, Count: 64, Tokens: []uint64{1, 2, 900, 5}},
		{Op: opRelease, Freeze: true},
		{Op: opReserved, Tokens: []uint64{7}, Inst: -1},
		{Op: opChange, Version: 1 << 60, Gone: true, Left: true, Members: []member{{Inst: 1}}},
	} {
		p := try.Get(m.appendTo(nil))(f)
		f.Add(p)
	}
	for _, m := range outOfRange {
		p := try.Get(m.appendTo(nil))(f)
		f.Add(p)
	}
	f.Add([]byte{formatShort, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, p []byte) {
		var m, again groupMessage
		if m.decode(p) != nil {
			return
		}
		q, err := m.appendTo(nil)
		if err != nil {
			return // for example a negative op, which is never sent
		}
		if err := again.decode(q); err != nil {
			t.Fatalf("%v of %+v", err, m)
		}
		if m.Op >= 0 && m.Op < 256 && m.Count >= 0 && len(m.Tokens) > 0 && !reflect.DeepEqual(m, again) {
			t.Fatalf("%+v, and again %+v", m, again)
		}
	})
}
