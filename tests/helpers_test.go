// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"path/filepath"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// open opens a context in this process, on a node of real processes.
func open(t testing.TB, sock string, opts ...lib.Option) *lib.Context {
	t.Helper()
	c := try.Get(lib.Open(eventually.Context(t), append(append(overShm(), lib.WithSocket(sock)), opts...)...))(t)
	t.Cleanup(func() {
		try.Check(t, c.Close(), "closing")
	})
	return c
}

// awaitFound returns a resource that other nodes or processes register, when it is found.
func awaitFound(t testing.TB, c *lib.Context, m lib.Match) (f lib.Found) {
	t.Helper()
	ctx := eventually.Context(t)
	eventually.True(t, "a resource is found", func() bool {
		var err error
		f, err = c.Find(ctx, m)
		return err == nil
	})
	return f
}

// clusterKey returns the path of a file with the key of a cluster.
func clusterKey(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	try.OK(t, os.WriteFile(path, []byte("0123456789abcdef0123456789abcdef\n"), 0o600))
	return path
}

func register(t testing.TB, c *lib.Context, a lib.Attrs) *lib.Resource {
	t.Helper()
	return try.Get(c.Register(eventually.Context(t), a))(t)
}
