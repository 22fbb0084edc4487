// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl"
)

// The test binary runs as the example if the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv("BE_THE_EXAMPLE") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// A node is a node whose directory is served by the test.
type node struct {
	t      *testing.T
	socket string
	home   *rocl.Context
}

func newNode(t *testing.T) *node {
	n := &node{t: t, socket: filepath.Join(t.TempDir(), "directory.sock")}
	var err error
	if n.home, err = rocl.Open(t.Context(), rocl.WithSocket(n.socket)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.home.Close() })
	return n
}

// command returns the command of the example with arguments.
func (n *node) command(args ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), "BE_THE_EXAMPLE=1", "ROCL_SOCKET="+n.socket)
	return c
}

// run runs the example, and returns its output.
func (n *node) run(args ...string) (string, error) {
	out, err := n.command(args...).CombinedOutput()
	return string(out), err
}

// must is run of a command that must succeed.
func (n *node) must(args ...string) string {
	n.t.Helper()
	out, err := n.run(args...)
	if err != nil {
		n.t.Fatalf("%q: %v: %s", args, err, out)
	}
	return out
}

// serve starts a server for a folder, and returns when it serves.
func (n *node) serve(dir string) *exec.Cmd {
	n.t.Helper()
	c := n.command("serve", dir)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Process.Signal(syscall.SIGINT); _ = c.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		n.t.Fatal(line, err)
	}
	return c
}

// kill kills a server, and returns when the directory has only left servers.
func (n *node) kill(c *exec.Cmd, left int) {
	n.t.Helper()
	if err := c.Process.Kill(); err != nil {
		n.t.Fatal(err)
	}
	_ = c.Wait()
	for found := left + 1; found != left; {
		found = 0
		for _, err := range n.home.FindAll(n.t.Context(), service) {
			if err != nil {
				n.t.Fatal(err)
			}
			found++
		}
	}
}

// random writes a file of random bytes.
func random(t *testing.T, size int) (path string, data []byte) {
	t.Helper()
	data = make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	path = filepath.Join(t.TempDir(), "random")
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path, data
}

// A file that was put can be fetched, whole and in ranges, and is listed.
func TestPutGet(t *testing.T) {
	n := newNode(t)
	n.serve(t.TempDir())
	path, data := random(t, 3_000_000)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.must("-window", "1000000", "put", path, empty, os.Args[0])
	for _, p := range []string{path, empty, os.Args[0]} {
		to := filepath.Join(t.TempDir(), "to")
		n.must("get", filepath.Base(p), to)
		want, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes of %d, %v", p, len(got), len(want), err)
		}
	}
	for _, r := range []struct {
		args []string
		want []byte
	}{
		{[]string{"1000", "20"}, data[1000:1020]}, {[]string{"2999999"}, data[2999999:]}, {[]string{"3000000"}, nil}, {[]string{"2999990", "100"}, data[2999990:]}, {nil, data},
	} {
		if out := n.must(append([]string{"cat", "random"}, r.args...)...); out != string(r.want) {
			t.Errorf("cat %v: %d bytes, want %d", r.args, len(out), len(r.want))
		}
	}
	if list := n.must("list"); strings.Count(list, "\n") != 3 || !strings.Contains(list, "3000000") {
		t.Errorf("list: %s", list)
	}
	for _, args := range [][]string{{"get", "nothing"}, {"get", "../escape"}, {"cat", ".hidden"}, {"put", "/nonexistent"}} {
		if out, err := n.run(args...); err == nil {
			t.Errorf("%q succeeds: %s", args, out)
		}
	}
}

// A server that is killed in the middle of a put keeps the bytes that it has. The next put goes on
// from there when the server has been started again.
func TestServerKilledInPut(t *testing.T) {
	n := newNode(t)
	dir := t.TempDir()
	s := n.serve(dir)
	path, data := random(t, 200_000_000)
	put := n.command("-window", "200000", "put", path)
	if err := put.Start(); err != nil {
		t.Fatal(err)
	}
	for size := int64(0); size < 1_000_000; {
		parts, err := filepath.Glob(filepath.Join(dir, ".*.part"))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parts {
			if info, err := os.Stat(p); err == nil {
				size = info.Size()
			}
		}
	}
	n.kill(s, 0)
	if err := put.Wait(); err == nil {
		t.Fatal("the put was complete before the server was killed")
	}
	n.serve(dir)
	if out := n.must("put", path); !strings.Contains(out, "which had ") {
		t.Errorf("the second put began anew: %s", out)
	}
	to := filepath.Join(t.TempDir(), "to")
	n.must("get", "random", to)
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
	}
}

// A file that is on two servers can be fetched when one is killed. A part that the client has is
// not fetched again.
func TestCopies(t *testing.T) {
	n := newNode(t)
	first := n.serve(t.TempDir())
	n.serve(t.TempDir())
	path, data := random(t, 5_000_000)
	if out := n.must("-copies", "2", "put", path); strings.Count(out, "\n") != 2 {
		t.Errorf("put: %s", out)
	}
	if out, err := n.run("-copies", "3", "put", path); err == nil || !strings.Contains(out, "stored on 2 servers of 3") {
		t.Errorf("put on more servers than there are: %v, %s", err, out)
	}
	n.kill(first, 1)
	to := filepath.Join(t.TempDir(), "to")
	sum, err := sumOf(bytes.NewReader(data))
	if err == nil {
		err = os.WriteFile(to+"."+sum+".part", data[:2_000_000], 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out := n.must("get", "random", to); !strings.Contains(out, "3000000 bytes, behind 2000000 that were there") {
		t.Errorf("get: %s", out)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
	}
	data[0]++ // a damaged part is noticed, and fetched again
	if err := os.WriteFile(to+"."+sum+".part", data[:2_000_000], 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := n.run("get", "random", to); err == nil || !strings.Contains(out, "checksum") {
		t.Errorf("a damaged part: %v, %s", err, out)
	}
	n.must("get", "random", to)
}
