// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/os/secretfile"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/resource"
)

func TestReadKeys(t *testing.T) {
	dir := t.TempDir()
	write := func(content string, mode os.FileMode) string {
		f, err := os.CreateTemp(dir, "key")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(content); err != nil {
			t.Fatal(err)
		}
		if err := f.Chmod(mode); err != nil {
			t.Fatal(err)
		}
		return f.Name()
	}
	good := "0123456789abcdef"
	for name, c := range map[string]struct {
		file string
		want error // nil: the key is read
		says string
	}{
		"good":               {write(good, 0o600), nil, ""},
		"space around it":    {write("\n "+good+" \n", 0o400), nil, ""},
		"too short":          {write(good[1:]+"\n", 0o600), ErrConfig, "15 bytes"},
		"empty":              {write("", 0o600), ErrConfig, "0 keys"},
		"too long":           {write(strings.Repeat("x", maxKey+1), 0o600), ErrConfig, "at most"},
		"for everybody":      {write(good, 0o604), secretfile.ErrInsecure, "chmod 600"},
		"missing":            {filepath.Join(dir, "no"), fs.ErrNotExist, "key"},
		"a directory":        {t.TempDir(), ErrConfig, "key"},
		"missing is of ours": {filepath.Join(dir, "no"), ErrConfig, "key"},
	} {
		keys, err := ReadKeys(c.file)
		if c.want == nil && (err != nil || len(keys) != 1 || string(keys[0]) != good) || !errors.Is(err, c.want) {
			t.Errorf("%s: %q, %v", name, keys, err)
		}
		if err != nil && (!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), good[1:])) {
			t.Errorf("%s: %v does not say %q", name, err, c.says)
		}
	}
	// Files with several keys, and files that are not text.
	other := strings.Repeat("k", 20)
	for content, want := range map[string][]string{
		good + "\n" + other + "\n":                            {good, other},
		"# the new one\r\n" + other + "\r\n\n # old\n" + good: {other, good},
		"\x00\x01" + good + "\n" + other:                      {"\x00\x01" + good + "\n" + other},
		"\xff#\n" + good:                                      {"\xff#\n" + good},
		good + "\n" + good[1:]:                                nil,
		good + "\n" + good:                                    nil,
		"# nothing but a remark":                              nil,
		strings.Repeat(good+"x\n", 1) + many(mostKeys):        nil,
	} {
		keys, err := ReadKeys(write(content, 0o600))
		var got []string
		for _, k := range keys {
			got = append(got, string(k))
		}
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%q: %q, %v", content, got, err)
		}
	}
}

// many returns n keys, each on a line.
func many(n int) (s string) {
	for i := range n {
		s += fmt.Sprintf("key number %016d\n", i)
	}
	return s
}

