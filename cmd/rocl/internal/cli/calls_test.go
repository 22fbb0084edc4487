// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/rpc"
)

// call runs 'rocl call' with an input.
func call(t *testing.T, sock, in string, args ...string) (out, errOut string, code int) {
	t.Helper()
	r := <-beginCall(t, sock, in, args...)
	return r.out, r.errOut, r.code
}

func beginCall(t *testing.T, sock, in string, args ...string) <-chan result {
	return begin(t.Context(), strings.NewReader(in), append([]string{"call", "--timeout", long.String(), "--socket", sock}, args...)...)
}

// callBeside is call for a server that prints a line meanwhile, which it returns.
func callBeside(t *testing.T, s *running, sock, in string, args ...string) (out, errOut, line string, code int) {
	t.Helper()
	called := beginCall(t, sock, in, args...)
	line = s.line()
	r := <-called
	return r.out, r.errOut, line, r.code
}

// serve starts 'rocl serve' with a shell command. It returns the running command and the identifier
// of its resource.
func serve(t *testing.T, sock, script string, args ...string) (*running, string) {
	t.Helper()
	s := start(t, append(append([]string{"serve", "--socket", sock}, args...), "--", "sh", "-c", script)...)
	return s, strings.TrimPrefix(s.line(), "serving as ")
}

// Promise (Commands): `rocl call` prints the reply to its own request. `rocl serve` answers several
// requests at a time. See also TestCallsAtOnce.
func TestCallAndServe(t *testing.T) {
	sock := node(t)
	if _, errOut, code := call(t, sock, "x", "name=there"); code != 1 || !strings.Contains(errOut, "no resource matches") {
		t.Errorf("call without a match: %d, %q", code, errOut)
	}
	s, id := serve(t, sock, "tr a-z A-Z; echo $ROCL_TAG", "name=there")
	if out, _, code := call(t, sock, "hello ", "--tag", "7", "name=there"); code != 0 || out != "HELLO 7\n" {
		t.Errorf("call: %d, %q", code, out)
	}
	want := fmt.Sprintf(`{"from":"%s","tag":9,"data":"9\n"}`+"\n", id)
	if out, _, code := call(t, sock, "", "--json", "--tag", "9", "name=there"); code != 0 || out != want {
		t.Errorf("call --json: %d, %q, want %q", code, out, want)
	}
	// More than a pipe holds, in both directions.
	big := strings.Repeat("x", 3_000_000)
	if out, _, code := call(t, sock, big, "name=there"); code != 0 || out != strings.ToUpper(big)+"0\n" {
		t.Errorf("a large request: %d, %d bytes", code, len(out))
	}
	try.Equal(t, s.stop(), 0, "serve interrupted: exit code")
}

// Characters that would control a terminal are printed with escapes, and with --raw unchanged.
func TestReplyIsPrinted(t *testing.T) {
	sock := node(t)
	serve(t, sock, `printf 'a\nb\033'`, "name=there")
	if out, _, code := call(t, sock, "", "name=there"); code != 0 || out != `a`+"\n"+`b\x1b`+"\n" {
		t.Errorf("call: %d, %q", code, out)
	}
	if out, _, code := call(t, sock, "", "--raw", "name=there"); code != 0 || out != "a\nb\x1b" {
		t.Errorf("call --raw: %d, %q", code, out)
	}
}

// A served command that fails gives the caller an error, and the server goes on.
//
// `rocl call` has an exit code of its own if the served command fails, and an error if the server
// ends or is silent. See also TestServedOutputStaysOpen.
func TestServedCommandFails(t *testing.T) {
	sock := node(t)
	s, id := serve(t, sock, "read s; echo no such thing >&2; exit $s", "name=there")
	for range 2 {
		out, errOut, line, code := callBeside(t, s, sock, "3\n", "name=there")
		if want := "rocl: the command at " + id + " failed with exit status 3: no such thing\n"; code != exitCommand || out != "" || errOut != want || line != "no such thing" {
			t.Errorf("call: %d, %q, %q, want %q", code, out, errOut, want)
		}
	}
	var p problem
	if _, errOut, _, code := callBeside(t, s, sock, "4\n", "--json", "name=there"); code != exitCommand || json.Unmarshal([]byte(errOut), &p) != nil || p.Code != exitCommand {
		t.Errorf("call --json: %d, %q", code, errOut)
	}
	if out, errOut, _, code := callBeside(t, s, sock, "0\n", "name=there"); code != 0 || out != "" {
		t.Errorf("call: %d, %q, %q", code, out, errOut)
	}
	killed, _ := serve(t, sock, "kill -9 $$", "name=killed")
	if _, errOut, code := call(t, sock, "", "name=killed"); code != exitCommand || !strings.Contains(errOut, "failed") {
		t.Errorf("a command that is killed: %d, %q", code, errOut)
	}
	killed.stop()
}

