// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// example returns the command of the example, on the node of the socket.
func example(t *testing.T, socket string, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), exe, args...)
	c.Env = append(os.Environ(), "BE_THE_EXAMPLE=1", "ROCL_SOCKET="+socket)
	c.Stderr = os.Stderr
	return c
}

// A client gets the answer of a server. If that server is killed, another one answers.
func TestGet(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "directory.sock")
	c, err := rocl.Open(t.Context(), rocl.WithSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var servers [2]*exec.Cmd
	for i := range servers {
		servers[i] = example(t, socket, "serve")
		if err := servers[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	await := func(n int) {
		for ev, err := range c.Watch(t.Context(), rocl.Match{"type": "web"}) {
			if err != nil {
				t.Fatal(err)
			}
			if ev.Kind == rocl.Appeared {
				n--
			}
			if ev.Kind == rocl.Gone {
				n++
			}
			if n == 0 {
				return
			}
		}
	}
	await(len(servers))
	for range 5 {
		said, err := example(t, socket, "get", "/a/path").Output()
		if err != nil || !strings.Contains(string(said), " serves /a/path to ") {
			t.Errorf("the server says %q, %v", said, err)
		}
	}
	if err := servers[0].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = servers[0].Wait()
	want := fmt.Sprintf("process %d serves /again to ", servers[1].Process.Pid)
	for range 5 {
		said, err := example(t, socket, "get", "/again").Output()
		if err != nil || !strings.HasPrefix(string(said), want) {
			t.Errorf("the server says %q, %v; want %q", said, err, want)
		}
	}
	if err := servers[1].Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := servers[1].Wait(); err != nil {
		t.Errorf("the server ended with %v", err)
	}
	if said, err := example(t, socket, "get", "/").Output(); err == nil {
		t.Errorf("nobody says %q", said)
	}
}
