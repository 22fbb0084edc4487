package cluster

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
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
		want error // nil: the key
		says string
	}{
		"good":               {write(good, 0o600), nil, ""},
		"space around it":    {write("\n "+good+" \n", 0o400), nil, ""},
		"too short":          {write(good[1:]+"\n", 0o600), ErrConfig, "15 bytes"},
		"empty":              {write("", 0o600), ErrConfig, "has 0"},
		"too long":           {write(strings.Repeat("x", mostFile+1), 0o600), ErrConfig, "at most"},
		"too many":           {write(strings.Repeat(good+"\n", mostKeys+1), 0o600), ErrConfig, "1 to 8"},
		"one too short":      {write(good+"\n\nshort\n", 0o600), ErrConfig, "line 3"},
		"for the group":      {write(good, 0o640), fs.ErrPermission, "0600"},
		"for everybody":      {write(good, 0o604), fs.ErrPermission, "0600"},
		"missing":            {filepath.Join(dir, "no"), fs.ErrNotExist, "key"},
		"a directory":        {t.TempDir(), ErrConfig, "key"},
		"missing is of ours": {filepath.Join(dir, "no"), ErrConfig, "key"},
	} {
		keys, err := ReadKeys(c.file)
		if c.want == nil && (err != nil || len(keys) != 1 || string(keys[0]) != good) || !errors.Is(err, c.want) {
			t.Errorf("%s: %q, %v", name, keys, err)
		}
		if err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v does not say %q", name, err, c.says)
		}
	}
}

// Several keys are in the order of the file, whatever ends its lines.
func TestReadSeveralKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("\n"+strings.Repeat("a", 16)+"\r\n\n  "+strings.Repeat("b", 16)+"\t\n"+strings.Repeat("c", 16)), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := ReadKeys(file)
	if err != nil || len(keys) != 3 {
		t.Fatalf("%q: %v", keys, err)
	}
	for i, k := range keys {
		if string(k) != strings.Repeat(string(rune('a'+i)), 16) {
			t.Errorf("key %d is %q", i, k)
		}
	}
}

func TestMemberCheck(t *testing.T) {
	for _, m := range []Member{{}, {Bind: "0.0.0.0:7946"}, {Bind: "[::1]:1", Join: []string{"a:1", "b"}, KeyFile: "k"}, {Bind: "a:1", KeyFile: "k", Certificates: Certificates{"c", "k", "a"}}} {
		if err := m.Check(); err != nil {
			t.Errorf("%+v: %v", m, err)
		}
	}
	for _, m := range []Member{{Join: []string{"a:1"}}, {KeyFile: "k"}, {Bind: "10.0.0.7"}, {Bind: ":7946"}, {Bind: "x:"},
		{Bind: "10.0.0.7:1", Certificates: Certificates{"c", "k", "a"}}, {Bind: "10.0.0.7:1", KeyFile: "k", Certificates: Certificates{Cert: "c", Key: "k"}}} {
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

// freePort is a port of the loopback interface that nobody has just now.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

func sock(t *testing.T) string {
	dir, err := os.MkdirTemp("", "rc-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "d.sock")
}

// An address that somebody has is an error of the one who serves first. Who
// takes over serves, says that nothing is certain, and becomes a member when
// the address is free.
func TestAddressInUse(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
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
	eventually(t, "a member", func() bool {
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

// A member that hands over is never away for the others: they ask its successor,
// who is not answered what its predecessor asked.
func TestHandOver(t *testing.T) {
	at := freePort(t)
	mine := func(c *Config) { c.Bind = at }
	a := member(t, 1, nil)
	b := member(t, 2, mine, a)
	together(t, a, b)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	put(t, a, 1, resource.Attrs{"type": "x"})
	for range 20 {
		if _, err := b.Find(ctx, pattern(resource.Match{"type": "x"})); err != nil {
			t.Fatal(err)
		}
	}
	away := make(chan struct{})
	watched, done := make(chan struct{}), make(chan struct{})
	go func() { // as often as it can
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
		for range 20 { // numbers that the others may remember
			if _, err := b.Find(ctx, pattern(resource.Match{"type": "nothing"})); !errors.Is(err, directory.ErrNotFound) {
				t.Fatalf("asked for nothing: %v", err)
			}
		}
		if r, err := a.Find(ctx, pattern(resource.Match{"type": "y"})); err != nil || r.ID != id {
			t.Fatalf("found %v, want %v: %v", r.ID, id, err)
		}
		eventually(t, "the successor has a summary", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.filters.Of(1) != nil
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

// A member that has just come to serve its node does not say no for certain,
// what it has it says.
func TestNotSure(t *testing.T) {
	var sure atomic.Bool
	a := member(t, 1, nil)
	b := member(t, 2, func(c *Config) { c.Sure = sure.Load }, a)
	together(t, a, b)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
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
