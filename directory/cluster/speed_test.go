// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/resource"
)

// BenchmarkQuestion measures what a find costs the two members without their ports: asking, being
// asked, and handling the answer.
func BenchmarkQuestion(b *testing.B) {
	open := func(n resource.NodeID) *Cluster {
		c, err := Open(Config{Node: n, DB: database.New(), Bind: "127.0.0.1:0"})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		c.members.roll.Store(&roll{members: []resource.NodeID{1, 2}})
		return c
	}
	x, y := open(1), open(2)
	id := resource.MakeGID(2, 1, 1)
	l, _ := resource.NewPattern(resource.Attrs{"type": "gpu"})
	if _, err := y.cfg.DB.Put(id, id.Context(), l); err != nil {
		b.Fatal(err)
	}
	l, _ = resource.NewPattern(resource.Match{"type": "gpu"})
	var p search.Packet
	hear := func(c *Cluster, from resource.NodeID, out []mux.Out) []mux.Out {
		if err := p.ParseFrom(out[0].Payload, from, c.cfg.Node); err != nil {
			b.Fatal(err)
		}
		return c.searches.advance(nil, always, func(now time.Time) { c.searches.node.Receive(now, from, &p) })
	}
	b.Run("ask", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			x.searches.advance(nil, always, func(now time.Time) {
				n := x.searches.node.Search(now, question(kindFind, resource.GID{}, l), search.Func(func(search.Result) {}))
				x.searches.node.Cancel(n)
			})
		}
	})
	b.Run("whole", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var r search.Result
			out := x.searches.advance(nil, always, func(now time.Time) {
				x.searches.node.Search(now, question(kindFind, resource.GID{}, l), search.Func(func(got search.Result) { r = got }))
			})
			hear(x, 2, hear(y, 1, out))
			if a, err := parseAnswer(r.Answer); err != nil || a.ID != id {
				b.Fatal(err)
			}
		}
	})
}
