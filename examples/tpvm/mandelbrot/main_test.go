// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/draw"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/examples/internal/example"
)

func TestMain(m *testing.M) { example.Main(m, main) }

var small = view{Re: -0.7435, Im: 0.1314, Width: 0.01, X: 300, Y: 170, Limit: 1000, Samples: 2}

// args are the arguments for a view.
func args(v view, out string, more ...string) []string {
	return append(strings.Fields(fmt.Sprintf("-re %v -im %v -width %v -x %d -y %d -limit %d -samples %d -o %s",
		v.Re, v.Im, v.Width, v.X, v.Y, v.Limit, v.Samples, out)), more...)
}

// check compares a picture with one that the test draws.
func check(t *testing.T, v view, path string) {
	t.Helper()
	p, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := png.Decode(bytes.NewReader(p))
	if err != nil {
		t.Fatal(err)
	}
	want := image.NewRGBA(image.Rect(0, 0, v.X, v.Y))
	for k := range v.tiles() {
		img := v.render(k)
		draw.Draw(want, img.Rect, img, img.Rect.Min, draw.Src)
	}
	if g, ok := got.(*image.RGBA); !ok || !bytes.Equal(g.Pix, want.Pix) {
		t.Error("the picture differs from the one drawn by one process")
	}
}

// A process that has joined before takes part, besides those that the master starts.
func TestPicture(t *testing.T) {
	node, out := example.New(t), filepath.Join(t.TempDir(), "m.png")
	c := open(t, node)
	cmd := node.Command("-join")
	var printed bytes.Buffer
	cmd.Stdout = &printed
	joined := node.Launch(cmd)
	if _, err := c.Await(t.Context(), rocl.Match{"type": "threaddef"}, 1); err != nil {
		t.Fatal(err)
	}
	if said := node.Run(args(small, out, "-p", "2")...); !strings.HasPrefix(said, "60 tiles") || !strings.Contains(said, "of 3 processes") {
		t.Errorf("%q", said)
	}
	check(t, small, out)
	joined.Signal(syscall.SIGINT)
	if err := joined.Wait(); err != nil {
		t.Error("the process that joined:", err)
	}
	for _, want := range []string{"rendering for virtual machine ", "; 1 node, ", "rendering a picture of task ", "\nrendered ", "\nended"} {
		if !strings.Contains(printed.String(), want) {
			t.Errorf("the process that joined says %q, without %q", &printed, want)
		}
	}
}

// open opens a context in the directory of the node.
func open(t *testing.T, node example.Node) *rocl.Context {
	c, err := rocl.Open(t.Context(), rocl.WithSocket(node.Socket))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The picture is right even if one of the processes that the program names is killed, and the
// program prints that.
func TestWorkerKilled(t *testing.T) {
	v := small
	v.X, v.Y = 400, 300
	for v.Samples = 3; !renderedWithKill(t, v); v.Samples *= 2 { // the picture may be complete before the process is killed
		if v.Samples > 12 {
			t.Fatal("no tile was rendered again")
		}
	}
}

// renderedWithKill renders v while the test kills a process, checks the picture, and reports
// whether the process had work.
func renderedWithKill(t *testing.T, v view) bool {
	node, out := example.New(t), filepath.Join(t.TempDir(), "m.png")
	cmd := node.Command(args(v, out, "-p", "3")...)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, w
	p := node.Launch(cmd)
	w.Close()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if pids, ok := strings.CutPrefix(lines.Text(), "kill one of: "); ok {
			kill(t, strings.Fields(pids))
		}
	}
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	check(t, v, out)
	want := "1 process ended early; its tiles were rendered again\n"
	hadWork := strings.HasSuffix(said.String(), want)
	if !hadWork && strings.Contains(said.String(), "ended early") {
		t.Errorf("%q", &said)
	}
	return hadWork
}

// kill kills the second of three processes.
func kill(t *testing.T, pids []string) {
	t.Helper()
	if len(pids) != 3 {
		t.Fatal(pids)
	}
	pid, err := strconv.Atoi(pids[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) { // it may have ended
		t.Fatal(err)
	}
}

// When the master is killed, its processes end.
func TestMasterKilled(t *testing.T) {
	node := example.New(t)
	c := open(t, node)
	v := small
	v.X, v.Y = 6000, 4000
	cmd := node.Command(args(v, filepath.Join(t.TempDir(), "m.png"), "-p", "3")...)
	p := node.Launch(cmd)
	tasks := map[rocl.GID]bool{}
	for ev, err := range c.Watch(t.Context(), rocl.Match{"type": "task"}) {
		if err != nil {
			t.Fatal(err)
		}
		switch ev.Kind {
		case rocl.Appeared:
			if tasks[ev.ID] = true; len(tasks) == 4 {
				node.Kill(p)
			}
		case rocl.Gone:
			if delete(tasks, ev.ID); len(tasks) == 0 {
				awaitEnds(t, cmd.Env)
				return
			}
		}
	}
}

// awaitEnds waits until no process with the socket of env is left. Processes that were about to
// enrol end too, and need the directory of the test for that.
func awaitEnds(t *testing.T, env []string) {
	t.Helper()
	i := slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "ROCL_SOCKET=") })
	if i < 0 {
		t.Fatal("the program has no socket of its own")
	}
	for isLeft := true; isLeft; {
		files, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			t.Fatal(err)
		}
		isLeft = slices.ContainsFunc(files, func(f string) bool {
			b, _ := os.ReadFile(f) // the process may have ended
			return bytes.Contains(b, []byte(env[i]))
		})
	}
}
