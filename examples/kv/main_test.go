// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// example returns the command of the example with arguments, on the node of the socket.
func example(t *testing.T, socket string, args ...string) *exec.Cmd {
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = append(os.Environ(), "BE_THE_EXAMPLE=1", "ROCL_SOCKET="+socket)
	return c
}

// serving starts a process with n providers, and returns when they serve.
func serving(t *testing.T, socket, n string) *exec.Cmd {
	c := example(t, socket, "serve", n)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Signal(syscall.SIGINT); _ = c.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != n+" providers serve\n" {
		t.Fatal(line, err)
	}
	return c
}

// Five providers in two processes share the keys. If a process is killed, the keys of its providers
// are lost, and no others.
func TestStore(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "directory.sock")
	home, err := rocl.Open(t.Context(), rocl.WithSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	first := serving(t, socket, "3")
	serving(t, socket, "2")
	var names []string
	for i := range 20 {
		name := fmt.Sprint("key", i)
		names = append(names, name)
		if out, err := example(t, socket, "put", name, "value of "+name).CombinedOutput(); err != nil || len(out) > 0 {
			t.Fatalf("put: %s, %v", out, err)
		}
	}
	for _, name := range names {
		if out, err := example(t, socket, "get", name).CombinedOutput(); err != nil || string(out) != "value of "+name+"\n" {
			t.Fatalf("get: %s, %v", out, err)
		}
	}
	if out, err := example(t, socket, "get", "nothing").CombinedOutput(); err == nil || !strings.Contains(string(out), `key "nothing": file does not exist`) {
		t.Errorf("get of a missing key: %s, %v", out, err)
	}
	all := listed(t, socket)
	if slices.Sort(names); !slices.Equal(all, names) {
		t.Errorf("%q are listed", all)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	for n := 5; n != 2; { // until the directory has learned of the end
		n = 0
		for _, err := range home.FindAll(t.Context(), service) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
	}
	kept := listed(t, socket)
	if len(kept) == 0 || len(kept) == len(names) {
		t.Errorf("%d keys of %d are listed after a process was killed", len(kept), len(names))
	}
	for _, name := range kept {
		if out, err := example(t, socket, "get", name).CombinedOutput(); err != nil || string(out) != "value of "+name+"\n" {
			t.Errorf("get of %s after a process was killed: %s, %v", name, out, err)
		}
	}
}

// listed returns the names that "list" prints, in order.
func listed(t *testing.T, socket string) (names []string) {
	out, err := example(t, socket, "list").CombinedOutput()
	if err != nil {
		t.Fatalf("list: %s, %v", out, err)
	}
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(line, "  "); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	slices.Sort(names)
	return names
}
