// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	lib "github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
)

// A shownRoute is a line of the output of rocl routes --json.
type shownRoute struct {
	Context lib.GID
	PID     int
	Error   string
	lib.Route
}

func shownRoutes(t *testing.T, sock string, args ...string) (all []shownRoute, code int) {
	t.Helper()
	out, code := run(t, "", rocl, append([]string{"routes", "--json", "--socket", sock}, args...)...)
	for line := range strings.Lines(out) {
		var r shownRoute
		try.OK(t, json.Unmarshal([]byte(line), &r), "%q", line)
		all = append(all, r)
	}
	return all, code
}

// rocl routes shows the links between processes as both ends see them: over shared memory if both
// ends have it, over TCP if one end has not, and over the transports of a rule.
//
// Promise (Transports): `rocl routes` shows the links as both ends have them, and names a context
// that does not answer. See also TestAskerThatNeverReceives.
func TestRoutes(t *testing.T) {
	sock := socket(t)
	start(t, "serving", dirserver, "--socket", sock)
	if all, code := shownRoutes(t, sock); len(all) > 0 || code != 1 {
		t.Errorf("of a node without contexts: %v, exit code %d", all, code)
	}
	peers := map[string]*child{}
	for _, name := range []string{"any", "tcp", "ruled"} {
		t.Setenv("ROCL_TEST_SHM", map[string]string{"any": "yes"}[name])
		peers[name] = peer(t, "echo", sock, name)
	}
	t.Setenv("ROCL_TEST_SHM", "")
	c := open(t, sock, lib.WithRules(lib.Rule{Match: lib.Match{"peer": "ruled"}, Over: []string{"tcp"}}))
	me := register(t, c, lib.Attrs{"me": "yes"})
	one, two, three := greet(t, me, "any", 5).Context, greet(t, me, "tcp", 5).Context, greet(t, me, "ruled", 5).Context
	all, code := shownRoutes(t, sock)
	try.Equal(t, code, 0, "exit code")
	type end struct {
		at, peer  lib.GID
		lane      string
		transport string
		sent      uint64
	}
	var ends []end
	for _, r := range all {
		ends = append(ends, end{r.Context, r.Peer, string(r.Lane), r.Transport, r.Sent})
		if r.Since.IsZero() || r.Remote == "" && r.Transport != "" || r.Error != "" || r.PID == 0 {
			t.Errorf("%+v", r)
		}
		if r.Sent > 0 && r.SentBytes != 5*r.Sent {
			t.Errorf("%d bytes of %d messages", r.SentBytes, r.Sent)
		}
	}
	for _, want := range []end{
		{c.ID(), one, "", "shm", 1}, {one, c.ID(), "", "shm", 1},
		{c.ID(), two, "", "tcp", 1}, {two, c.ID(), "", "tcp", 1},
		{c.ID(), three, "tcp", "tcp", 1}, {three, c.ID(), "tcp", "tcp", 0},
		{c.ID(), three, "", "tcp", 0}, {three, c.ID(), "", "tcp", 1},
	} {
		if !slices.Contains(ends, want) {
			t.Errorf("%+v is not shown", want)
		}
	}
	try.Equal(t, len(ends), 8, "routes: %+v", ends)
	out, _ := run(t, "", rocl, "routes", "--socket", sock)
	if !strings.Contains(out, "lane") && !strings.Contains(out, "LANE") || !strings.Contains(out, strconv.Itoa(peers["any"].Cmd.Process.Pid)) {
		t.Errorf("for people:\n%s", out)
	}
	// A stopped process is named, and does not delay the output for the rest.
	peers["ruled"].signal(t, posix.SIGSTOP)
	for limit := 300 * time.Millisecond; limit < eventually.Timeout; limit *= 2 { // until the others answer in time
		if all, code = shownRoutes(t, sock, "--timeout", limit.String()); len(all) == 7 {
			break
		}
	}
	if i := slices.IndexFunc(all, func(r shownRoute) bool { return r.Error != "" }); code != 3 || i < 0 || all[i].Context != three || len(all) != 7 {
		t.Errorf("exit code %d, %+v", code, all)
	}
}

