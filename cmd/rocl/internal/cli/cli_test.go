// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/cmd/internal/usage"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// TestMain runs the tests, or the command itself or a waiter if the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv("BE_ROCL") != "" {
		os.Exit(Run(context.Background(), Root(), os.Args[1:]))
	}
	if os.Getenv("BE_WAITER") != "" {
		wait(os.Args[1], os.Args[2], os.Args[3])
	}
	goleak.VerifyTestMain(m)
}

// long is much more time than any step of a test takes.
const long = 30 * time.Second

// node starts a directory for the test, and returns its socket.
func node(t *testing.T) string {
	_, sock := labelled(t, nil)
	return sock
}

// labelled starts a directory of a node with labels, and returns it with its socket.
func labelled(t *testing.T, a resource.Attributes) (*directory.Server, string) {
	sock := freeaddr.Socket(t)
	s := try.Get(directory.Listen(sock, directory.WithLabels(try.Get(directory.NewLabels(a))(t))))(t)
	t.Cleanup(func() { s.Close() })
	return s, sock
}

// open opens a context for the test.
func open(t *testing.T, sock string, opts ...rocl.Option) *rocl.Context {
	c := try.Get(rocl.Open(t.Context(), append(opts, rocl.WithSocket(sock))...))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// execute runs a command line to its end.
func execute(ctx context.Context, in io.Reader, args ...string) (out, errOut string, code int) {
	var o, e bytes.Buffer
	root := Root()
	root.SetIn(in)
	root.SetOut(&o)
	root.SetErr(&e)
	code = Run(ctx, root, append([]string{}, args...)) // not nil, for which cobra would take the arguments of the test
	return o.String(), e.String(), code
}

// A result is that of a command.
type result struct {
	out, errOut string
	code        int
}

// begin runs a command line in a goroutine of its own. The channel gets the result.
func begin(ctx context.Context, in io.Reader, args ...string) <-chan result {
	ended := make(chan result, 1)
	go func() {
		out, errOut, code := execute(ctx, in, args...)
		ended <- result{out, errOut, code}
	}()
	return ended
}

// running is a command that has been started and not waited for.
type running struct {
	t      *testing.T
	cancel context.CancelFunc
	out    *bufio.Scanner // output and error output
	code   chan int
}

func start(t *testing.T, args ...string) *running {
	ctx, cancel := context.WithTimeout(t.Context(), long)
	r, w := io.Pipe()
	c := &running{t: t, cancel: cancel, out: bufio.NewScanner(r), code: make(chan int, 1)}
	root := Root()
	root.SetOut(w)
	root.SetErr(w)
	go func() {
		c.code <- Run(ctx, root, args)
		w.Close()
	}()
	t.Cleanup(func() { c.stop() })
	return c
}

func (c *running) line() string {
	c.t.Helper()
	if !c.out.Scan() {
		c.t.Fatal("the command ended: ", c.out.Err())
	}
	return c.out.Text()
}

// stop interrupts the command and returns its exit code.
func (c *running) stop() int {
	c.cancel()
	for c.out.Scan() {
	}
	code := <-c.code
	c.code <- code
	return code
}

func TestAttributes(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string // as name=value lines
	}{
		{nil, ""},
		{[]string{"a=b"}, "a=b\n"},
		{[]string{"a="}, "a=\n"},
		{[]string{"a=b=c"}, "a=b=c\n"},
		{[]string{"a==", "é=\xff"}, "a==\né=\xff\n"},
		{[]string{"b=1", "a=2", "b=3"}, "b=1\na=2\nb=3\n"},
		{[]string{"a=x y\nz"}, "a=x y\nz\n"},
	} {
		l, err := attributes(c.args)
		if err != nil {
			t.Errorf("%q: %v", c.args, err)
			continue
		}
		got := ""
		for name, v := range l.All() {
			got += name + "=" + string(v) + "\n"
		}
		try.Equal(t, got, c.want, "%q: read as", c.args)
	}
	for _, a := range []string{"", "a", "=", "=b", strings.Repeat("n", 1025) + "=x"} {
		_, err := attributes([]string{"fine=yes", a})
		var u usage.Error
		if !errors.As(err, &u) {
			t.Errorf("%.20q: %v, want a usage error", a, err)
		}
	}
}

