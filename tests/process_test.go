// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
)

// rocl and dirserver are the paths of the commands, which are built once.
var rocl, dirserver string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "rocl-tests-")
	if err != nil {
		panic(err)
	}
	rocl, dirserver = filepath.Join(dir, "rocl"), filepath.Join(dir, "dirserver")
	for bin, pkg := range map[string]string{rocl: "./cmd/rocl", dirserver: "./cmd/dirserver"} {
		cmd := exec.Command("go", "build", "-o", bin, pkg)
		cmd.Dir = ".."
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "building %s: %v\n%s", pkg, err, out)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"),
		goleak.Cleanup(func(code int) {
			_ = os.RemoveAll(dir)
			os.Exit(code)
		}))
}

// socket returns the path of a socket for a node of the test's own. The path is short: the kernel
// allows 107 bytes.
func socket(t *testing.T) string {
	dir, err := os.MkdirTemp("", "rt-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "d.sock")
}

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
	if err != nil {
		t.Fatalf("%v: %q, %q", err, out, errOut)
	}
	return out, errOut, code
}

// child is a command that is running.
type child struct {
	*subprocess.Process
	cmd   *exec.Cmd
	lines <-chan string
}

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
	p, err := subprocess.Start(cmd, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return &child{Process: p, cmd: cmd, lines: p.Lines}
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
		case l, ok := <-c.lines:
			if !ok {
				t.Fatalf("%v ended without saying %q, but:\n%s", c.cmd.Args, what, strings.Join(said, "\n"))
			}
			said = append(said, l)
			for i, w := range what {
				if lines[i] == "" && strings.Contains(l, w) {
					lines[i] = l
					missing--
				}
			}
		case <-limit:
			t.Fatalf("%v never said %q, but:\n%s", c.cmd.Args, what, strings.Join(said, "\n"))
		}
	}
	return lines
}

// kill kills the process, and waits until it has ended.
func (c *child) kill(t *testing.T) {
	t.Helper()
	c.Kill()
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

func TestExitCodes(t *testing.T) {
	sock := socket(t)
	if _, code := find(t, sock, "a=b"); code != 2 {
		t.Errorf("find without a directory: exit code %d, want 2", code)
	}
	start(t, `"serving"`, dirserver, "--socket", sock)
	if _, code := find(t, sock, "a=b"); code != 1 {
		t.Errorf("find without a match: exit code %d, want 1", code)
	}
	start(t, "-", rocl, "register", "--socket", sock, "a=b", "a=c")
	ids, code := find(t, sock, "a=b")
	if code != 0 || len(ids) != 1 {
		t.Errorf("find: %v, exit code %d", ids, code)
	}
	for _, args := range [][]string{{"find", "nonsense"}, {"find", "=x"}, {"nonsense"}, {"demo", "--word", "a b"}, {"find", "--nonsense"}, {"register"}} {
		if _, code := run(t, "", rocl, append(args, "--socket", sock)...); code != 64 {
			t.Errorf("rocl %v: exit code %d, want 64", args, code)
		}
	}
	if _, code := run(t, "", dirserver, "--socket", sock); code != 3 {
		t.Errorf("a second dirserver: exit code %d, want 3", code)
	}
	for _, bin := range []string{rocl, dirserver} {
		if out, code := run(t, "", bin, "--version"); code != 0 || !regexp.MustCompile(`^\w+ \d+\.\d+\.\d+`).MatchString(out) {
			t.Errorf("%s --version: %q, exit code %d", bin, out, code)
		}
	}
}

func TestTwoShells(t *testing.T) {
	sock := socket(t)
	r := start(t, "receiving", rocl, "recv", "--socket", sock, "--count", "3", "--json", "name=there")
	if _, code := run(t, "one\ntwo\n\xff\n", rocl, "send", "--socket", sock, "name=there", "--tag", "7"); code != 0 {
		t.Fatalf("send: exit code %d", code)
	}
	for _, want := range []string{`"data":"one"`, `"data":"two"`, `{"base64":"/w=="}`} {
		if l := r.until(t, "from"); !strings.Contains(l, want) || !strings.Contains(l, `"tag":7`) {
			t.Errorf("received %s, want %s", l, want)
		}
	}
	if err := r.Wait(); err != nil {
		t.Error(err)
	}
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
		d.kill(t)
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
	keep.kill(t)
	w := start(t, "synced", rocl, "watch", "--json", "--socket", sock)
	if ids, code := find(t, sock, "who=keeper"); code != 1 {
		t.Errorf("a dead context's resource is found: %v", ids)
	}
	w.kill(t)
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
			first.kill(t)
		}
		if err := send.WriteLine("message", i); err != nil {
			t.Fatal(err)
		}
		if l := r.until(t, "message"); l != fmt.Sprint("message ", i) {
			t.Fatalf("got %q as message %d", l, i)
		}
	}
	send.CloseInput()
	if err := send.Wait(); err != nil {
		t.Fatal(err)
	}
	after, code := findSoon(t, sock, "name=sink")
	if code != 0 || after[0] != before[0] {
		t.Errorf("found %v, before %v", after, before)
	}
}

