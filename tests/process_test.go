// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// rocl and dirserver are the paths of the commands. ROCL_BUILT names the folder that has them.
// Without it TestMain builds them.
var rocl, dirserver string

func TestMain(m *testing.M) {
	dir, remove := os.Getenv("ROCL_BUILT"), func() {}
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "rocl-tests-"); err != nil {
			panic(err)
		}
		remove = func() { _ = os.RemoveAll(dir) }
		cmd := exec.Command("go", "build", "-o", dir+"/", "./cmd/rocl", "./cmd/dirserver")
		cmd.Dir = ".."
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building rocl and dirserver: %v\n%s", err, out)
			os.Exit(1)
		}
	}
	rocl, dirserver = filepath.Join(dir, "rocl"), filepath.Join(dir, "dirserver")
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"),
		goleak.Cleanup(func(code int) {
			remove()
			os.Exit(code)
		}))
}

// socket returns the path of a socket for a node of the test's own.
func socket(t testing.TB) string { return freeaddr.Socket(t) }

// run runs a command to its end and returns its output and exit code.
func run(t *testing.T, in string, bin string, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.Command(bin, args...)
	cmd.Stdin = strings.NewReader(in)
	out, errOut, code := runCommand(t, 60*time.Second, cmd)
	if errOut != "" {
		t.Logf("%s %v: %s", filepath.Base(bin), args, errOut)
	}
	return out, code
}

// runCommand runs a command to its end, which must come within the limit.
func runCommand(t *testing.T, limit time.Duration, cmd *exec.Cmd) (out, errOut string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	out, errOut, code, err := subprocess.Run(ctx, cmd)
	try.OK(t, err, "%q, %q", out, errOut)
	return out, errOut, code
}

// child is a command that is running.
type child struct{ *subprocess.Process }

// start starts a command and waits until it is ready: until its output or its error output has a
// line that contains ready.
func start(t *testing.T, ready, bin string, args ...string) *child {
	t.Helper()
	return startCommand(t, ready, exec.Command(bin, args...))
}

func startCommand(t *testing.T, ready string, cmd *exec.Cmd) *child {
	t.Helper()
	c := launch(t, cmd)
	c.until(t, ready)
	return c
}

// launch starts a command, and does not wait for output.
func launch(t *testing.T, cmd *exec.Cmd) *child {
	t.Helper()
	return launchUnmerged(t, cmd, subprocess.Merged())
}

// launchUnmerged is launch for a command whose error output has a place of its own.
func launchUnmerged(t *testing.T, cmd *exec.Cmd, opts ...subprocess.Option) *child {
	t.Helper()
	p := try.Get(subprocess.Start(cmd, opts...))(t)
	t.Cleanup(p.Kill)
	return &child{p}
}

// until returns the next line that contains what.
func (c *child) until(t *testing.T, what string) string {
	t.Helper()
	return c.untilAll(t, what)[0]
}

// untilAll returns the next lines that contain what, one for each, in any order: a goroutine of its
// own writes logs.
func (c *child) untilAll(t *testing.T, what ...string) []string {
	t.Helper()
	limit := time.After(eventually.Timeout)
	var said []string
	lines := make([]string, len(what))
	for missing := len(what); missing > 0; {
		select {
		case l, ok := <-c.Lines:
			if !ok {
				t.Fatalf("%v ended without saying %q, but:\n%s", c.Cmd.Args, what, strings.Join(said, "\n"))
			}
			said = append(said, l)
			for i, w := range what {
				if lines[i] == "" && strings.Contains(l, w) {
					lines[i] = l
					missing--
				}
			}
		case <-limit:
			t.Fatalf("%v never said %q, but:\n%s", c.Cmd.Args, what, strings.Join(said, "\n"))
		}
	}
	return lines
}

// stop ends the process by SIGTERM, as an operator does.
func (c *child) stop(t *testing.T) {
	t.Helper()
	c.signal(t, syscall.SIGTERM)
	eventually.Returns(t, "the end of the process", func() {
		try.Check(t, c.Wait())
	})
}

// signal is the function signal for this process.
func (c *child) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	signal(t, c.Cmd.Process.Pid, s)
}

func find(t *testing.T, sock string, attrs ...string) (ids []string, code int) {
	t.Helper()
	out, code := run(t, "", rocl, append([]string{"find", "--json", "--socket", sock}, attrs...)...)
	for line := range strings.Lines(out) {
		var f struct {
			ID    string
			Attrs map[string]any
		}
		if err := json.Unmarshal([]byte(line), &f); err != nil || f.ID == "" || f.Attrs == nil {
			t.Fatalf("find printed %q: %v", line, err)
		}
		ids = append(ids, f.ID)
	}
	return ids, code
}

// The process that serves the directory is killed several times. Each time the resource is found
// again under the same identifier.
//
// Promise (Resources): A process that dies takes its resources with it.
//
// Promise (Takeover): The process that serves the directory may be killed. Resources keep their
// identifiers, and no message is lost. See also TestServingContextKilled.
func TestServerKilled(t *testing.T) {
	sock := socket(t)
	d := start(t, `"serving"`, dirserver, "--socket", sock)
	keep := start(t, "-", rocl, "register", "--socket", sock, "who=keeper")
	before, code := find(t, sock, "who=keeper")
	if code != 0 {
		t.Fatal(code)
	}
	for range 5 {
		d.Kill()
		// The keeper serves now; a question waits until it does.
		after, code := findSoon(t, sock, "who=keeper")
		if code != 0 || after[0] != before[0] {
			t.Fatalf("after the daemon's death: %v, before %v", after, before)
		}
		// A daemon that comes back takes over from the context.
		d = start(t, `"serving"`, dirserver, "--socket", sock)
		if after, code := findSoon(t, sock, "who=keeper"); code != 0 || after[0] != before[0] {
			t.Fatalf("after the daemon's return: %v, before %v", after, before)
		}
	}
	keep.Kill()
	w := start(t, "synced", rocl, "watch", "--json", "--socket", sock)
	if ids, code := find(t, sock, "who=keeper"); code != 1 {
		t.Errorf("a dead context's resource is found: %v", ids)
	}
	w.Kill()
}

