// SPDX-License-Identifier: Apache-2.0

package main

import (
	"debug/buildinfo"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
)

// A program that uses one node links few modules and stays small, whether it is stripped or has no
// TLS.
func TestSizeOfHello(t *testing.T) {
	const most, modules = 8_000_000, 6
	for what, flags := range map[string][]string{"stripped": {"-ldflags=-s -w"}, "without TLS": {"-tags=roclnotls"}} {
		exe := build(t, "hello", append(flags, ".")...)
		i, err := os.Stat(exe)
		if err != nil {
			t.Fatal(err)
		}
		info, err := buildinfo.ReadFile(exe)
		if err != nil {
			t.Fatal(err)
		}
		if i.Size() > most || len(info.Deps) > modules {
			t.Errorf("%s: %d bytes, at most %d wanted; %d modules, at most %d wanted", what, i.Size(), int64(most), len(info.Deps), modules)
		}
	}
}

// A program without TLS works on a node without a cluster. On a node of a cluster with a key it
// says what it lacks.
func TestHelloWithoutTLS(t *testing.T) {
	exe := build(t, "hello", "-tags=roclnotls", ".")
	dir := t.TempDir()
	hello := func(socket string) (string, error) {
		cmd := exec.CommandContext(t.Context(), exe)
		cmd.Env = append(os.Environ(), "ROCL_SOCKET="+filepath.Join(dir, socket))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := hello("alone"); err != nil || !strings.HasPrefix(out, "hello from ") {
		t.Errorf("on a node alone: %s%v", out, err)
	}
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("0123456789abcdef0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := rocl.Open(t.Context(), rocl.WithSocket(filepath.Join(dir, "member")), rocl.WithMember(cluster.Member{Bind: "127.0.0.1:0", KeyFile: key}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	out, err := hello("member")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(out, rocl.ErrNoTLS.Error()) {
		t.Errorf("on a node of a cluster with a key: %s%v", out, err)
	}
}

// build builds a program with the flags and the path given, as its users do.
func build(t *testing.T, name string, args ...string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), name)
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-o", exe}, args...)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return exe
}
