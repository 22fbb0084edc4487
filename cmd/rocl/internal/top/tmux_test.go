// SPDX-License-Identifier: Apache-2.0

package top

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/nice"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// command returns a command that runs the test binary as a program, with a node's socket.
func command(program, sock string, args ...string) *exec.Cmd {
	cmd := subprocess.Self(args...)
	cmd.Env = append(os.Environ(), "BE_PROGRAM="+program, "ROCL_SOCKET="+sock, "TERM=dumb")
	return cmd
}

// begin starts a program, and waits until it is ready.
func begin(t *testing.T, program, sock string) *subprocess.Process {
	t.Helper()
	p := try.Get(subprocess.Start(command(program, sock)))(t)
	t.Cleanup(func() { p.Kill() })
	try.OK(t, p.Expect(t.Context(), "ready"), program)
	return p
}

// printed are the rows of one kind that a command prints with --json.
func printed(t *testing.T, sock, kind string, wantCode int, args ...string) (rows []map[string]any) {
	t.Helper()
	out, errOut, code, err := subprocess.Run(t.Context(), command("rocl", sock, append(args, "--once", "--json")...))
	if err != nil || code != wantCode {
		t.Fatalf("%v: exit code %d, want %d: %v\n%s", args, code, wantCode, err, errOut)
	}
	for l := range strings.Lines(out) {
		var v struct {
			Kind string
			Row  map[string]any
		}
		try.OK(t, json.Unmarshal([]byte(l), &v), l)
		if v.Kind == kind {
			rows = append(rows, v.Row)
		}
	}
	return rows
}

// A terminal is a session of tmux.
type terminal struct {
	t    *testing.T
	sock string
}

func (w *terminal) tmux(args ...string) string {
	w.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-u", "-S", w.sock, "-f", "/dev/null"}, args...)...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("tmux %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// sees waits until the screen matches a regular expression, and returns the screen.
func (w *terminal) sees(want string) (screen string) {
	w.t.Helper()
	re := regexp.MustCompile(want)
	if !eventually.Within(time.Minute, func() bool {
		screen = w.tmux("capture-pane", "-p")
		return re.MatchString(screen)
	}) {
		w.t.Fatalf("the screen does not match %s:\n%s", want, screen)
	}
	return screen
}

func (w *terminal) keys(keys ...string) {
	w.t.Helper()
	w.tmux(append([]string{"send-keys"}, keys...)...)
}

// tmux starts a program of the test binary in a terminal of 100 columns.
func tmux(t *testing.T, sock string, args ...string) *terminal {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("ROCL_TMUX") == "must" {
			t.Fatal("ROCL_TMUX=must, and tmux is missing")
		}
		t.Skip("tmux is missing: apt-get install tmux")
	}
	w := &terminal{t, freeaddr.Socket(t)}
	self := try.Get(os.Executable())(t)
	w.tmux(append([]string{"new-session", "-d", "-x", "100", "-y", "20", "-e", "BE_PROGRAM=rocl", "-e", "ROCL_SOCKET=" + sock, "sh", "-c", `"$0" "$@"; echo "code $?"; read end`, self}, args...)...)
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", w.sock, "kill-server").Run() })
	w.tmux("set-option", "-g", "remain-on-exit", "on")
	return w
}

// The program in a terminal shows 300 messages that nobody receives, and a process that is stopped.
// It is driven by keys, and by the size of the window.
//
// Promise (Observing): 300 messages that nobody receives, and a process that is stopped, are on the
// first screen of rocl top.
func TestTerminal(t *testing.T) {
	sock := freeaddr.Socket(t)
	begin(t, "shard", sock)
	sender := begin(t, "sender", sock)
	w := tmux(t, sock, "top", "--interval", "300ms")
	w.sees(`(?m)^\S? +n=2 name=shard +300 .* [1-9]\d*s .*top\.test`)
	w.keys("4")
	w.sees(`\[4 contexts\][^!]*answers`)
	sender.Signal(posix.SIGSTOP)
	w.sees(`(?m)!1 silent[\s\S]*^! top\.test .* silent (<1|\d+)s`)
	sender.Signal(posix.SIGCONT)
	w.sees(`(?s)\A[^!]*\[4 contexts\][^!]*\z`)

	w.keys("1", "S") // by name
	w.sees(`(?s)NAME↓.*name=shard.*name=sender`)
	w.keys("r")
	w.sees(`(?s)NAME↑.*name=sender.*name=shard`)
	w.keys("/", "name=sender", "Enter")
	w.sees(`(?s)\[filter name=sender\]((?:[^s]|s[^h]|sh[^a])*)\z`) // no shard
	w.keys("Enter")
	w.sees(`name +name=sender`)
	w.keys("Escape")
	w.sees(`NAME↑`) // else the key and the report of the new size are read as one
	w.tmux("resize-window", "-x", "60", "-y", "12")
	w.sees(`(?s)\A(?:[^\n]{0,60}\n){11}q quit[^\n]{0,54}\n*\z`)
	w.keys("q")
	w.sees(`(?m)^code 0$`) // tmux itself does not always know the code
}

