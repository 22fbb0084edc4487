// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl" // the name rocl is that of the command
	roclctx "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/resource"
)

// While the daemon is stopped, each question of a program returns when its context ends. When the
// daemon goes on, so does the program.
func TestStoppedDirectory(t *testing.T) {
	sock := socket(t)
	d := start(t, "serving", dirserver, "--socket", sock)
	c, err := lib.Open(t.Context(), lib.WithSocket(sock))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lamp := lib.Attrs{"type": "lamp"}
	r, err := c.Register(t.Context(), lamp)
	if err != nil {
		t.Fatal(err)
	}
	signal(t, d.cmd.Process.Pid, syscall.SIGSTOP)
	questions := map[string]func(context.Context) error{
		"Open":     func(ctx context.Context) error { _, err := lib.Open(ctx, lib.WithSocket(sock)); return err },
		"Register": func(ctx context.Context) error { _, err := c.Register(ctx, lib.Attrs{"type": "other"}); return err },
		"Update":   func(ctx context.Context) error { return r.Update(ctx, lamp) },
		"Find":     func(ctx context.Context) error { _, err := c.Find(ctx, lib.Match{"type": "lamp"}); return err },
		"Lookup":   func(ctx context.Context) error { _, err := c.Lookup(ctx, r.ID()); return err },
		"FindAll": func(ctx context.Context) error {
			for _, err := range c.FindAll(ctx, lib.Match{"type": "lamp"}) {
				return err
			}
			return nil
		},
		"Watch": func(ctx context.Context) error {
			for _, err := range c.Watch(ctx, lib.Match{"type": "lamp"}) {
				return err
			}
			return nil
		},
		"RoutesOf": func(ctx context.Context) error {
			_, err := roclctx.RoutesOf(ctx, c, resource.MakeGID(c.ID().Node(), 99, 0))
			return err
		},
	}
	for name, ask := range questions {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		answered := make(chan error, 1)
		go func() { answered <- ask(ctx) }()
		select {
		case err := <-answered:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s of a directory that is stopped: %v", name, err)
			}
		case <-time.After(eventually.Timeout):
			t.Errorf("%s does not return", name)
		}
		cancel()
	}
	if err := d.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if f, err := c.Find(t.Context(), lib.Match{"type": "lamp"}); err != nil || f.ID != r.ID() {
		t.Errorf("when it goes on: %v, %v", f.ID, err)
	}
	if err := r.Update(t.Context(), lamp); err != nil { // answered after the end of what was given up
		t.Fatal(err)
	}
	if _, err := c.Find(t.Context(), lib.Match{"type": "other"}); !errors.Is(err, lib.ErrNotFound) {
		t.Errorf("what was given up: %v", err)
	}
}

// If the program that serves the node is stopped, a daemon that starts names its process and says
// what to do. When the program goes on, it gives way to the next daemon, and its resources are
// found.
//
// Promise (Takeover): A daemon that starts while the serving process is stopped ends with an error
// that names the process.
func TestStoppedContextServes(t *testing.T) {
	sock := socket(t)
	p := start(t, "-", rocl, "register", "--socket", sock, "name=sink")
	before, _ := find(t, sock, "name=sink")
	signal(t, p.cmd.Process.Pid, syscall.SIGSTOP)
	_, errOut, code := patiently(t, nil, dirserver, "--socket", sock)
	for _, want := range []string{fmt.Sprintf("process %d (", p.cmd.Process.Pid), "which is stopped", "kill -CONT"} {
		if code != 4 || !strings.Contains(errOut, want) {
			t.Errorf("exit code %d, %q in place of %q", code, errOut, want)
		}
	}
	if strings.Contains(errOut, "nother dirserver is running") {
		t.Errorf("%q, and there is none", errOut)
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if after, code := findSoon(t, sock, "name=sink"); code != 0 || after[0] != before[0] {
		t.Errorf("when it goes on: %v, before %v", after, before)
	}
	start(t, `"serving"`, dirserver, "--socket", sock)
	if after, code := findSoon(t, sock, "name=sink"); code != 0 || after[0] != before[0] {
		t.Errorf("of the next daemon: %v, before %v", after, before)
	}
}
