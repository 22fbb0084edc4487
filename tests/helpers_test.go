// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"path/filepath"
	"testing"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
)

// must ends the test if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// got returns the value of a call that must succeed: got(c.Find(ctx, m))(t).
func got[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// open opens a context in this process, on a node of real processes.
func open(t testing.TB, sock string, opts ...lib.Option) *lib.Context {
	t.Helper()
	c := got(lib.Open(eventually.Context(t), append(append(overShm(), lib.WithSocket(sock)), opts...)...))(t)
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
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
	must(t, os.WriteFile(path, []byte("0123456789abcdef0123456789abcdef\n"), 0o600))
	return path
}

func register(t testing.TB, c *lib.Context, a lib.Attrs) *lib.Resource {
	t.Helper()
	return got(c.Register(eventually.Context(t), a))(t)
}
