// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
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
func example(t *testing.T, socket string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), exe)
	c.Env = append(os.Environ(), "BE_THE_EXAMPLE=1", "ROCL_SOCKET="+socket)
	c.Stderr = os.Stderr
	return c
}

func TestPingPong(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "directory.sock")
	pong := example(t, socket)
	out, err := pong.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := pong.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "waiting for ping") {
		t.Fatalf("pong says %q, %v", line, err)
	}
	for range 2 { // the second run finds pong as the first left it
		said, err := example(t, socket).Output()
		if err != nil {
			t.Fatal(err)
		}
		// The output is a line such as "10000 round trips, 12.3µs each".
		m := regexp.MustCompile(`^10000 round trips, (.+) each\n$`).FindSubmatch(said)
		if m == nil {
			t.Fatalf("ping says %q", said)
		}
		if d, err := time.ParseDuration(string(m[1])); err != nil || d <= 0 {
			t.Errorf("%q each: %v", m[1], err)
		}
	}
	if err := pong.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := pong.Wait(); err != nil {
		t.Errorf("pong ended with %v", err)
	}
}
