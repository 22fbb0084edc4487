// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// patiently runs a command that must end by itself, although nothing answers it.
func patiently(t *testing.T, env []string, bin string, args ...string) (out, errOut string, code int) {
	t.Helper()
	cmd := exec.Command(bin, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin = strings.NewReader("hello\n")
	return runCommand(t, 40*time.Second, cmd)
}

// Promise (Commands): A directory that is stopped or never answers does not hang a command: it ends
// after `--timeout` with exit code 4. See also TestStoppedWhileAsked.
func TestSilentDirectory(t *testing.T) {
	stopped := socket(t)
	d := start(t, `"serving"`, dirserver, "--socket", stopped)
	d.signal(t, posix.SIGSTOP)
	silent := socket(t)
	l := try.Get(net.Listen("unix", silent))(t) // the kernel accepts connections; nothing reads from them
	t.Cleanup(func() { l.Close() })
	for _, args := range []string{"find", "find --cluster a=b", "nodes", "routes", "search-trace a=b", "send a=b", "send --wait 100ms a=b", "register a=b", "recv a=b", "watch a=b", "demo ."} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			for _, sock := range []string{stopped, silent} {
				words := append(strings.Fields(args), "--socket", sock)
				out, errOut, code := patiently(t, nil, rocl, append(words, "--timeout", "200ms")...)
				if code != 4 || out != "" || !strings.Contains(errOut, "did not answer within 200ms") || !strings.Contains(errOut, sock) || strings.Count(errOut, sock) != 1 {
					t.Errorf("rocl %v: exit code %d, %q, %q", words, code, out, errOut)
				}
				_, errOut, code = patiently(t, []string{"ROCL_TIMEOUT=150ms"}, rocl, append(words, "--json")...)
				var e struct {
					Error string
					Code  int
				}
				if err := json.Unmarshal([]byte(errOut), &e); err != nil || code != 4 || e.Code != 4 || !strings.Contains(e.Error, "150ms") {
					t.Errorf("rocl %v --json: exit code %d, %q", words, code, errOut)
				}
			}
		})
	}
}

// A directory that is stopped after a command has joined it does not hang the command's questions.
func TestStoppedWhileAsked(t *testing.T) {
	sock := socket(t)
	d := start(t, `"serving"`, dirserver, "--socket", sock)
	in, w, err := os.Pipe()
	try.OK(t, err)
	defer w.Close()
	r := start(t, "receiving", rocl, "recv", "--socket", sock, "name=there")
	cmd := exec.Command(rocl, "send", "--socket", sock, "--timeout", "60s", "-v", "name=there")
	cmd.Stdin = in
	s := startCommand(t, "sending to", cmd)
	in.Close()
	try.Get(w.WriteString("hello\n"))(t)
	r.until(t, "hello")
	d.signal(t, posix.SIGSTOP)
	try.Get(w.WriteString("again\n"))(t)
	w.Close()
	r.until(t, "again")
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	select {
	case err := <-ended: // all output has arrived
		try.Check(t, err)
	case <-time.After(eventually.Timeout):
		t.Error("send hangs")
	}
}

// send --wait waits for a directory as it waits for a resource.
func TestSendWaitsForDirectory(t *testing.T) {
	sock := socket(t)
	cmd := exec.Command(rocl, "send", "--socket", sock, "--wait", "30s", "-v", "name=there")
	cmd.Stdin = strings.NewReader("hello\n")
	s := launch(t, cmd)
	if first := <-s.Lines; !strings.Contains(first, "waiting for a directory") {
		t.Errorf("it said %q first", first)
	}
	r := start(t, "receiving", rocl, "recv", "--socket", sock, "--count", "1", "name=there")
	r.until(t, "hello")
	try.Check(t, s.Wait())
	if _, errOut, code := patiently(t, nil, rocl, "send", "--socket", socket(t), "--wait", "100ms", "name=there"); code != 2 || !strings.Contains(errOut, "no directory") {
		t.Errorf("without a directory: exit code %d, %q", code, errOut)
	}
}

// On a terminal a command prints that it found nothing. To a pipe it writes nothing.
func TestNothingOnATerminal(t *testing.T) {
	sock := socket(t)
	start(t, `"serving"`, dirserver, "--socket", sock)
	for args, says := range map[string]string{"find a=b": "no resource matches", "nodes a=b": "no node has these labels", "routes": "no context of this node has a link"} {
		words := append(strings.Fields(args), "--socket", sock)
		if out, errOut, code := patiently(t, nil, rocl, words...); code != 1 || out+errOut != "" {
			t.Errorf("rocl %s, to a pipe: exit code %d, %q, %q", args, code, out, errOut)
		}
		terminal := newTerminal(t)
		cmd := exec.Command(rocl, words...)
		cmd.Stdout = terminal
		if _, errOut, code := runCommand(t, 40*time.Second, cmd); code != 1 || errOut != "rocl: "+says+"\n" {
			t.Errorf("rocl %s, on a terminal: exit code %d, %q", args, code, errOut)
		}
	}
}
