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

// begin starts n servers and returns when they can be found.
func begin(t *testing.T, socket string, n int) (servers []*exec.Cmd) {
	c, err := rocl.Open(t.Context(), rocl.WithSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() // a server takes the directory over
	for range n {
		s := example(t, socket, "serve")
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
		servers = append(servers, s)
	}
	if _, err := c.Await(t.Context(), rocl.Match{"service": "capitals"}, n); err != nil {
		t.Fatal(err)
	}
	return servers
}

func TestAsk(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "directory.sock")
	servers := begin(t, socket, 3)
	args, want := []string{"ask"}, ""
	for i := range 500 {
		args = append(args, fmt.Sprint("word", i))
		want += fmt.Sprintln("WORD" + fmt.Sprint(i))
	}
	ask := example(t, socket, args...)
	var said strings.Builder
	ask.Stdout = &said
	if err := ask.Start(); err != nil {
		t.Fatal(err)
	}
	if err := servers[0].Process.Kill(); err != nil { // before, during or after the calls
		t.Fatal(err)
	}
	_ = servers[0].Wait()
	if err := ask.Wait(); err != nil || said.String() != want {
		t.Errorf("%v, said %q", err, said.String())
	}
	for _, s := range servers[1:] {
		if err := s.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := s.Wait(); err != nil {
			t.Errorf("a server ended with %v", err)
		}
	}
}

// Without servers, and with wrong arguments, the example prints an error.
func TestFails(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "directory.sock")
	for what, args := range map[string][]string{
		"no such resource": {"ask", "x"},
		"usage":            {"ask"},
	} {
		c := example(t, socket, args...)
		c.Stderr = nil
		said, err := c.CombinedOutput()
		if err == nil || !strings.Contains(string(said), what) {
			t.Errorf("%q: %v, %q", args, err, said)
		}
	}
}