// Without a terminal the tables are printed once: 300 messages, who sent them over which link, and
// a stopped process. A recording of that, replayed, has the same.
func TestOnce(t *testing.T) {
	sock := freeaddr.Socket(t)
	begin(t, "shard", sock)
	sender := begin(t, "sender", sock)
	file := filepath.Join(t.TempDir(), "r.gz")
	record := command("rocl", sock, "record", file, "--for", "3s", "--interval", "1s")
	if _, errOut, code, err := subprocess.Run(t.Context(), record); err != nil || code != 0 || !regexp.MustCompile(`^[2-9] views in`).MatchString(errOut) {
		t.Fatalf("record: %d, %v: %s", code, err, errOut)
	}
	for _, args := range [][]string{{"top", "--interval", "200ms", "name=shard"}, {"replay", file, "name=shard"}, {"replay", file, "--at", "1h", "name=shard"}} {
		rows := printed(t, sock, "resource", 0, args...)
		if len(rows) != 1 || rows[0]["messages"] != 300.0 || rows[0]["name"] != "n=2 name=shard" || rows[0]["standing"].(float64) <= 0 {
			t.Errorf("%v: %v", args, rows)
		}
	}
	if rows := printed(t, sock, "link", 0, "replay", file); len(rows) != 2 || rows[0]["state"] != "connected" {
		t.Errorf("links: %v", rows)
	}
	try.Equal(t, len(printed(t, sock, "context", 0, "replay", file)), 2, "contexts")
	try.Equal(t, len(printed(t, sock, "node", 0, "top", "--interval", "200ms")), 1, "nodes")

	sender.Signal(posix.SIGSTOP)
	rows := printed(t, sock, "context", 3, "top", "--interval", "200ms", "--timeout", "3s")
	sender.Signal(posix.SIGCONT)
	silent := 0
	for _, r := range rows {
		if r["reason"] != nil {
			silent++
		}
	}
	if len(rows) != 2 || silent != 1 {
		t.Errorf("a stopped process: %v", rows)
	}
	out, errOut, code, err := subprocess.Run(t.Context(), command("rocl", sock, "top", "--interval", "200ms"))
	if err != nil || code != 0 || !regexp.MustCompile(`(?m)\Aresources\n +NAME +MESSAGES [^\n]*\n. n=2 name=shard +300 `).MatchString(out) {
		t.Errorf("without a terminal: code %d, %v\n%s%s", code, err, out, errOut)
	}
}

// With --cluster the tables are those of all nodes. A context without a resource is shown with
// --all only.
//
// Promise (Observing): rocl top --cluster shows the contexts of all nodes.
func TestOnceCluster(t *testing.T) {
	nice.Raise(t) // a node that is late for a second is dead
	ctx := eventually.Context(t)
	var sockets, binds []string
	for i := range 2 {
		sockets, binds = append(sockets, freeaddr.Socket(t)), append(binds, try.Get(freeaddr.Loopback())(t))
		c := try.Get(rocl.Open(ctx, rocl.WithSocket(sockets[i]), rocl.WithCluster(t.Name()), rocl.WithMember(cluster.Member{Bind: binds[i], Join: binds[:i]})))(t)
		defer c.Close()
		try.Get(c.Register(ctx, rocl.Attrs{"name": fmt.Sprint("of node ", i)}))(t)
	}
	looksOn := try.Get(rocl.Open(ctx, rocl.WithSocket(sockets[0]), rocl.WithCluster(t.Name()), rocl.JoinOnly()))(t)
	defer looksOn.Close()
	for _, c := range []struct {
		contexts int
		args     []string
	}{{2, []string{"top", "--cluster"}}, {3, []string{"top", "--cluster", "--all"}}, {1, []string{"top"}}} {
		args := append(c.args, "--interval", "200ms", "--timeout", "5s")
		eventually.True(t, fmt.Sprint(args), func() bool {
			out, _, _, err := subprocess.Run(ctx, command("rocl", sockets[0], append(args, "--once", "--json")...)) // a node may be late
			return err == nil && strings.Count(out, `"kind":"context"`) == c.contexts && strings.Count(out, "of node ") == min(c.contexts, 2)
		})
	}
}

// Wrong usage, and a node without a directory, have their exit codes.
func TestExitCodes(t *testing.T) {
	sock := freeaddr.Socket(t)
	none := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		code int
		args string
	}{
		{2, "top"}, {2, "record " + none}, {64, "top name"}, {64, "top --interval 1ms"}, {64, "record"}, {64, "record x --for 0s"},
		{1, "replay " + none}, {64, "replay"}, {64, "replay x name"},
	} {
		_, errOut, code, err := subprocess.Run(t.Context(), command("rocl", sock, strings.Fields(c.args)...))
		if err != nil || code != c.code || errOut == "" {
			t.Errorf("%s: exit code %d, want %d: %v: %s", c.args, code, c.code, err, errOut)
		}
	}
	if _, err := os.Stat(none); err == nil {
		t.Error("record leaves a file of no view")
	}
}
