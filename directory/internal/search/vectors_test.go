// SPDX-License-Identifier: Apache-2.0

package search

import (
	"slices"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/internal/testkit/vectors"
	"github.com/rocl-go/rocl/resource"
)

// Packets and filters must stay.
func TestVectors(t *testing.T) {
	id := ID{Asker: 1, N: 5}
	var all []vectors.Vector
	for _, p := range []struct {
		name string
		Packet
	}{
		{"ask", Packet{Type: typeAsk, Fan: 2, ID: id, Lo: 2, Hi: 9, Body: []byte("question")}},
		{"found", Packet{Type: typeFound, Fan: 2, ID: id, Lo: 2, Hi: 9, From: 3, Body: []byte("answer")}},
		{"none", Packet{Type: typeNone, Fan: 2, ID: id, Lo: 2, Hi: 9, Covered: 7, Sum: 6, Known: 8, Failed: []resource.NodeID{4}}},
		{"busy", Packet{Type: typeBusy, Fan: 2, ID: id, Lo: 2, Hi: 9}},
	} {
		all = append(all, vectors.Of(p.name, p.Append(nil), map[string]any{
			"type": p.Type, "fan": p.Fan, "asker": 1, "number": 5, "lo": 2, "hi": 9,
		}))
	}
	short := Packet{Type: typeAsk, Fan: 2, ID: id, Lo: 9, Hi: 9, Body: []byte("question")}
	all = append(all, vectors.Of("short ask, of 1 to 9", short.AppendTo(nil, 1, 9), map[string]any{"type": typeAsk, "fan": 2, "number": 5}))
	var l resource.List
	try.OK(t, l.AddString("type", "worker"))
	s := NewSummary(slices.Values([]*resource.List{&l}), 1)
	s.Epoch = 3
	all = append(all, vectors.Of("summary", s.Append(nil), map[string]any{"epoch": 3, "attributes": l.String()}),
		vectors.Of("want", head9(msgWant, 3, 1), map[string]any{"epoch": 3, "version": 1}))
	vectors.Check(t, "searches", all)
}