// findSoon is find for moments at which no process may serve the directory.
func findSoon(t *testing.T, sock string, attrs ...string) (ids []string, code int) {
	t.Helper()
	eventually.True(t, "a process serves the directory", func() bool {
		ids, code = find(t, sock, attrs...)
		return code != 2
	})
	return ids, code
}

// The first context serves the directory. It is killed while other contexts exchange messages: no
// message is lost, and the next context takes over.
func TestServingContextKilled(t *testing.T) {
	sock := socket(t)
	first := start(t, "-", rocl, "register", "--socket", sock, "i=first")
	r := start(t, "receiving", rocl, "recv", "--socket", sock, "name=sink")
	send := launch(t, exec.Command(rocl, "send", "--socket", sock, "name=sink"))
	before, _ := find(t, sock, "name=sink")
	for i := range 300 {
		if i == 100 {
			first.Kill()
		}
		try.OK(t, send.WriteLine("message", i))
		if l := r.until(t, "message"); l != fmt.Sprint("message ", i) {
			t.Fatalf("got %q as message %d", l, i)
		}
	}
	send.CloseInput()
	try.OK(t, send.Wait())
	after, code := findSoon(t, sock, "name=sink")
	if code != 0 || after[0] != before[0] {
		t.Errorf("found %v, before %v", after, before)
	}
}

// A socket file is left behind, and many processes start at once: one serves.
func TestRaceToServe(t *testing.T) {
	sock := socket(t)
	d := start(t, `"serving"`, dirserver, "--socket", sock)
	d.Kill() // leaves the socket file
	try.Get(os.Stat(sock))(t, "the killed server left no socket file to be replaced")
	var cs []*child
	for i := range 6 {
		cs = append(cs, launch(t, exec.Command(rocl, "register", "--socket", sock, "racer="+fmt.Sprint(i), "race=yes")))
	}
	var ids []string
	eventually.True(t, "all racers are found", func() bool {
		ids, _ = find(t, sock, "race=yes")
		return len(ids) == len(cs)
	})
	seen := map[string]bool{}
	for _, id := range ids {
		seen[id] = true
	}
	try.Equal(t, len(seen), len(cs), "identifiers are not unique: %v", ids)
}

// Promise (Source tree): The demonstration counts what grep counts, also when a process is killed.
// See also TestCrawlerDiesAfterSending.
func TestDemo(t *testing.T) {
	dir := t.TempDir()
	files := map[string]string{
		"a.txt":       "Alpha beta\nGAMMA",
		"b.txt":       "alphabet alpha_1 beta-Alpha.",
		"sub/c.txt":   "nothing here",
		"sub/d.bin":   "alpha\x00",
		"empty":       "",
		"e\xff.txt":   "alpha",
		"utf8.txt":    "é alpha é",
		"late.bin":    strings.Repeat("x ", 1<<20) + " alpha \x00",
		"large.txt":   strings.Repeat("lorem ipsum ", 300_000) + "alp" + "ha",
		"straddle.tx": strings.Repeat("z", 1<<20-3) + " alpha",
	}
	for i := range 300 {
		files[fmt.Sprintf("many/%d.txt", i)] = strings.Repeat("filler ", i) + map[bool]string{true: "ALPHA", false: "alphas"}[i%3 == 0]
	}
	for name, text := range files {
		p := filepath.Join(dir, name)
		try.OK(t, os.MkdirAll(filepath.Dir(p), 0o755))
		try.OK(t, os.WriteFile(p, []byte(text), 0o644))
	}
	try.OK(t, os.Symlink(filepath.Join(dir, "a.txt"), filepath.Join(dir, "link")))
	want := 0
	word := regexp.MustCompile(`(?i)(^|[^A-Za-z0-9_])alpha($|[^A-Za-z0-9_])`)
	for _, text := range files {
		if !strings.Contains(text, "\x00") && word.MatchString(text) {
			want++
		}
	}
	if grep, err := exec.LookPath("grep"); err == nil {
		cmd := exec.Command(grep, "-rIliw", "alpha", dir)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		out, _ := cmd.Output()
		if n := bytes.Count(out, []byte("\n")); n != want {
			t.Fatalf("grep counts %d, the test %d", n, want)
		}
	}
	for _, extra := range [][]string{nil, {"--kill-indexer"}} {
		out, code := run(t, "", rocl, append([]string{"demo", dir, "--word", "alpha", "--json"}, extra...)...)
		var r struct {
			Matches, Files, Bytes, Messages, Killed, Redone int
			Seconds                                         float64
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 {
			t.Fatalf("demo %v: %v, exit code %d: %s", extra, err, code, out)
		}
		if r.Matches != want || r.Files != len(files)-2 || r.Messages == 0 || r.Seconds <= 0 || r.Bytes == 0 {
			t.Errorf("demo %v: %+v, want %d matches in %d files", extra, r, want, len(files)-2)
		}
		if extra != nil && r.Killed != 1 {
			t.Errorf("demo %v: %d processes were lost", extra, r.Killed)
		}
	}
}
