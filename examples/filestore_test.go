// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// service is the pattern of the servers.
var service = rocl.Match{"service": "filestore"}

// serveFiles starts a server for a folder, and returns when it serves.
func serveFiles(n node, dir string) *subprocess.Process {
	n.t.Helper()
	return n.serve("", "serve", dir)
}

// random writes a file of random bytes.
func random(t *testing.T, size int) (path string, data []byte) {
	t.Helper()
	data = make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	path = filepath.Join(t.TempDir(), "random")
	try.OK(t, os.WriteFile(path, data, 0o644))
	return path, data
}

// A file that was put can be fetched, and is listed.
func putAndGet(t *testing.T, n node) {
	n.open() // serves the directory
	serveFiles(n, t.TempDir())
	path, _ := random(t, 3_000_000)
	empty := filepath.Join(t.TempDir(), "empty")
	try.OK(t, os.WriteFile(empty, nil, 0o644))
	n.must("-window", "1000000", "put", path, empty, n.program)
	for _, p := range []string{path, empty, n.program} {
		to := filepath.Join(t.TempDir(), "to")
		n.must("get", filepath.Base(p), to)
		want := try.Get(os.ReadFile(p))(t)
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes of %d, %v", p, len(got), len(want), err)
		}
	}
	if list := n.must("list"); strings.Count(list, "\n") != 3 || !strings.Contains(list, "3000000") {
		t.Errorf("list: %s", list)
	}
	for _, args := range [][]string{{"get", "nothing"}, {"get", "../escape"}, {"get", ".hidden"}, {"put", "/nonexistent"}} {
		n.fails("", args...)
	}
}

// A server that is killed in the middle of a put keeps the bytes that it has. The next put goes on
// from there when the server has been started again.
func killInPut(t *testing.T, n node) {
	home := n.open()
	path, data := random(t, 200_000_000)
	dir := t.TempDir()
	for tries := 1; !isKilledInPut(n, home, dir, path); dir = t.TempDir() {
		if tries++; tries > 5 {
			t.Fatal("each put was complete before its server was killed")
		}
	}
	serveFiles(n, dir)
	if out := n.must("put", path); !strings.Contains(out, "which had ") {
		t.Errorf("the second put began anew: %s", out)
	}
	to := filepath.Join(t.TempDir(), "to")
	n.must("get", "random", to)
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
	}
}

// isKilledInPut serves dir, kills that server when it has a part of the file at path, and reports
// whether the put failed: it may have been complete before.
func isKilledInPut(n node, home *rocl.Context, dir, path string) bool {
	n.t.Helper()
	s := serveFiles(n, dir)
	put := n.launch(n.command("-window", "200000", "put", path))
	eventually.True(n.t, "the server has a part", func() bool {
		files := try.Get(filepath.Glob(filepath.Join(dir, "*")))(n.t)
		for _, p := range files { // the part, or the file if it is complete
			if info, err := os.Stat(p); err == nil && info.Size() >= 1_000_000 {
				return true
			}
		}
		return false
	})
	n.kill(s)
	n.remain(home, service, 0)
	return put.Wait() != nil
}

// Of a file of which the client has a part, only the rest is fetched. A damaged part is noticed.
func getRest(t *testing.T, n node) {
	n.open() // serves the directory
	serveFiles(n, t.TempDir())
	serveFiles(n, t.TempDir())
	path, data := random(t, 5_000_000)
	n.must("put", path)
	to := filepath.Join(t.TempDir(), "to")
	part := fmt.Sprintf("%s.%016x.part", to, xxhash.Sum64(data))
	try.OK(t, os.WriteFile(part, data[:2_000_000], 0o644))
	if out := n.must("get", "random", to); !strings.Contains(out, "3000000 bytes, behind 2000000 that were there") {
		t.Errorf("get: %s", out)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
	}
	data[0]++ // a damaged part is noticed, and fetched again
	try.OK(t, os.WriteFile(part, data[:2_000_000], 0o644))
	n.fails("checksum", "get", "random", to)
	n.must("get", "random", to)
}
