// SPDX-License-Identifier: Apache-2.0

package search

import (
	"reflect"
	"testing"
	"time"

	"github.com/rocl-go/rocl/resource"
)

// Packets of any bytes are read or refused, and do no harm.
func FuzzPacket(f *testing.F) {
	for _, p := range []Packet{
		{Type: typeAsk, Fan: 2, ID: ID{1, 2}, Lo: 3, Hi: 9, Body: []byte("q")},
		{Type: typeFound, Fan: 16, ID: ID{5, 1}, Lo: 5, Hi: 5, From: 5, Body: []byte("a")},
		{Type: typeNone, Fan: Flat, ID: ID{5, 1}, Lo: 3, Hi: 9, Covered: 4, Sum: 7, Failed: []resource.NodeID{4, 5}},
		{Type: typeNone, Fan: Flat, ID: ID{5, 1}, Lo: 3, Hi: 9, Covered: 4, Sum: 7, Known: 8, Failed: []resource.NodeID{4, 5}},
		{Type: typeBusy, Fan: 16, ID: ID{5, 1}, Lo: 3, Hi: 9},
	} {
		f.Add(p.Append(nil), uint64(3))
		f.Add(p.AppendTo(nil, 5, p.ID.Asker), uint64(3))
	}
	for _, p := range []Packet{
		{Type: typeAsk, Fan: 2, ID: ID{3, 2}, Lo: 5, Hi: 5, Body: []byte("q")},
		{Type: typeFound, Fan: 2, ID: ID{5, 2}, Lo: 3, Hi: 3, From: 3, Body: []byte("a")},
		{Type: typeNone, Fan: 2, ID: ID{5, 2}, Lo: 3, Hi: 3, Covered: 1, Sum: 7},
		{Type: typeNone, Fan: 2, ID: ID{5, 2}, Lo: 3, Hi: 3, Covered: 1, Sum: 7, Known: 8},
	} {
		b := p.AppendTo(nil, 3, 5)
		if len(b) >= len(p.Append(nil)) {
			f.Errorf("%+v takes %d bytes", p, len(b))
		}
		f.Add(b, uint64(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, from uint64) {
		var p, q Packet
		if p.ParseFrom(b, resource.NodeID(from), 5) != nil {
			return
		}
		again := p.AppendTo(nil, resource.NodeID(from), 5)
		if string(again) != string(b) && len(again) >= len(b) { // a packet that could be short need not be
			t.Fatalf("%x is written as %x", b, again)
		}
		if err := q.ParseFrom(again, resource.NodeID(from), 5); err != nil || !reflect.DeepEqual(p, q) {
			t.Fatalf("%+v is read as %+v, %v", p, q, err)
		}
		sent := 0
		members := []resource.NodeID{1, 3, 4, 5, 6, 9}
		n := NewNode(Config{Self: 5, Members: func() []resource.NodeID { return members },
			Local: func([]byte) ([]byte, bool) { return nil, false }, Send: func(resource.NodeID, *Packet) { sent++ }})
		now := time.Unix(0, 0)
		ends := 0
		n.Search(now, []byte("q"), Func(func(Result) { ends++ }))
		for range 3 {
			n.Receive(now, resource.NodeID(from), &p)
		}
		for i := 0; i < 1000 && !n.Next().IsZero(); i++ {
			now = n.Next()
			n.Tick(now)
		}
		if ends != 1 || len(n.jobs)+len(n.own)+len(n.byID)+len(n.due.heap) > 0 || sent > 200 {
			t.Fatalf("%d ends, %d parts left, %d packets", ends, len(n.jobs), sent)
		}
	})
}
