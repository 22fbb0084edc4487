// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"debug/buildinfo"
	"os"
	"path/filepath"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A program that uses one node links few modules and stays small, and smaller without TLS.
func TestSizeOfHello(t *testing.T) {
	t.Setenv("CGO_ENABLED", "0")
	const modules = 6
	for tags, most := range map[string]int64{"": 8_500_000, "roclnotls": 6_000_000} {
		exe := filepath.Join(build(t, "hello", "-ldflags=-s -w", "-tags="+tags), "hello")
		i := try.Get(os.Stat(exe))(t)
		info := try.Get(buildinfo.ReadFile(exe))(t)
		if i.Size() > most || len(info.Deps) > modules {
			t.Errorf("tags %q: %d bytes, at most %d wanted; %d modules, at most %d wanted", tags, i.Size(), most, len(info.Deps), modules)
		}
	}
}

// A program without TLS works on a node without a cluster. On a node of a cluster with a key it
// says what it lacks.
func TestHelloWithoutTLS(t *testing.T) {
	t.Setenv("CGO_ENABLED", "0")
	dir := t.TempDir()
	n := node{t, filepath.Join(build(t, "hello", "-tags=roclnotls"), "hello"), filepath.Join(dir, "alone")}
	prints("^hello from ")(t, n)
	key := filepath.Join(dir, "key")
	try.OK(t, os.WriteFile(key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600))
	n.socket = filepath.Join(dir, "member")
	c := try.Get(rocl.Open(t.Context(), rocl.WithSocket(n.socket), rocl.WithMember(cluster.Member{Bind: "127.0.0.1:0", KeyFile: key})))(t)
	defer c.Close()
	n.fails(rocl.ErrNoTLS.Error())
}