// A socket file is left behind, and many processes start at once: one serves.
func TestRaceToServe(t *testing.T) {
	sock := socket(t)
	d := start(t, `"serving"`, dirserver, "--socket", sock)
	d.kill(t) // leaves the socket file
	if _, err := os.Stat(sock); err != nil {
		t.Fatal("the killed server left no socket file to be replaced")
	}
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
	if len(seen) != len(cs) {
		t.Errorf("identifiers are not unique: %v", ids)
	}
}

// A process of another user is refused, whatever the mode of the socket file is.
//
// Promise (Directory): Processes of other users are refused.
func TestOtherUserRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	sock := socket(t)
	d := start(t, `"serving"`, dirserver, "--socket", sock)
	for path, mode := range map[string]os.FileMode{filepath.Dir(sock): 0o711, sock: 0o777} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		got <- func() error {
			const nobody = 65534
			if _, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), nobody, ^uintptr(0)); e != 0 {
				return e
			}
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: sock}); err != nil {
				return err
			}
			f := os.NewFile(uintptr(fd), "refused")
			defer f.Close()
			if b, err := io.ReadAll(f); err != nil || !strings.Contains(string(b), "of user 65534") {
				return fmt.Errorf("was told %q, %v, in place of why and the end", b, err)
			}
			return nil
		}()
	}()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	if l := d.until(t, "refused"); !strings.Contains(l, "user 65534") {
		t.Errorf("logged %s", l)
	}
	if _, code := find(t, sock, "a=b"); code != 1 {
		t.Errorf("find of the user's own: exit code %d", code)
	}
}

// If another user has made a user's default folder first, and serves a directory there, that
// directory is told nothing.
func TestPreparedFolderRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	const nobody = 65534
	tmp := filepath.Dir(socket(t))
	if err := os.Chmod(tmp, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(dirserver), 0o711); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", tmp)
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("ROCL_SOCKET", "")
	folder := filepath.Join(tmp, "rocl-0")
	cmd := exec.Command(dirserver, "--socket", filepath.Join(folder, "directory.sock"), "--log-level", "debug")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	thief := startCommand(t, `"serving"`, cmd)
	for _, args := range [][]string{{"recv", "a=b"}, {"send", "a=b"}, {"find"}} {
		cmd := exec.Command(rocl, args...)
		cmd.Stdin = strings.NewReader("a secret\n")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "not trusted") || !strings.Contains(string(out), folder) {
			t.Errorf("rocl %v: %v, %s", args, err, out)
		}
	}
	if out, code := run(t, "", dirserver); code != 1 {
		t.Errorf("dirserver: exit code %d, %s", code, out)
	}
	if err := thief.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if l := thief.until(t, "stopping"); !strings.Contains(l, `"contexts":0`) {
		t.Errorf("the other user's directory was joined: %s", l)
	}
}

// Of two daemons one goes on, although the files of the first were removed while it ran. The other
// ends, and the socket stays.
func TestFilesRemoved(t *testing.T) {
	sock := socket(t)
	first := start(t, `"serving"`, dirserver, "--socket", sock)
	for _, suffix := range []string{".lock", ".node", ""} {
		if err := os.Remove(sock + suffix); err != nil {
			t.Fatal(err)
		}
	}
	second := start(t, "", dirserver, "--socket", sock)
	ended := make(chan *child, 2)
	for _, d := range []*child{first, second} {
		go func() {
			_ = d.Wait()
			ended <- d
		}()
	}
	var other *child
	select {
	case d := <-ended:
		if code := d.cmd.ProcessState.ExitCode(); code != 3 {
			t.Errorf("exit code %d", code)
		}
		if other = first; d == first {
			other = second
		}
	case <-time.After(eventually.Timeout):
		t.Fatal("hangs: both go on")
	}
	if out, code := find(t, sock, "a=b"); code != 1 {
		t.Errorf("find: exit code %d, %s", code, out)
	}
	if err := other.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ended
	if _, err := os.Stat(sock); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func TestDrainsOnTerm(t *testing.T) {
	sock := socket(t)
	d := start(t, `"serving"`, dirserver, "--socket", sock)
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.until(t, "stopping")
	if err := d.Wait(); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	if _, err := os.Stat(sock); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
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
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(dir, "a.txt"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
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

// Every command has --json and says what it is for.
func TestCommandTree(t *testing.T) {
	out, _ := run(t, "", rocl, "--help")
	for _, c := range []string{"demo", "register", "find", "watch", "recv", "send", "call", "serve", "bench", "completion"} {
		if !strings.Contains(out, "\n  "+c+" ") {
			t.Errorf("rocl --help does not name %s", c)
		}
		help, code := run(t, "", rocl, c, "--help")
		if code != 0 || !strings.Contains(help, "--json") {
			t.Errorf("rocl %s --help: exit code %d, --json named: %v", c, code, strings.Contains(help, "--json"))
		}
	}
	for _, sh := range []string{"bash", "zsh", "fish"} {
		if out, code := run(t, "", rocl, "completion", sh); code != 0 || len(out) < 500 {
			t.Errorf("completion for %s: %d bytes, exit code %d", sh, len(out), code)
		}
	}
}