func TestMemberCheck(t *testing.T) {
	for _, m := range []Member{{}, {Bind: "0.0.0.0:7946"}, {Bind: "[::1]:1", Join: []string{"a:1", "b:2"}, KeyFile: "k"}, {Bind: "a:1", KeyFile: "k", Certificates: directory.CertificateFiles{Cert: "c", Key: "k", CA: "a"}},
		{Bind: "a:1", Group: "239.1.2.3:7947", Strategy: strategy.Broadcast, Poll: time.Millisecond}, {Bind: "a:1", Group: "10.0.0.255:7947", Strategy: strategy.Tree}, {Bind: "a:1", Group: "[ff02::1]:7", Strategy: strategy.Unicast}} {
		if err := m.Check(); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
	for _, m := range []Member{{Join: []string{"a:1"}}, {KeyFile: "k"}, {Bind: "10.0.0.7"}, {Bind: ":7946"}, {Bind: "x:"},
		{Bind: "x:65536"}, {Bind: "x:name"}, {Bind: "a:1", Join: []string{"b:name"}}, {Bind: "a:1", Join: []string{"b:65536"}},
		{Bind: "10.0.0.7:1", Certificates: directory.CertificateFiles{Cert: "c", Key: "k", CA: "a"}}, {Bind: "10.0.0.7:1", KeyFile: "k", Certificates: directory.CertificateFiles{Cert: "c", Key: "k"}},
		{Group: "239.1.2.3:1"}, {Bind: "a:1", Group: "name:1"}, {Bind: "a:1", Group: "239.1.2.3:0"}, {Bind: "a:1", Group: "0.0.0.0:1"}, {Bind: "a:1", Group: "[::1]:1"},
		{Bind: "a:1", Strategy: strategy.Broadcast}, {Bind: "a:1", Strategy: 17}, {Bind: "a:1", Poll: -1}, {Bind: "a:1", Poll: time.Hour}} {
		if err := m.Check(); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

func TestHost(t *testing.T) {
	for at, want := range map[string]string{
		"10.0.0.7:1": "10.0.0.7", "[fd00::7]:1": "fd00::7", "127.0.0.1:1": "127.0.0.1",
		"0.0.0.0:1": "", "[::]:1": "", "name:1": "", "": "", "10.0.0.7": "",
	} {
		if got := host(at); got != want {
			t.Errorf("host of %q is %q", at, got)
		}
	}
}

// freePort returns an address of the loopback interface that is not in use.
func freePort(t *testing.T) string {
	t.Helper()
	addr, err := freeaddr.Loopback()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func sock(t *testing.T) string {
	dir, err := os.MkdirTemp("", "rc-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "d.sock")
}

var errHasty = errors.New("has no time")

// An address in use is an error for the process that serves first. It waits for the address no
// longer than its context lasts. A process that takes over serves anyway, denies nothing for
// certain, and becomes a member when the address is free.
//
// Promise (Clusters): `Open` reports a cluster address in use, a key that others can read, and
// another cluster's name. See also TestMemberFails.
func TestAddressInUse(t *testing.T) {
	ctx := eventually.Context(t)
	log, path := slog.New(slog.DiscardHandler), sock(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	at := taken.Addr().String()
	ms := NewMembership("test", Member{Bind: at}, log)
	if _, err := directory.JoinNode(ctx, path, log, []directory.Option{ms.Option()}); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Fatalf("opened: %v", err)
	}
	brief, stop := context.WithCancelCause(ctx)
	hasty := directory.WithMembership(func(s *directory.Server, late bool) (func(bool), error) {
		stop(errHasty)
		return ms.begin(s, late)
	})
	if _, err := directory.JoinNode(brief, path, log, []directory.Option{hasty}); !errors.Is(err, errHasty) {
		t.Fatalf("with a context that ends meanwhile: %v", err)
	}
	first, err := directory.JoinNode(ctx, path, log, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := directory.JoinNode(ctx, path, log, []directory.Option{ms.Option()}, directory.AsMember())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	id := second.Self().WithSerial(1)
	if _, err := second.Register(ctx, id, pattern(resource.Attrs{"type": "mine"})); err != nil {
		t.Fatal(err)
	}
	first.Close()
	if a, err := second.Find(ctx, pattern(resource.Match{"type": "mine"})); err != nil || a.ID != id {
		t.Fatalf("the node is not served: %v", err)
	}
	if _, err := second.Find(ctx, pattern(resource.Match{"type": "other"})); !errors.Is(err, directory.ErrPartial) {
		t.Fatalf("no member and certain: %v", err)
	}
	if ms.Cluster() != nil {
		t.Fatal("a member at an address of somebody else's")
	}
	taken.Close()
	eventually.True(t, "a member", func() bool {
		_, err := second.Find(ctx, pattern(resource.Match{"type": "other"}))
		return errors.Is(err, directory.ErrNotFound)
	})
	if c := ms.Cluster(); c == nil || c.Addr() != at {
		t.Errorf("member %v", c)
	}
	if terms := second.Terms(); !terms.Member || terms.Cluster != "test" || terms.Host != "127.0.0.1" || terms.Sealed {
		t.Errorf("terms %+v", terms)
	}
}

// A member that hands over stays a member for the other ones: they ask its successor. The successor
// does not get answers to questions of its predecessor.
func TestHandOver(t *testing.T) {
	at := freePort(t)
	mine := func(c *Config) { c.Bind = at }
	a := member(t, 1, nil)
	b := member(t, 2, mine, a)
	together(t, a, b)
	ctx := eventually.Context(t)
	put(t, a, 1, resource.Attrs{"type": "x"})
	for range 20 {
		if _, err := b.Find(ctx, pattern(resource.Match{"type": "x"})); err != nil {
			t.Fatal(err)
		}
	}
	away := make(chan struct{})
	watched, done := make(chan struct{}), make(chan struct{})
	go func() { // as often as possible
		defer close(done)
		for {
			if len(a.Members()) != 2 {
				close(away)
				return
			}
			select {
			case <-watched:
				return
			case <-time.After(100 * time.Microsecond):
			}
		}
	}()
	for i := range 3 {
		if err := b.HandOver(); err != nil {
			t.Fatal(err)
		}
		b = member(t, 2, mine, a)
		id := put(t, b, uint32(i+1), resource.Attrs{"type": "y"})
		together(t, a, b)
		for range 20 { // with numbers that the other members may remember
			if _, err := b.Find(ctx, pattern(resource.Match{"type": "nothing"})); !errors.Is(err, directory.ErrNotFound) {
				t.Fatalf("asked for nothing: %v", err)
			}
		}
		if r, err := a.Find(ctx, pattern(resource.Match{"type": "y"})); err != nil || r.ID != id {
			t.Fatalf("found %v, want %v: %v", r.ID, id, err)
		}
		eventually.True(t, "the successor has a summary", func() bool {
			b.summaries.mu.Lock()
			defer b.summaries.mu.Unlock()
			return b.summaries.filters.Of(1) != nil
		})
	}
	close(watched)
	<-done
	select {
	case <-away:
		t.Error("the member was away")
	default:
	}
}

// A member that has just begun to serve its node denies nothing for certain. It answers for what it
// has.
func TestNotSure(t *testing.T) { inMemory(t, testNotSure) }

func testNotSure(t *testing.T) {
	var sure atomic.Bool
	a := member(t, 1, nil)
	b := member(t, 2, func(c *Config) { c.Sure = sure.Load }, a)
	together(t, a, b)
	ctx := eventually.Context(t)
	id := put(t, b, 1, resource.Attrs{"type": "there"})
	if r, err := a.Find(ctx, pattern(resource.Match{"type": "there"})); err != nil || r.ID != id {
		t.Fatalf("found %v: %v", r.ID, err)
	}
	if _, err := a.Find(ctx, pattern(resource.Match{"type": "other"})); !errors.Is(err, directory.ErrPartial) || !strings.Contains(err.Error(), "[000000000002]") {
		t.Errorf("by attributes: %v", err)
	}
	if _, err := a.Lookup(ctx, id.WithSerial(9), pattern(nil)); !errors.Is(err, directory.ErrPartial) {
		t.Errorf("by identifier: %v", err)
	}
	var cov directory.Coverage
	for _, err := range a.All(ctx, pattern(resource.Match{"type": "other"}), &cov) {
		t.Errorf("all: %v", err)
	}
	if err := cov.Err(); !errors.Is(err, directory.ErrPartial) {
		t.Errorf("all: %v", err)
	}
	sure.Store(true)
	if _, err := a.Find(ctx, pattern(resource.Match{"type": "other"})); !errors.Is(err, directory.ErrNotFound) {
		t.Errorf("later: %v", err)
	}
}

// Keys that are read again are used in the cluster and for the links. A file that cannot be used
// changes nothing.
func TestRekey(t *testing.T) {
	dir, err := os.MkdirTemp("", "ms-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file, sock := filepath.Join(dir, "keys"), filepath.Join(dir, "sock")
	write := func(keys string, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.WriteFile(file, []byte(keys), mode), os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
	}
	first, second := "the first key of all\n", "the second key of all\n"
	write(first, 0o600)
	ms := NewMembership("test", Member{Bind: "127.0.0.1:0", KeyFile: file}, slog.New(slog.DiscardHandler))
	if n, err := ms.Rekey(); n != 1 || err != nil {
		t.Errorf("before it began: %d keys, %v", n, err)
	}
	s, err := directory.Listen(sock, ms.Option())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := func(n int, seals string) {
		t.Helper()
		c, err := directory.Join(t.Context(), directory.DialSocket(sock))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		link := LinkKey("test", []byte(strings.TrimSpace(seals)))
		if got := c.Terms().Keys; len(got) != n || string(got[0]) != string(link[:]) {
			t.Errorf("the contexts have %d keys", len(got))
		}
		ring := ms.Cluster().gossip.ring
		if ms.Cluster().Stats().Keys != n || string(ring.GetPrimaryKey()) != string(gossipKey([]byte(strings.TrimSpace(seals)))) {
			t.Errorf("the member has %d keys", len(ring.GetKeys()))
		}
	}
	want(1, first)
	for _, step := range []struct {
		keys  string
		mode  os.FileMode
		n     int // 0: an error
		now   int
		seals string
	}{
		{first + second, 0o600, 2, 2, first},
		{"short\n", 0o600, 0, 2, first},
		{second, 0o644, 0, 2, first},
		{second + first, 0o600, 2, 2, second},
		{second, 0o600, 1, 1, second},
	} {
		write(step.keys, step.mode)
		if n, err := ms.Rekey(); n != step.n || (err == nil) != (step.n > 0) {
			t.Errorf("%q: %d keys, %v", step.keys, n, err)
		}
		want(step.now, step.seals)
	}
}

// The file of keys is followed. A change is put to use. A change that cannot be used is logged and
// changes nothing.
func TestKeysFollowed(t *testing.T) {
	if testing.Short() {
		t.Skip("it is looked at each second")
	}
	path := sock(t)
	file := filepath.Join(filepath.Dir(path), "keys")
	write := func(keys string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(keys), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const first, second = "the first key of all\n", "the second key of all\n"
	write(first)
	var log lines
	s, err := directory.Listen(path, NewMembership("test", Member{Bind: "127.0.0.1:0", KeyFile: file}, slog.New(slog.NewTextHandler(&log, nil))).Option())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := directory.Join(t.Context(), directory.DialSocket(path))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, step := range []struct {
		keys string
		want int
		says string
	}{
		{first + second, 2, "keys have changed"},
		{second + "short\n", 2, "keys stay as they were"},
		{second, 1, "keys have changed"},
	} {
		log.forget()
		write(step.keys)
		eventually.True(t, step.says, func() bool { return strings.Contains(log.String(), step.says) })
		eventually.True(t, "the contexts are told", func() bool { return len(c.Terms().Keys) == step.want })
	}
	if link := LinkKey("test", []byte(strings.TrimSpace(second))); string(c.Terms().Keys[0]) != string(link[:]) {
		t.Error("another key")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "it is missed", func() bool { return strings.Contains(log.String(), "no such file") })
}

// lines holds what was logged.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

// Promise (Clusters): The environment variables mean to programs what they mean to `dirserver`. See
// also TestMemberFails.
func TestEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"ROCL_BIND": "10.0.0.7:7946", "ROCL_JOIN": " a:1, ,b:2", "ROCL_KEY_FILE": "key", "ROCL_GROUP": "239.1.2.3:7947", "ROCL_SEARCH": "tree", "ROCL_POLL": "50us",
	} {
		t.Setenv(name, value)
	}
	m := Environment()
	want := Member{Bind: "10.0.0.7:7946", Join: []string{"a:1", "b:2"}, KeyFile: "key", Group: "239.1.2.3:7947", Strategy: strategy.Tree, Poll: 50 * time.Microsecond}
	if !reflect.DeepEqual(m, want) || m.Check() != nil {
		t.Errorf("%+v, %v", m, m.Check())
	}
	for name, value := range map[string]string{"ROCL_SEARCH": "far", "ROCL_POLL": "long"} {
		t.Setenv(name, value)
		if err := Environment().Check(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: %v", name, value, err)
		}
		os.Unsetenv(name)
	}
}

// A member without a key is warned about unless only this machine reaches it: isLocal decides.
func TestLoopback(t *testing.T) {
	for at, want := range map[string]bool{"127.0.0.7:1": true, "[::1]:1": true, "10.0.0.7:1": false, "[fd00::7]:1": false} {
		if isLocal(at) != want {
			t.Errorf("%s is the loopback interface's: %v", at, !want)
		}
	}
}
