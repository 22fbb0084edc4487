// SPDX-License-Identifier: Apache-2.0

package context_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

// BenchmarkFindAll1000 lists 1,000 resources of the node: in the process that serves it; with
// another server, from its index in shared memory; and over its socket.
func BenchmarkFindAll1000(b *testing.B) {
	for _, name := range []string{"serving", "index", "socket"} {
		b.Run(name, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "d.sock")
			opts := []context.Option{context.WithSocket(path)}
			if name != "serving" {
				s, err := directory.Listen(path)
				must(b, err)
				defer s.Close()
			}
			if name == "socket" {
				opts = append(opts, context.WithoutIndex())
			}
			c, err := context.Open(bg, opts...)
			must(b, err)
			defer c.Close()
			for i := range 1000 {
				if _, err := c.Register(bg, resource.Attrs{"role": "worker", "name": fmt.Sprint("worker-", i), "load": "0.5"}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				for _, err := range c.FindAll(bg, resource.Match{"role": "worker"}) {
					must(b, err)
					n++
				}
				if n != 1000 {
					b.Fatal(n)
				}
			}
		})
	}
}