// As many requests as --workers says are handled at the same time. Each command waits until the
// other one runs too.
func TestServeSideBySide(t *testing.T) {
	sock, dir := node(t), t.TempDir()
	serve(t, sock, fmt.Sprintf("read me you; : >%[1]s/$me; while [ ! -e %[1]s/$you ]; do sleep 0.01; done; echo $me", dir), "--workers", "2", "name=there")
	second := beginCall(t, sock, "b a\n", "name=there")
	if out, _, code := call(t, sock, "a b\n", "name=there"); code != 0 || out != "a\n" {
		t.Errorf("the first: %d, %q", code, out)
	}
	if r := <-second; r.out != "b\n" {
		t.Errorf("the second: %q", r.out)
	}
}

// The output of the command for a message that is not a request goes to standard output.
//
// `rocl serve` prints the command's output for a message that is no request.
func TestServeMessages(t *testing.T) {
	sock := node(t)
	s, _ := serve(t, sock, "cat; echo .", "name=there")
	if _, _, code := execute(t.Context(), strings.NewReader("hello\n"), "send", "--socket", sock, "name=there"); code != 0 {
		t.Errorf("send: exit code %d", code)
	}
	try.Equal(t, s.line(), "hello.", "serve printed")
}

// A call ends when the server ends, and when the reply takes too long.
func TestCallEnds(t *testing.T) {
	sock := node(t)
	c := open(t, sock)
	r := try.Get(c.Register(t.Context(), rocl.Attrs{"name": "silent"}))(t)
	isEarly := func(_, errOut string) bool { return strings.Contains(errOut, "the directory at") } // nothing was sent
	timeout, _, errOut, code := withinMore(t, 300*time.Millisecond, "", isEarly, "call", "--socket", sock, "name=silent")
	if code != exitSilent || !strings.Contains(errOut, "did not reply within "+timeout.String()) {
		t.Errorf("no reply: %d, %q", code, errOut)
	}
	go func() {
		for m, err := range r.Messages(t.Context()) { // the first message is that of the call before
			if err != nil {
				return
			}
			if string(m.Bytes()) == "end" {
				r.Close() // before the release, which would end the call without a reply
			}
			m.Release()
		}
	}()
	if _, errOut, code := call(t, sock, "end", "name=silent"); code != exitFailed || !strings.Contains(errOut, "gone") {
		t.Errorf("a server that goes: %d, %q", code, errOut)
	}
}

// Concurrent calls each get their own reply, even if there are more calls than workers.
func TestCallsAtOnce(t *testing.T) {
	sock := node(t)
	serve(t, sock, "cat", "--workers", "3", "name=there")
	var calls sync.WaitGroup
	for i := range 20 {
		calls.Go(func() {
			in := fmt.Sprintln("request", i)
			if out, errOut, code := call(t, sock, in, "name=there"); code != 0 || out != in {
				t.Errorf("call %d: %d, %q, %q", i, code, out, errOut)
			}
		})
	}
	calls.Wait()
}

// A user who types a request learns first that no server matches.
func TestCallFindsBeforeItReads(t *testing.T) {
	in, typed := io.Pipe()
	defer typed.Close()
	if _, errOut, code := execute(t.Context(), in, "call", "--socket", node(t), "name=there"); code != exitFailed || !strings.Contains(errOut, "no resource matches") {
		t.Errorf("%d, %q", code, errOut)
	}
}

// A call to a resource that only receives is an error, with a hint.
func TestCallOfReceiver(t *testing.T) {
	sock := node(t)
	r := start(t, "recv", "--socket", sock, "name=there")
	r.line()
	if _, errOut, line, code := callBeside(t, r, sock, "x", "name=there"); line != "x" || code != exitFailed || !strings.Contains(errOut, "without a reply") || !strings.Contains(errOut, "rocl send") {
		t.Errorf("%d, %q", code, errOut)
	}
}

// fifo returns a named pipe for commands to hold. begun is closed when a process has opened the
// pipe, and ended when the last one that has opened it has gone.
func fifo(t *testing.T) (path string, begun, ended <-chan struct{}) {
	path = filepath.Join(t.TempDir(), "fifo")
	try.OK(t, posix.Mkfifo(path))
	b, e := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(e)
		f, err := os.Open(path)
		close(b)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		try.Works(io.ReadAll(f))(t)
	}()
	return path, b, e
}

// A command that leaves behind a process with its output open has failed, because the reply may be
// incomplete.
func TestServedOutputStaysOpen(t *testing.T) {
	if testing.Short() {
		t.Skip("takes as long as a command has to end")
	}
	t.Parallel()
	sock := node(t)
	path, begun, ended := fifo(t)
	s, _ := serve(t, sock, "exec 3>"+path+"; sleep 1000 & echo $!; echo $! >&2", "name=there")
	_, errOut, line, code := callBeside(t, s, sock, "", "name=there")
	if code != exitCommand || !strings.Contains(errOut, "output was still open") {
		t.Errorf("call: %d, %q", code, errOut)
	}
	<-begun
	left := try.Get(strconv.Atoi(line))(t)
	try.Check(t, posix.Kill(left, syscall.SIGKILL))
	<-ended
}

