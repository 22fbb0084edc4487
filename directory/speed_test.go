// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"path/filepath"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/must"
	"github.com/rocl-go/rocl/resource"
)

// BenchmarkElsewhere measures what a find of another node's resource costs the client and the
// server in one process, without the cost of asking the other node.
func BenchmarkElsewhere(b *testing.B) {
	l := must.Get(resource.NewPattern(resource.Attrs{"type": "gpu"}))
	id := resource.MakeGID(2, 1, 1)
	far := holding(resource.Record{ID: id, Owner: id.Context(), Revision: 1, Attrs: *l}, nil)
	c := joinedNode(b, filepath.Join(b.TempDir(), "d"), []Option{withRemote(far)})
	b.ReportAllocs()
	for b.Loop() {
		p := must.Get(resource.NewPattern(resource.Match{"type": "gpu"}))
		if f, err := c.Find(b.Context(), p); err != nil || f.ID != id {
			b.Fatal(f, err)
		}
	}
}
