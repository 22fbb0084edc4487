// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"context"
	"iter"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
)

// atOnce is a Remote that answers every question.
type atOnce struct{ resource.Record }

func (a atOnce) Find(context.Context, *resource.List) (resource.Record, error) { return a.Record, nil }
func (a atOnce) Lookup(context.Context, resource.GID, *resource.List) (resource.Record, error) {
	return a.Record, nil
}
func (a atOnce) All(context.Context, *resource.List, *Coverage) iter.Seq2[resource.Record, error] {
	return func(func(resource.Record, error) bool) {}
}
func (a atOnce) Watch(*resource.List, *database.Watch) func() { return func() {} }
func (a atOnce) Trace(context.Context, strategy.Strategy, *resource.List) (t Trace, _ error) {
	return t, nil
}
func (a atOnce) Addr() string { return "" }

// BenchmarkElsewhere measures what a find of another node's resource costs the client and the
// server in one process, without the cost of asking the other node.
func BenchmarkElsewhere(b *testing.B) {
	l, err := resource.NewPattern(resource.Attrs{"type": "gpu"})
	if err != nil {
		b.Fatal(err)
	}
	id := resource.MakeGID(2, 1, 1)
	far := atOnce{resource.Record{ID: id, Owner: id.Context(), Revision: 1, Attrs: *l}}
	c, err := JoinNode(b.Context(), filepath.Join(b.TempDir(), "d"), slog.New(slog.DiscardHandler), []Option{WithMembership(func(s *Server, _ bool) (func(bool), error) {
		s.Attach(far)
		return func(bool) {}, nil
	})})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		p, err := resource.NewPattern(resource.Match{"type": "gpu"})
		if err != nil {
			b.Fatal(err)
		}
		if f, err := c.Find(b.Context(), p); err != nil || f.ID != id {
			b.Fatal(f, err)
		}
	}
}
