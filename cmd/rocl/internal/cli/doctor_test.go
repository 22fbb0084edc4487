// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/subprocess"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// doctor runs rocl doctor --json, and returns its findings by check, and the exit code.
func doctor(t *testing.T, sock string, args ...string) (found map[string]finding, code int) {
	t.Helper()
	out, errOut, code := execute(t.Context(), nil, append([]string{"doctor", "--json", "--socket", sock}, args...)...)
	if errOut != "" {
		t.Error(errOut)
	}
	found = map[string]finding{}
	seen := map[string]bool{}
	for line := range strings.Lines(out) {
		var f finding
		try.OK(t, json.Unmarshal([]byte(line), &f))
		seen[f.Check] = true
		if f.State == "found" {
			found[f.Check] = f
		}
	}
	for _, c := range checks {
		if !seen[c.name] {
			t.Errorf("no line about %s", c.name)
		}
	}
	return found, code
}

// one checks that doctor finds one thing, by one check.
func one(t *testing.T, sock, name, says string, args ...string) {
	t.Helper()
	found, code := doctor(t, sock, args...)
	i := slices.IndexFunc(checks, func(c check) bool { return c.name == name })
	f, ok := found[name]
	if !ok || len(found) != 1 || code != checks[i].code || !strings.Contains(f.Text, says) || f.Remedy == "" {
		t.Errorf("%d, %+v, want %d for %s with %q", code, found, checks[i].code, name, says)
	}
}

// be starts rocl in a process of its own, and waits until it has printed a line.
func be(t *testing.T, args ...string) *subprocess.Process {
	t.Helper()
	cmd := exec.Command(try.Get(os.Executable())(t), args...)
	cmd.Env = append(os.Environ(), "BE_ROCL=1")
	p := try.Get(subprocess.Start(cmd))(t)
	t.Cleanup(p.Kill)
	try.Get(p.Line(eventually.Context(t)))(t)
	return p
}

// A healthy node has no finding.
//
// Promise (Commands): `rocl doctor` finds nothing at a healthy node, and for each thing that is
// wrong it has an exit code, a cause and a remedy. It changes nothing, and its time is bounded.
func TestDoctorHealthy(t *testing.T) {
	sock := node(t)
	for range 2 {
		open(t, sock)
	}
	if found, code := doctor(t, sock); code != 0 || len(found) > 0 {
		t.Errorf("%d, %+v", code, found)
	}
	out, errOut, code := execute(t.Context(), nil, "doctor", "--socket", sock)
	if code != 0 || errOut != "" || strings.Count(out, "\n") < len(checks) || strings.Contains(out, "FOUND") {
		t.Errorf("%d, %q, %q", code, out, errOut)
	}
}