// When serve is interrupted, the command ends with all processes that it has started, and the
// caller gets an error.
func TestServeInterrupted(t *testing.T) {
	sock := node(t)
	path, begun, ended := fifo(t)
	s, _ := serve(t, sock, "exec 3>"+path+"; sleep 1000; true", "name=there")
	called := beginCall(t, sock, "", "name=there")
	<-begun
	try.Equal(t, s.stop(), 0, "serve: exit code")
	<-ended
	if got := <-called; got.code != exitCommand || !strings.Contains(got.errOut, "it was interrupted") {
		t.Errorf("call: %d, %q", got.code, got.errOut)
	}
}

// When serve is killed, the call fails, and the kernel ends the command.
func TestServeKilled(t *testing.T) {
	sock := node(t)
	path, begun, ended := fifo(t)
	cmd := subprocess.Self("serve", "--socket", sock, "name=there", "--", "sh", "-c", "exec 3>"+path+"; exec sleep 1000")
	cmd.Env = append(os.Environ(), "BE_ROCL=1")
	s := try.Get(subprocess.Start(cmd))(t)
	t.Cleanup(s.Kill)
	go func() {
		<-begun
		s.Signal(syscall.SIGKILL)
	}()
	if _, errOut, code := call(t, sock, "", "--wait", long.String(), "name=there"); code != exitFailed || !strings.Contains(errOut, "gone") {
		t.Errorf("call: %d, %q", code, errOut)
	}
	_ = s.Wait()
	<-ended
}

func TestServeNoSuchCommand(t *testing.T) {
	if _, errOut, code := execute(t.Context(), nil, "serve", "a=b", "--", "no-such-command-anywhere"); code != exitFailed || !strings.Contains(errOut, "no-such-command-anywhere") {
		t.Errorf("no such command: %d, %q", code, errOut)
	}
}

// Servers of package rpc are listed, and called by name with arguments in JSON.
func TestCallOfName(t *testing.T) {
	sock := node(t)
	c := open(t, sock)
	s := try.Get(rpc.NewServer(t.Context(), c, rocl.Attrs{"name": "sums"}))(t)
	defer s.Close(context.Background())
	type addends struct{ A, B int }
	try.OK(t, rpc.Register(s, "add", func(_ context.Context, in addends) (map[string]int, error) {
		if in.A < 0 {
			return nil, fs.ErrInvalid
		}
		return map[string]int{"sum": in.A + in.B}, nil
	}))
	try.OK(t, rpc.RegisterStream(s, "upto", func(_ context.Context, n int) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for i := 0; i < n && yield(i, nil); i++ {
			}
			if n > 2 {
				yield(0, fs.ErrInvalid)
			}
		}
	}))
	if out, errOut, code := call(t, sock, "2", "upto", "name=sums"); code != 0 || out != "0\n1\n" {
		t.Errorf("%d, %q, %q", code, out, errOut)
	}
	if out, errOut, code := call(t, sock, "3", "upto", "name=sums"); code != exitFailed || out != "0\n1\n2\n" || !strings.Contains(errOut, "invalid argument") {
		t.Errorf("a stream that fails: %d, %q, %q", code, out, errOut)
	}
	if out, errOut, code := call(t, sock, `{"A": 1, "B": 2}`, "add", "name=sums"); code != 0 || out != `{"sum":3}`+"\n" {
		t.Errorf("%d, %q, %q", code, out, errOut)
	}
	if _, errOut, code := call(t, sock, `{"A": -1}`, "add", "name=sums"); code != exitFailed || !strings.Contains(errOut, `call "add"`) || !strings.Contains(errOut, "invalid argument") {
		t.Errorf("%d, %q", code, errOut)
	}
	if _, errOut, code := call(t, sock, "", "subtract", "name=sums"); code != exitFailed || !strings.Contains(errOut, `"subtract"`) {
		t.Errorf("%d, %q", code, errOut)
	}
	if _, _, code := call(t, sock, "", "--tag", "3", "add", "name=sums"); code != 64 {
		t.Errorf("--tag with a name: %d", code)
	}
	out, errOut, code := execute(t.Context(), strings.NewReader(""), "services", "--socket", sock)
	if code != 0 || !strings.Contains(out, s.ID().String()) || !strings.Contains(out, "name=sums") || !regexp.MustCompile(`(?m)^ *add +2 +1 +0 `).MatchString(out) {
		t.Errorf("%d, %q, %q", code, out, errOut)
	}
	var line struct {
		Server rocl.GID
		Attrs  map[string]any
		Name   string
		Calls  int
	}
	out, _, code = execute(t.Context(), strings.NewReader(""), "services", "--json", "--socket", sock, "name=sums")
	out, _, _ = strings.Cut(out, "\n")
	if code != 0 || json.Unmarshal([]byte(out), &line) != nil || line.Server != s.ID() || line.Attrs["name"] != "sums" || line.Name != "add" || line.Calls != 2 {
		t.Errorf("%d, %q", code, out)
	}
}