// greet sends a message to the resource registered as {peer=name} and waits for its echo.
func greet(t *testing.T, me *lib.Resource, name string, size int) lib.Found {
	t.Helper()
	ctx := eventually.Context(t)
	f := try.Get(me.Context().Find(ctx, lib.Match{"peer": name}))(t)
	p := bytes.Repeat([]byte("x"), size)
	try.OK(t, me.SendBytes(ctx, f.ID, 1, p))
	m, err := me.Recv(ctx, lib.From(f.ID))
	if err != nil || !bytes.Equal(m.Bytes(), p) {
		t.Fatal(m, err)
	}
	m.Release()
	return f
}

// Processes of two users of one machine, each with a node of its own, exchange messages over TCP.
// One user's memory is not shared with another's.
func TestOtherUserOverTCP(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	const nobody = 65534
	mine, theirs := socket(t), socket(t)
	dir := filepath.Dir(theirs)
	try.OK(t, errors.Join(os.Chown(dir, nobody, nobody), os.Chmod(filepath.Dir(rocl), 0o711)))
	as := func(bin string, args ...string) *exec.Cmd {
		cmd := exec.Command(bin, args...)
		cmd.Dir, cmd.Env = dir, []string{"HOME=" + dir, "XDG_RUNTIME_DIR=" + dir, "XDG_STATE_HOME=" + dir}
		posix.As(cmd, nobody, nobody)
		return cmd
	}
	first := freePort(t)
	start(t, "serving", dirserver, "--socket", mine, "--bind", first, "--cluster", "test")
	startCommand(t, "serving", as(dirserver, "--socket", theirs, "--bind", freePort(t), "--join", first, "--cluster", "test"))
	startCommand(t, "-", as(rocl, "recv", "--socket", theirs, "name=theirs"))
	c := open(t, mine)
	me := register(t, c, nil)
	ctx := eventually.Context(t)
	f := awaitFound(t, c, lib.Match{"name": "theirs"})
	for _, size := range []int{10, 100_000} {
		try.OK(t, me.SendBytes(ctx, f.ID, 1, make([]byte, size)))
	}
	eventually.True(t, "all is acknowledged", func() bool { s := c.Stats(); return s.Sent["tcp"] == 2 && len(s.Sent) == 1 })
	if r := c.Routes(); len(r) != 1 || r[0].Transport != "tcp" {
		t.Errorf("%+v", r)
	}
}

// A program that is started by a process with connections over shared memory inherits none of its
// descriptors. The peer sees the death of that process although the program lives.
//
// Promise (Shared memory): A program that a context's process starts inherits none of the context's
// descriptors.
func TestNothingIsInherited(t *testing.T) {
	sock := socket(t)
	start(t, "serving", dirserver, "--socket", sock)
	t.Setenv("ROCL_TEST_SHM", "yes")
	peer(t, "echo", sock, "other")
	c := open(t, sock)
	me := register(t, c, nil)
	greet(t, me, "other", 100_000)
	out, err := exec.Command("ls", "-l", "/proc/self/fd").Output()
	if err != nil {
		t.Skip(err)
	}
	for _, what := range []string{"memfd:", "eventfd", "eventpoll", "socket:"} {
		if strings.Contains(string(out), what) {
			t.Errorf("a child has %s:\n%s", what, out)
		}
	}
	p := peer(t, "parent", sock, "parent") // it starts a child process that stays
	greet(t, me, "parent", 100_000)
	links := c.Stats().Links
	p.Kill()
	eventually.True(t, "the death is seen", func() bool { return c.Stats().Links == links-1 })
}

// On one processor, where no goroutine can poll while another works, shared memory works too, in
// bulk and there and back.
func TestOneProcessor(t *testing.T) {
	sock := socket(t)
	start(t, "serving", dirserver, "--socket", sock)
	t.Setenv("ROCL_TEST_SHM", "yes")
	t.Setenv("GOMAXPROCS", "1")
	peer(t, "echo", sock, "slow")
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c := open(t, sock)
	me := register(t, c, nil)
	for i := range 300 {
		greet(t, me, "slow", []int{1, 1000, 5000, 100_000}[i%4])
	}
	if n := c.Stats().Sent["shm"]; n != 300 {
		t.Errorf("%d over shared memory", n)
	}
}