// Each finding at one node, as it is provoked, with its exit code. Nothing is changed: at a path
// without a directory there is none afterwards.
func TestDoctorFindings(t *testing.T) {
	t.Run("no directory", func(t *testing.T) {
		sock := freeaddr.Socket(t)
		one(t, sock, "directory", "no socket at "+sock)
		if _, err := os.Lstat(sock); err == nil {
			t.Error("there is a socket now")
		}
	})
	t.Run("a socket that was left", func(t *testing.T) {
		sock := freeaddr.Socket(t)
		ln := try.Get(net.ListenUnix("unix", &net.UnixAddr{Name: sock, Net: "unix"}))(t)
		ln.SetUnlinkOnClose(false)
		try.OK(t, os.Chmod(sock, 0o600), ln.Close())
		one(t, sock, "directory", "was killed")
	})
	t.Run("something else", func(t *testing.T) {
		sock := freeaddr.Socket(t)
		try.OK(t, os.WriteFile(sock, nil, 0o600))
		found, code := doctor(t, sock)
		if code != 10 || !strings.Contains(found["files"].Text, "is not a socket") {
			t.Errorf("%d, %+v", code, found)
		}
	})
	t.Run("permissions", func(t *testing.T) {
		sock := node(t)
		try.OK(t, os.Chmod(sock+".node", 0o644))
		one(t, sock, "files", "other users have rights to "+sock+".node")
	})
	t.Run("a process that is stopped", func(t *testing.T) {
		sock := freeaddr.Socket(t)
		p := be(t, "register", "name=here", "--socket", sock)
		p.Signal(posix.SIGSTOP)
		eventually.True(t, "it stops", func() bool { return strings.Contains(process(p.Cmd.Process.Pid), "stopped") })
		one(t, sock, "silence", fmt.Sprintf("process %d", p.Cmd.Process.Pid), "--timeout", "200ms")
		p.Signal(posix.SIGCONT)
		if found, code := doctor(t, sock); code != 0 {
			t.Errorf("after it goes on: %d, %+v", code, found)
		}
	})
	t.Run("a lock that serves nothing", func(t *testing.T) {
		sock := freeaddr.Socket(t)
		f := try.Get(os.OpenFile(sock+".lock", os.O_CREATE|os.O_RDWR, 0o600))(t)
		defer f.Close()
		try.OK(t, posix.TryLock(f, false))
		found, code := doctor(t, sock)
		if code != 10 || len(found) != 2 || !strings.Contains(found["lock"].Text, fmt.Sprintf("process %d", os.Getpid())) {
			t.Errorf("%d, %+v", code, found)
		}
	})
	t.Run("a program that is stopped, and one that was killed", func(t *testing.T) {
		sock := node(t)
		p := be(t, "register", "name=here", "--socket", sock)
		pid := p.Cmd.Process.Pid
		p.Signal(posix.SIGSTOP)
		eventually.True(t, "it stops", func() bool { return strings.Contains(process(pid), "stopped") })
		one(t, sock, "contexts", fmt.Sprintf("%s does not answer", process(pid)), "--timeout", "2s")
		p.Kill()
		eventually.True(t, "its end is seen", func() bool {
			found, code := doctor(t, sock)
			f := found["programs"]
			return code == f.Code && len(found) == 1 && strings.Contains(f.Text, fmt.Sprintf("process %d (", pid)) && strings.Contains(f.Text, "with 1 resource ended") && f.Remedy != ""
		})
	})
	t.Run("versions", func(t *testing.T) {
		s, sock := labelled(t, nil)
		l := new(resource.List)
		try.OK(t, l.AddString(rocl.AttrKind, "node"), l.AddString(rocl.AttrHost, "old\x1b[2J"), l.AddString(rocl.AttrVersion, "0.0.1"))
		other := directory.NodeResource(s.Node() + 1)
		try.OK(t, s.Database().Offer(other, other, 1, l))
		one(t, sock, "versions", "has version 0.0.1")
		if out, _, _ := execute(t.Context(), nil, "doctor", "--socket", sock); strings.Contains(out, "\x1b") || !strings.Contains(out, `old\x1b[2J`) {
			t.Errorf("%q", out)
		}
	})
}

// Findings that cannot be provoked on one machine: clocks that differ, two members at one address,
// and a loopback address among others. The exam is made up.
func TestDoctorExams(t *testing.T) {
	for name, c := range map[string]struct {
		member cluster.Status
		code   int
		says   string
	}{
		"healthy": {cluster.Status{Addr: "10.0.0.1:7946", Members: []cluster.MemberStatus{{Node: 2, Addr: "10.0.0.2:7946", State: "alive", Clock: time.Second}}}, 0, ""},
		"clock": {cluster.Status{Addr: "10.0.0.1:7946", Members: []cluster.MemberStatus{
			{Node: 2, Host: "bert", Addr: "10.0.0.2:7946", State: "alive", Clock: -90 * time.Minute}, {Node: 3, Addr: "10.0.0.3:7946", State: "away", Clock: 5 * time.Hour}}}, 23, "1h30m0s from that of bert"},
		"address": {cluster.Status{Addr: "172.17.0.1:7946", Members: []cluster.MemberStatus{{Node: 2, Addr: "172.17.0.1:7946", State: "alive"}}}, 16, "two members tell the address 172.17.0.1:7946"},
		"loopback": {cluster.Status{Addr: "127.0.0.1:7946", Members: []cluster.MemberStatus{{Node: 2, Addr: "10.0.0.2:7946", State: "alive"}}}, 16,
			"a loopback address"},
		"moved":     {cluster.Status{Addr: "10.0.0.1:7946", Contradiction: "node 2 tells this node's own address"}, 16, "own address"},
		"twin":      {cluster.Status{Addr: "10.0.0.1:7946", Contradiction: "node 2 is in two places, 10.0.0.2:7946 10.0.0.3:7946"}, 17, "two places"},
		"no member": {cluster.Status{Error: "no address"}, 14, "no address"},
		"strange":   {cluster.Status{Addr: "10.0.0.1:7946", Strange: []string{"10.0.0.9:7946"}}, 24, "10.0.0.9:7946"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &exam{member: &c.member, status: directory.Status{Node: 1}}
			all, code := diagnose(e)
			i := slices.IndexFunc(all, func(f finding) bool { return f.State == "found" })
			if code != c.code || i >= 0 && !strings.Contains(all[i].Text, c.says) || (i >= 0) != (code != 0) {
				t.Errorf("%d, %+v", code, all)
			}
		})
	}
}

