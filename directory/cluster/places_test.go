// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

// What a member joins is HOST:PORT, a name of SRV records or a command.
func TestIsJoin(t *testing.T) {
	for join, want := range map[string]bool{
		"10.0.0.1:7946": true, "srv:_member._udp.example.org": true, "srv:members.": true, "exec:/bin/members -v": true, "exec: members": true,
		"10.0.0.1": false, "srv:": false, "srv:a b": false, "srv:a:7946": false, "srv:" + strings.Repeat("a", 300): false, "exec:": false, "exec: ": false, "exec": false,
	} {
		try.Equal(t, IsJoin(join), want, "%q", join)
	}
	m := Member{Bind: "10.0.0.1:7946", Join: []string{"srv:"}}
	try.Fails(m.Check())(t, ErrConfig, "checked")
	m.Join = []string{"srv:members", "exec:members", "a:1"}
	try.OK(t, m.Check())
}

// The targets of SRV records are joined, each at its own port. Records and names that lead nowhere
// are left out. The records are looked up again for each attempt, and an error says which.
//
// Promise (Clusters): `--join srv:NAME` joins the targets of SRV records, which are looked up again
// for each attempt.
func TestJoinByRecords(t *testing.T) { inMemory(t, testJoinByRecords) }

func testJoinByRecords(t *testing.T) {
	var hosts nameServer
	var mu sync.Mutex
	var records []*net.SRV // guarded by mu
	a, b := member(t, 1, nil), member(t, 2, nil)
	port := a.mux.Addr().Port
	const join = "srv:_member._udp.example"
	c := member(t, 3, func(c *Config) {
		hosts.use(c)
		c.Join = []string{join}
		c.service = func(_ context.Context, name string) ([]*net.SRV, error) {
			mu.Lock()
			defer mu.Unlock()
			if name != "_member._udp.example" || len(records) == 0 {
				return nil, errors.New("no such records")
			}
			return records, errors.New("one record is invalid")
		}
	})
	eventually.True(t, "the records were asked for in vain", func() bool { return c.Stats().Unresolved > 0 })
	if _, err := addressesOf(c, join); err == nil || !strings.Contains(err.Error(), "SRV records of _member._udp.example: no such records") {
		t.Errorf("looked up: %v", err)
	}
	hosts.set("one.example.", hostOf(a))
	hosts.set("two.example.", hostOf(b))
	set := func(targets ...string) {
		mu.Lock()
		defer mu.Unlock()
		records = nil
		for _, target := range targets {
			records = append(records, &net.SRV{Target: target, Port: uint16(port)})
		}
	}
	set(".", "gone.example.")
	try.Rejects(addressesOf(c, join))(t, "no target has an address")
	set("one.example.", ".", "gone.example.", "two.example.")
	got := try.Get(addressesOf(c, join))(t)
	want := []string{a.Addr(), b.Addr()}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the records stand for %q, want %q", got, want)
	}
	together(t, a, b, c)
	set(slices.Repeat([]string{"one.example."}, 10*mostAddresses)...)
	if places, err := c.places(t.Context(), join); err != nil || len(places) != mostAddresses {
		t.Errorf("%d of very many records are looked up, %v", len(places), err)
	}
}

// script returns a command that runs a script of the shell.
func script(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "members")
	try.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return "/bin/sh " + path
}

// What a command prints is joined. It is run again for each attempt. Whatever else it prints or
// does is an error that names the command. It ends with the member, and with all processes that it
// has started.
//
// Promise (Clusters): `--join exec:COMMAND` joins what a command prints, which runs again for each
// attempt and ends with the daemon.
func TestJoinByCommand(t *testing.T) {
	posix.Need(t, "shell")
	file := filepath.Join(t.TempDir(), "list")
	a := member(t, 1, nil)
	b := member(t, 2, func(c *Config) { c.Join = []string{"exec:" + script(t, "cat "+file)} })
	eventually.True(t, "the command has failed", func() bool { return b.Stats().Unresolved > 0 })
	try.OK(t, os.WriteFile(file, []byte(b.Addr()+"\n \t"+a.Addr()+"\n"), 0o600))
	put(t, a, 1, resource.Attrs{"type": "x"})
	together(t, a, b)

	for text, want := range map[string]string{
		"echo why >&2; exit 3":                   "exit status 3: why",
		`printf 'a:1 \033[2J'`:                   `it prints "\x1b[2J", which is not HOST:PORT`,
		"echo srv:x":                             "it prints srv:x, which is not HOST:PORT",
		"true":                                   "it prints no HOST:PORT",
		"kill -9 $$":                             "signal: killed",
		"head -c 70000 /dev/zero | tr '\\0' ' '": "it prints more than 65536 bytes",
		"head -c 70000 /dev/zero >&2; exit 1":    "exit status 1",
	} {
		command := script(t, text)
		at, err := printed(t.Context(), command)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), command) || len(err.Error()) > 2000 {
			t.Errorf("%s: %q, %v", text, at, err)
		}
	}
	try.Fails(printed(t.Context(), "/no/such/command"))(t, os.ErrNotExist, "run")
	at, err := printed(t.Context(), script(t, "echo '[::1]:7'; echo host:8"))
	if err != nil || !slices.Equal(at, []string{"[::1]:7", "host:8"}) {
		t.Errorf("%q, %v", at, err)
	}

	started := filepath.Join(t.TempDir(), "started")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := printed(ctx, script(t, fmt.Sprintf("sleep 1000 & echo $! >%s.new; mv %s.new %s; wait", started, started, started)))
		ended <- err
	}()
	eventually.True(t, "the command runs", func() bool { _, err := os.Stat(started); return err == nil })
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended by %v", err)
	}
	pid := strings.TrimSpace(string(try.Get(os.ReadFile(started))(t)))
	eventually.True(t, "the process that the command has started ends", func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}