func TestReport(t *testing.T) {
	live, dead := context.Background(), func() context.Context {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return ctx
	}()
	for _, c := range []struct {
		ctx  context.Context
		err  error
		code int
		says string
	}{
		{live, nil, 0, ""},
		{dead, nil, 0, ""},
		{live, nothingError("none"), 1, ""},
		{live, errPartial, 3, ""},
		{live, usage.Errorf("no %s", "good"), 64, "rocl: no good\nTry 'rocl --help'.\n"},
		{live, fmt.Errorf("deeper: %w", usage.Errorf("no good")), 64, "rocl: deeper: no good\nTry 'rocl --help'.\n"},
		{dead, usage.Errorf("no good"), 64, "rocl: no good\nTry 'rocl --help'.\n"},
		{dead, context.Canceled, 130, ""},
		{dead, rocl.ErrNoDirectory, 130, ""},
		{live, context.DeadlineExceeded, 1, "rocl: context deadline exceeded\n"},
		{live, fmt.Errorf("at x: %w", rocl.ErrNoDirectory), 2, "dirserver"},
		{live, fmt.Errorf("at x: %w", rocl.ErrNotFound), 1, "no resource matches"},
		{live, fmt.Errorf("at x: %w", rocl.ErrPartial), 3, "not every node could be asked"},
		{live, errors.New("something else"), 1, "rocl: something else\n"},
	} {
		var w strings.Builder
		root := Root()
		root.SetErr(&w)
		if code := report(c.ctx, root, nil, c.err); code != c.code || !strings.Contains(w.String(), c.says) || c.says == "" && w.String() != "" {
			t.Errorf("%v, interrupted %v: exit code %d, says %q; want %d, %q", c.err, c.ctx.Err() != nil, code, w.String(), c.code, c.says)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, line := range []string{
		"nonsense", "--nonsense", "find --nonsense", "find x", "find =x", "watch x", "register", "register x", "recv", "send",
		"recv a=b --count x", "send a=b --tag -1", "send a=b --wait soon", "find --json=perhaps", "--socket",
		"help nonsense", "help find nonsense", "nodes x", "nodes =x", "search-trace", "search-trace x", "search-trace a=b --search", "search-trace a=b --search round",
		"find --cluster --first", "find --cluster x", "recv a=b --count -1", "send a=b --wait -1s", "completion tcsh", "completion bash x", "routes x=y",
		"find --timeout 0", "find --timeout -1s", "find --timeout 5", "nodes --timeout soon",
		"register rocl.a=b", "recv rocl.a=b", "recv a=b rocl.c=d", "find --want=", "find --want a,,b", "find --socket=", "find --socket unix:d.sock", "find --socket tcp://127.0.0.1:1",
		"watch --socket /" + strings.Repeat("x", 107), "register --socket /" + strings.Repeat("x", 107) + " a=b", "nonsens", "nods",
		"serve", "serve a=b", "serve a=b --", "serve -- cat", "serve a -- cat", "serve rocl.a=b -- cat", "serve --workers 0 a=b -- cat", "call", "call a", "call --wait -1s a=b",
	} {
		if out, errOut, code := execute(t.Context(), nil, strings.Fields(line)...); code != 64 || !strings.Contains(errOut, "--help") || out != "" {
			t.Errorf("rocl %s: exit code %d, %q, %q", line, code, out, errOut)
		}
	}
}

// Errors in the command line tell the user what to type.
func TestUsageHelps(t *testing.T) {
	t.Setenv("ROCL_TIMEOUT", "soon")
	for line, says := range map[string]string{
		"recv a=b --count -1 --timeout 1s": "--count -1 is less than 0", "completion tcsh --timeout 1s": "bash, fish, powershell, zsh", "routes x=y --timeout 1s": "routes takes no attributes",
		"find --timeout 5": `--timeout "5" is not a duration, such as 5s`, "recv a=b --count x --timeout 1s": `--count "x" is not a whole number`, "find --first=2": `--first "2" is not true or false`,
		"register rocl.a=b --timeout 1s": "are the library's", "find --want= --timeout 1s": `--want ""`, "find --socket= --timeout 1s": "--socket is empty", "nods": "did you mean nodes?", "find " + strings.Repeat("x", 70_000) + " --timeout 1s": "…",
		"register --timeout 1s": "register name=value...", "find --timeout 0": "--timeout 0s is not more than zero", "find": "ROCL_TIMEOUT=soon is not a duration",
	} {
		if _, errOut, code := execute(t.Context(), nil, strings.Fields(line)...); code != 64 || !strings.Contains(errOut, says) || len(errOut) > 500 || strings.Count(errOut, "\n") != 2 {
			t.Errorf("rocl %.100s: exit code %d, %.1000q does not say %q, on a line", line, code, errOut, says)
		}
	}
}

// With --json errors are JSON too, even errors in the command line itself.
//
// Promise (Commands): With `--json`, errors are JSON too.
func TestErrorsAsJSON(t *testing.T) {
	sock := node(t)
	dir := t.TempDir()
	nowhere := filepath.Join(dir, "d.sock")
	for line, want := range map[string]problem{
		"find --json --nonsense":                    {"unknown flag: --nonsense", "Try 'rocl find --help'.", 64},
		"--json nonsense":                           {`unknown command "nonsense" for "rocl"`, "Try 'rocl --help'.", 64},
		"find --json --timeout 0":                   {"--timeout 0s is not more than zero", "Try 'rocl find --help'.", 64},
		"send --json a=b --socket " + sock:          {"no resource matches", "'rocl find' lists the resources.", 1},
		"find --json a=b --socket " + nowhere:       {"open a context: no directory serves this node: " + nowhere + ": connect: no such file or directory", "Start 'dirserver', or any program that opens a context, such as 'rocl register name=value'.", 2},
		"find --json a=b --socket tcp://x":          {`--socket: directory: "tcp://x" is not tcp://HOST:PORT?node=FILE`, "Try 'rocl find --help'.", 64},
		"register --json rocl.a=b --socket " + sock: {`"rocl.a": resource: attribute names starting with "rocl." are the library's`, "Try 'rocl register --help'.", 64},
		"find --json a=b --socket " + dir:           {"open a context: no directory serves this node: " + dir + ": the directory's path is occupied: it is not a socket (drwxr-xr-x)", "Remove it if no program needs it, or name another path by --socket or ROCL_SOCKET.", 2},
		"--json nods":                               {`unknown command "nods" for "rocl"; did you mean nodes?`, "Try 'rocl --help'.", 64},
	} {
		out, errOut, code := execute(t.Context(), nil, strings.Fields(line)...)
		var got problem
		if err := json.Unmarshal([]byte(errOut), &got); err != nil || out != "" || strings.Count(errOut, "\n") != 1 || code != want.Code || got.Code != code || want.Error != "" && got != want {
			t.Errorf("rocl %s: exit code %d, %q, %q, want %+v", line, code, out, errOut, want)
		}
	}
}

func TestGlobals(t *testing.T) {
	t.Setenv("ROCL_SOCKET", "/from/environment")
	t.Setenv("ROCL_TIMEOUT", "1m")
	for line, want := range map[string]Globals{
		"probe":                         {Socket: "/from/environment", Timeout: time.Minute},
		"--json probe":                  {Socket: "/from/environment", JSON: true, Timeout: time.Minute},
		"probe --json --socket /x":      {Socket: "/x", JSON: true, Timeout: time.Minute},
		"--socket /x probe -v":          {Socket: "/x", Verbose: true, Timeout: time.Minute},
		"probe --verbose --json=false ": {Socket: "/from/environment", Verbose: true, Timeout: time.Minute},
		"probe --timeout 2s":            {Socket: "/from/environment", Timeout: 2 * time.Second},
	} {
		var got Globals
		root := Root()
		root.AddCommand(&cobra.Command{Use: "probe", Run: func(cmd *cobra.Command, _ []string) { got = Flags(cmd) }})
		root.SetArgs(strings.Fields(line))
		if err := root.ExecuteContext(t.Context()); err != nil || got != want {
			t.Errorf("rocl %s: %+v, %v, want %+v", line, got, err, want)
		}
	}
	for verbose, want := range map[bool]bool{false: false, true: true} {
		if got := (Globals{Verbose: verbose}).logger().Enabled(t.Context(), slog.LevelDebug); got != want {
			t.Errorf("with --verbose=%v the library logs: %v", verbose, got)
		}
	}
}

func TestVersion(t *testing.T) {
	if out, _, code := execute(t.Context(), nil, "--version"); code != 0 || !strings.HasPrefix(out, "rocl ") || strings.Count(out, "\n") != 1 {
		t.Errorf("--version: %d, %q", code, out)
	}
}

func TestPrint(t *testing.T) {
	var b strings.Builder
	if err := Print(&b, map[string]any{"a": "<x>\n"}); err != nil || strings.Count(b.String(), "\n") != 1 {
		t.Errorf("%v: %q", err, b.String())
	}
	try.Rejects(Print(&b, func() {}))(t, "what JSON does not have is printed")
	r, w := io.Pipe()
	r.Close()
	try.Fails(Print(w, 1))(t, io.ErrClosedPipe, "a write that fails")
}

func TestJSONAttrs(t *testing.T) {
	l := try.Get(attributes([]string{"one=1", "two=a", "two=\xff", "two=c", "empty="}))(t)
	try.OK(t, l.Want("blank"))
	want := map[string]any{
		"one": "1", "two": []any{"a", map[string]string{"base64": "/w=="}, "c"}, "empty": "", "blank": nil,
	}
	if got := jsonAttrs(l); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestPieces(t *testing.T) {
	big := strings.Repeat("x", 200_000)
	for in, want := range map[string][]string{
		"":              nil,
		"\n":            {""},
		"one":           {"one"},
		"one\ntwo\n":    {"one", "two"},
		"one\n\ntwo":    {"one", "", "two"},
		"a\r\n":         {"a\r"},
		big + "\nend\n": {big, "end"},
	} {
		var got []string
		if err := pieces(strings.NewReader(in), false, func(p []byte) error { got = append(got, string(p)); return nil }); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%.20q: %d pieces, %v, want %d", in, len(got), err, len(want))
		}
		for _, r := range []io.Reader{strings.NewReader(in), iotest.OneByteReader(strings.NewReader(in)), iotest.DataErrReader(strings.NewReader(in))} {
			var all strings.Builder
			err := pieces(r, true, func(p []byte) error {
				if len(p) == 0 || len(p) > 64<<10 {
					return fmt.Errorf("a piece of %d bytes", len(p))
				}
				all.Write(p)
				return nil
			})
			if err != nil || all.String() != in {
				t.Errorf("%.20q raw: %d bytes, %v, want %d", in, all.Len(), err, len(in))
			}
		}
	}
	bad := errors.New("bad")
	for _, raw := range []bool{false, true} {
		n := 0
		count := func([]byte) error { n++; return nil }
		if err := pieces(io.MultiReader(strings.NewReader("one\ntwo"), iotest.ErrReader(bad)), raw, count); !errors.Is(err, bad) || n == 0 {
			t.Errorf("raw %v: input that breaks: %v after %d", raw, err, n)
		}
		try.Equal(t, pieces(strings.NewReader("one\ntwo"), raw, func([]byte) error { return bad }), bad, "raw %v: a send that fails", raw)
	}
}

func TestFind(t *testing.T) {
	sock := node(t)
	find := func(args ...string) (string, string, int) {
		return execute(t.Context(), nil, append([]string{"find", "--socket", sock}, args...)...)
	}
	if out, errOut, code := find("a=b"); code != 1 || out != "" || errOut != "" {
		t.Errorf("nothing found: %d, %q, %q", code, out, errOut)
	}
	r := start(t, "register", "--json", "--socket", sock, "a=b", "c=1", "c=2", "bin=\xff")
	var reg struct {
		ID       string
		Revision uint64
		Attrs    map[string]any
	}
	if err := json.Unmarshal([]byte(r.line()), &reg); err != nil || reg.ID == "" || reg.Revision == 0 || reg.Attrs["a"] != "b" {
		t.Fatalf("registered %+v, %v", reg, err)
	}
	other := start(t, "register", "--socket", sock, "a=b", "other=yes")
	otherID := other.line()

	out, _, code := find("a=b", "--json")
	if code != 0 || strings.Count(out, "\n") != 2 || !strings.Contains(out, reg.ID) || !strings.Contains(out, otherID) {
		t.Errorf("find: %d, %q", code, out)
	}
	if out, _, code := find("a=b", "--first", "--json"); code != 0 || strings.Count(out, "\n") != 1 {
		t.Errorf("find --first: %d, %q", code, out)
	}
	if out, _, code := find("c=2"); code != 0 || !strings.HasPrefix(out, reg.ID+" ") || !strings.Contains(out, "a") || strings.Count(out, "\n") != 1 {
		t.Errorf("find c=2: %d, %q", code, out)
	}
	out, _, code = find("c=2", "--want", "a,bin", "--json")
	var f struct{ Attrs map[string]any }
	if err := json.Unmarshal([]byte(out), &f); err != nil || code != 0 {
		t.Fatalf("find --want: %d, %q", code, out)
	}
	// The answer contains the attributes of the pattern too (section 3.1 of the paper).
	if want := map[string]any{"a": "b", "c": "2", "bin": map[string]any{"base64": "/w=="}}; !reflect.DeepEqual(f.Attrs, want) {
		t.Errorf("find --want: %v, want %v", f.Attrs, want)
	}
	// Contexts of earlier finds may still be listed: the directory learns of the end of a context
	// when its connection ends.
	if out, _, code := find("--contexts", "--json"); code != 0 || strings.Count(out, "\n") < 2 || strings.Count(out, `"rocl.kind":"context"`) != strings.Count(out, "\n") {
		t.Errorf("find --contexts: %d, %q, want the two that register", code, out)
	}
	w := start(t, "watch", "--socket", sock, "c=2")
	w.line()
	r.stop()
	if l := w.line(); !strings.Contains(l, " gone ") {
		t.Errorf("watched: %s", l)
	}
	if out, _, code := find("c=2"); code != 1 {
		t.Errorf("found after its end: %q", out)
	}
}

// Promise (Commands): The commands take patterns as `rocl.Parse` does, in one argument or several,
// and refuse an empty argument.
func TestPatterns(t *testing.T) {
	sock := node(t)
	for _, args := range [][]string{{"name=slow", "load=3", "zone=b"}, {"name=two words", "load=0.5", "zone=c"}, {"name=far", "load=1", "zone=a"}} {
		r := start(t, append([]string{"register", "--socket", sock, "type=model"}, args...)...)
		r.line()
	}
	for _, args := range [][]string{
		{"type=model load<3 zone=b|c"}, {"type=model", "load<3", "zone=b|c"}, {`name="two words"`}, {`name=x|"two words"`, "load>=0.5"}, {"type=model", "load==0.50"},
	} {
		out, errOut, code := execute(t.Context(), nil, append([]string{"find", "--socket", sock, "--want", "name"}, args...)...)
		if code != 0 || strings.Count(out, "\n") != 1 || !strings.Contains(out, "two words") {
			t.Errorf("%q: %d, %q, %q", args, code, out, errOut)
		}
	}
	w := start(t, "watch", "--socket", sock, "load>1|2")
	if code := w.stop(); code != 64 {
		t.Errorf("a watch of no pattern ends with %d", code)
	}
	for _, args := range [][]string{{"find", ""}, {"find", "name=two words"}, {"nodes", "a"}, {"send", " "}, {"search-trace", "load<x"}, {"call", "load<x"}, {"services", "a=|"}} {
		if _, errOut, code := execute(t.Context(), nil, append(args, "--socket", sock)...); code != 64 || !strings.Contains(errOut, "rocl: ") {
			t.Errorf("%q: %d, %q", args, code, errOut)
		}
	}
}

func TestNoDirectory(t *testing.T) {
	nowhere := filepath.Join(t.TempDir(), "d.sock")
	for _, args := range [][]string{{"find"}, {"find", "--cluster"}, {"nodes"}, {"search-trace", "a=b"}, {"send", "a=b"}} {
		if _, errOut, code := execute(t.Context(), strings.NewReader("x\n"), append(args, "--socket", nowhere)...); code != 2 || !strings.Contains(errOut, "dirserver") {
			t.Errorf("rocl %v: exit code %d, %q", args, code, errOut)
		}
	}
}

// `rocl watch` prints the time of each event.
func TestWatch(t *testing.T) {
	sock := node(t)
	for _, as := range []string{"json", "text"} {
		args := []string{"watch", "--socket", sock, "w=" + as}
		if as == "json" {
			args = append(args, "--json")
		}
		w := start(t, args...)
		if as == "json" {
			var first foundJSON
			if l := w.line(); json.Unmarshal([]byte(l), &first) != nil || first.Event != "synced" || first.Time == nil {
				t.Errorf("first came %s", l)
			}
		}
		r := start(t, "register", "--socket", sock, "w="+as)
		id := r.line()
		l := w.line()
		if !strings.Contains(l, "appeared") || !strings.Contains(l, id) {
			t.Errorf("registered %s: %s", id, l)
		}
		if as == "text" {
			try.Works(time.Parse(watchTime, strings.Fields(l)[0]))(t)
		}
		r.stop()
		if l := w.line(); !strings.Contains(l, "gone") || !strings.Contains(l, id) {
			t.Errorf("%s ended: %s", id, l)
		}
		try.Equal(t, w.stop(), 0, "interrupted: exit code")
	}
}

func TestSendAndReceive(t *testing.T) {
	sock := node(t)
	send := func(in string, args ...string) (string, string, int) {
		return execute(t.Context(), strings.NewReader(in), append([]string{"send", "--socket", sock, "name=there"}, args...)...)
	}
	if _, errOut, code := send("x\n"); code != 1 || !strings.Contains(errOut, "no resource matches") {
		t.Errorf("send without a match: %d, %q", code, errOut)
	}
	if _, _, code := send("x\n", "--wait", "1ms"); code != 1 {
		t.Errorf("send without a match, waiting: exit code %d", code)
	}

	r := start(t, "recv", "--socket", sock, "--json", "--count", "3", "name=there")
	id := strings.TrimSuffix(strings.TrimPrefix(r.line(), `{"receiving":"`), `"}`)
	out, _, code := send("one\n\n\xff\n", "--tag", "9", "--json")
	if want := fmt.Sprintf(`{"bytes":4,"messages":3,"to":"%s"}`+"\n", id); code != 0 || out != want {
		t.Errorf("send: %d, %q, want %q", code, out, want)
	}
	for _, want := range []string{`"tag":9,"data":"one"}`, `"tag":9,"data":""}`, `"tag":9,"data":{"base64":"/w=="}}`} {
		if l := r.line(); !strings.HasPrefix(l, `{"from":"`) || !strings.HasSuffix(l, want) {
			t.Errorf("received %s, want %s", l, want)
		}
	}
	if code := <-r.code; code != 0 {
		t.Errorf("recv after --count: exit code %d", code)
	} else {
		r.code <- code
	}

	raw := start(t, "recv", "--socket", sock, "--raw", "name=there")
	raw.line()
	if _, _, code := send("a\nb\nc\n", "--raw"); code != 0 {
		t.Errorf("send --raw: exit code %d", code)
	}
	for _, want := range []string{"a", "b", "c"} {
		try.Equal(t, raw.line(), want, "received")
	}
	if code := raw.stop(); code != 0 { // its help says that it runs until the interrupt
		t.Errorf("recv interrupted: exit code %d", code)
	}
}

// send --wait finds a resource that appears later.
func TestSendWaits(t *testing.T) {
	sock := node(t)
	sent := begin(t.Context(), strings.NewReader("hello\n"), "send", "--socket", sock, "name=late", "--wait", long.String())
	r := start(t, "recv", "--socket", sock, "--count", "1", "name=late")
	r.line()
	try.Equal(t, r.line(), "hello", "received")
	if got := <-sent; got.code != 0 {
		t.Errorf("send: exit code %d", got.code)
	}
}

// send says how many messages were not delivered, whether it learns that while it sends or while it
// waits for the last ones.
//
// Promise (Commands): `rocl send` ends with exit code 0 only if every message was delivered.
func TestSendTellsUndelivered(t *testing.T) {
	sock := node(t)
	c := open(t, sock)
	for _, json := range []bool{false, true} {
		r := try.Get(c.Register(t.Context(), rocl.Attrs{"name": "there"}))(t)
		in, typed := io.Pipe()
		ended := begin(t.Context(), in, "send", "--socket", sock, "name=there", fmt.Sprint("--json=", json))
		try.Get(io.WriteString(typed, "one\n"))(t)
		try.Get(r.Recv(t.Context()))(t).Release()
		try.OK(t, r.Close())
		try.Get(io.WriteString(typed, "two\n"))(t)
		typed.Close()
		got := <-ended
		if got.code != 1 || !strings.Contains(got.errOut, "1 of 2 messages were not delivered: ") || !strings.Contains(got.errOut, "resource is gone") {
			t.Errorf("exit code %d, %q", got.code, got.errOut)
		}
		if json && !strings.Contains(got.out, `"messages":2`) || json && !strings.Contains(got.out, `"undelivered":1`) {
			t.Errorf("%q", got.out)
		}
	}
}

// An interrupt ends send; the input before it has arrived.
func TestSendInterrupted(t *testing.T) {
	sock := node(t)
	r := start(t, "recv", "--socket", sock, "name=there")
	r.line()
	in, typed := io.Pipe()
	defer typed.Close() // lets the reader end
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	ended := begin(ctx, in, "send", "--socket", sock, "name=there")
	try.Get(io.WriteString(typed, "hello\n"))(t)
	try.Equal(t, r.line(), "hello", "received")
	cancel()
	try.Equal(t, eventually.Value(t, "the end of send", ended).code, exitInterrupted, "interrupted: exit code")
}