// What a search tells of the network: silence of nodes to small and to large questions, and to a
// small one that is put again after a large one without an answer. What is not learned is unknown.
func TestDoctorNetwork(t *testing.T) {
	answers, silent := directory.Trace{Covered: 2}, directory.Trace{Covered: 1, Steps: []directory.TraceStep{{Node: 2, Outcome: "silent"}}}
	for name, c := range map[string]struct {
		small, large, again directory.Trace
		silence             time.Duration
		members             int
		udp, mtu            string // states
	}{
		"healthy":                  {answers, answers, directory.Trace{}, 0, 1, "ok", "ok"},
		"silent":                   {silent, silent, silent, 0, 1, "found", "unknown"},
		"large ones are lost":      {answers, silent, answers, 0, 1, "ok", "found"},
		"silent from the large on": {answers, silent, silent, 0, 1, "ok", "unknown"},
		"probes are lost":          {answers, answers, directory.Trace{}, time.Minute, 1, "found", "ok"},
		"no other member":          {directory.Trace{Covered: 1}, directory.Trace{Covered: 1}, directory.Trace{}, 0, 0, "ok", "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &exam{member: &cluster.Status{Addr: "10.0.0.1:7946"}, small: c.small, large: c.large, again: c.again}
			for i := range c.members {
				e.member.Members = append(e.member.Members, cluster.MemberStatus{Node: resource.NodeID(2 + i), Addr: "10.0.0.2:7946", State: "alive", Silence: c.silence})
			}
			all, _ := diagnose(e)
			states := map[string]string{}
			for _, f := range all {
				states[f.Check] += f.State
			}
			if states["udp"] != c.udp || states["mtu"] != c.mtu {
				t.Errorf("%+v", all)
			}
		})
	}
}

// A program that was lost long ago is not found.
func TestDoctorLost(t *testing.T) {
	for ago, want := range map[time.Duration]int{time.Minute: 26, time.Hour: 0} {
		e := &exam{status: directory.Status{Lost: []directory.LostProgram{{Program: "shard\n", PID: 7, Resources: 3, Ago: ago}}}}
		if all, code := diagnose(e); code != want {
			t.Errorf("%v ago: %d, %+v", ago, code, all)
		}
	}
}

// Codes are in the order of the checks, are unique, and are none of the other commands.
func TestDoctorCodes(t *testing.T) {
	for i, c := range checks {
		if c.code != 10+i || c.code >= exitUsage || c.what == "" {
			t.Errorf("%+v", c)
		}
	}
	out, _, _ := execute(t.Context(), nil, "doctor", "--help")
	for _, c := range checks {
		if !strings.Contains(out, fmt.Sprintf("%d  %s", c.code, c.name)) {
			t.Errorf("--help does not tell of %s", c.name)
		}
	}
}

// The levels of the directory's log are printed and set, and an error of the directory's process is
// printed.
func TestLogLevel(t *testing.T) {
	sock := freeaddr.Socket(t)
	s := try.Get(directory.Listen(sock, directory.WithControl(func(_ context.Context, do string, args []string) (any, error) {
		switch {
		case do == "log":
			return "one\x1b\ntwo\n", nil
		case do != "log level" || len(args) > 1:
			return nil, fmt.Errorf("no %s %q", do, args)
		}
		return map[string]string{"*": "info", "b\n": strings.Join(args, "")}, nil
	})))(t)
	defer s.Close()
	for line, want := range map[string]result{
		"log level":                {"*=info\n\"b\\n\"=\n", "", 0},
		"log level cluster=debug":  {"*=info\n\"b\\n\"=cluster=debug\n", "", 0},
		"log level debug --json":   {`{"*":"info","b\n":"debug"}` + "\n", "", 0},
		"log level a=info b=debug": {"", "rocl: no log level [\"a=info\" \"b=debug\"]\n", 1},
		"log":                      {"one\\x1b\ntwo\n", "", 0},
	} {
		out, errOut, code := execute(t.Context(), nil, append(strings.Fields(line), "--socket", sock)...)
		if got := (result{out, errOut, code}); got != want {
			t.Errorf("%s: %+v, want %+v", line, got, want)
		}
	}
	if _, errOut, code := execute(t.Context(), nil, "log", "level", "--socket", node(t)); code != 1 || !strings.Contains(errOut, "no dirserver") {
		t.Errorf("%d, %q", code, errOut)
	}
}
