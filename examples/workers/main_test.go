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
	return c
}

// begin starts n workers and returns when they can be found.
func begin(t *testing.T, socket string, n int) []*exec.Cmd {
	c, err := rocl.Open(t.Context(), rocl.WithSocket(socket))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() // a worker takes the directory over
	var ws []*exec.Cmd
	known := 0
	for ev, err := range c.Watch(t.Context(), rocl.Match{"type": "worker"}) {
		if err != nil {
			t.Fatal(err)
		}
		switch ev.Kind {
		case rocl.Synced:
			for range n {
				w := example(t, socket, "work")
				w.Stderr = os.Stderr
				if err := w.Start(); err != nil {
					t.Fatal(err)
				}
				ws = append(ws, w)
			}
		case rocl.Appeared:
			known++
		}
		if known == n {
			break
		}
	}
	return ws
}

func squares(n uint64) string {
	var total uint64
	for i := range n + 1 {
		total += i * i
	}
	return fmt.Sprintln(total)
}

func TestSum(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "directory.sock")
	ws := begin(t, socket, 3)
	for _, n := range []uint64{0, 1, 1 << 16, 1<<16 + 1, 3_000_000} {
		said, err := example(t, socket, "sum", fmt.Sprint(n)).Output()
		if err != nil || string(said) != squares(n) {
			t.Errorf("the sum to %d is %q, %v; want %q", n, said, err, squares(n))
		}
	}
	for _, w := range ws {
		if err := w.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range ws {
		if err := w.Wait(); err != nil {
			t.Errorf("a worker ended with %v", err)
		}
	}
}

// The part of a worker that is killed is done by another one.
func TestWorkerDies(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "directory.sock")
	ws := begin(t, socket, 3)
	const n = 1 << 26 // takes long enough to kill a worker meanwhile
	sum := example(t, socket, "sum", fmt.Sprint(n))
	var said strings.Builder
	sum.Stdout, sum.Stderr = &said, os.Stderr
	// The worker may die before, during or after its part.
	if err := sum.Start(); err != nil {
		t.Fatal(err)
	}
	if err := ws[0].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = ws[0].Wait()
	if err := sum.Wait(); err != nil || said.String() != squares(n) {
		t.Errorf("the sum to %d is %q, %v; want %q", n, said.String(), err, squares(n))
	}
	for _, w := range ws[1:] {
		_ = w.Process.Signal(os.Interrupt)
		if err := w.Wait(); err != nil {
			t.Errorf("a worker ended with %v", err)
		}
	}
}

// Without workers, and with wrong arguments, the example prints an error.
func TestFails(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "directory.sock")
	for what, args := range map[string][]string{
		"no workers":     {"sum", "10"},
		"usage":          {},
		"invalid syntax": {"sum", "ten"},
	} {
		said, err := example(t, socket, args...).CombinedOutput()
		if err == nil || !strings.Contains(string(said), what) {
			t.Errorf("%q: %v, %q", args, err, said)
		}
	}
}
