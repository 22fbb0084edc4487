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
	"testing"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/os/secretfile"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/freeaddr"
	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/posix"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
)

func TestReadKeys(t *testing.T) {
	dir := filepath.Dir(freeaddr.Socket(t))
	write := func(content string, mode os.FileMode) string {
		f := try.Get(os.CreateTemp(dir, "key"))(t)
		defer f.Close()
		try.Get(f.WriteString(content))(t)
		try.OK(t, f.Chmod(mode))
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
		"a directory":        {filepath.Dir(freeaddr.Socket(t)), ErrConfig, "key"},
		"missing is of ours": {filepath.Join(dir, "no"), ErrConfig, "key"},
	} {
		if c.want == secretfile.ErrInsecure && !posix.IsUnix {
			continue
		}
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
		try.Check(t, m.Check(), "%+v", m)
	}
	for _, m := range []Member{{Join: []string{"a:1"}}, {KeyFile: "k"}, {Bind: "10.0.0.7"}, {Bind: ":7946"}, {Bind: "x:"},
		{Bind: "x:65536"}, {Bind: "x:name"}, {Bind: "a:1", Join: []string{"b:name"}}, {Bind: "a:1", Join: []string{"b:65536"}},
		{Bind: "10.0.0.7:1", Certificates: directory.CertificateFiles{Cert: "c", Key: "k", CA: "a"}}, {Bind: "10.0.0.7:1", KeyFile: "k", Certificates: directory.CertificateFiles{Cert: "c", Key: "k"}},
		{Group: "239.1.2.3:1"}, {Bind: "a:1", Group: "name:1"}, {Bind: "a:1", Group: "239.1.2.3:0"}, {Bind: "a:1", Group: "0.0.0.0:1"}, {Bind: "a:1", Group: "[::1]:1"},
		{Bind: "a:1", Strategy: strategy.Broadcast}, {Bind: "a:1", Strategy: 17}, {Bind: "a:1", Poll: -1}, {Bind: "a:1", Poll: time.Hour}} {
		try.Fails(m.Check())(t, ErrConfig, "%+v", m)
	}
}

// host is "" for an address that other nodes cannot use. A member without a key is warned about
// unless only this machine reaches it: isLocal decides.
func TestHost(t *testing.T) {
	for at, want := range map[string]struct {
		host    string
		isLocal bool
	}{
		"10.0.0.7:1": {"10.0.0.7", false}, "[fd00::7]:1": {"fd00::7", false}, "127.0.0.7:1": {"127.0.0.7", true}, "[::1]:1": {"::1", true},
		"0.0.0.0:1": {}, "[::]:1": {}, "name:1": {}, "": {}, "10.0.0.7": {},
	} {
		if host(at) != want.host || isLocal(at) != want.isLocal {
			t.Errorf("host of %q is %q, local: %v", at, host(at), isLocal(at))
		}
	}
}

// freePort returns an address of the loopback interface that is not in use.
func freePort(t *testing.T) string {
	t.Helper()
	return try.Get(freeaddr.Loopback())(t)
}

func sock(t testing.TB) string { return freeaddr.Socket(t) }

// served returns a client that serves the node at path while no other process does, as the member
// that ms describes. It is closed when the test ends.
func served(t *testing.T, path string, ms *Membership) *directory.Client {
	t.Helper()
	d, err := directory.JoinNode(eventually.Context(t), path, slog.New(slog.DiscardHandler), []directory.Option{ms.Option()}, directory.AsMember())
	try.OK(t, err)
	t.Cleanup(func() { d.Close() })
	return d
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
	taken := try.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
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
	first := try.Get(directory.JoinNode(ctx, path, log, nil))(t)
	defer first.Close()
	next := served(t, path, ms)
	id := next.Self().WithSerial(1)
	try.Get(next.Register(ctx, id, pattern(resource.Attrs{"type": "mine"})))(t)
	first.Close()
	if a, err := next.Find(ctx, pattern(resource.Match{"type": "mine"})); err != nil || a.ID != id {
		t.Fatalf("the node is not served: %v", err)
	}
	if _, err := next.Find(ctx, pattern(resource.Match{"type": "other"})); !errors.Is(err, directory.ErrPartial) {
		t.Fatalf("no member and certain: %v", err)
	}
	if ms.Cluster() != nil {
		t.Fatal("a member at an address of somebody else's")
	}
	taken.Close()
	eventually.True(t, "a member", func() bool {
		_, err := next.Find(ctx, pattern(resource.Match{"type": "other"}))
		return errors.Is(err, directory.ErrNotFound)
	})
	if c := ms.Cluster(); c == nil || c.Addr() != at {
		t.Errorf("member %v", c)
	}
	if terms := next.Terms(); !terms.Member || terms.Cluster != "test" || terms.Host != "127.0.0.1" || terms.Sealed {
		t.Errorf("terms %+v", terms)
	}
}

// The file of keys is followed, and is read again by Rekey. Its keys are used in the cluster and
// for the links. A file that cannot be used changes nothing, and is logged.
func TestRekey(t *testing.T) { inMemory(t, testRekey) }

func testRekey(t *testing.T) {
	const first, second = "the first key of all", "the second key of all"
	file := freeaddr.Socket(t)
	var log logged.Log
	ms := NewMembership("test", Member{KeyFile: file}, log.Logger())
	s := directory.NewServer()
	defer s.Close()
	life, end := context.WithCancel(t.Context())
	followed := make(chan struct{})
	for i, step := range []struct {
		keys  string
		mode  os.FileMode
		isBad bool
		now   int // number of keys
		seals string
	}{
		{first, 0o600, false, 1, first},
		{first + "\n" + second, 0o600, false, 2, first},
		{"short", 0o600, true, 2, first},
		{second, 0o644, true, 2, first},
		{second + "\n" + first, 0o600, false, 2, second},
		{second + "\nshort", 0o600, true, 2, second},
		{second, 0o600, false, 1, second},
	} {
		if step.mode != 0o600 && !posix.IsUnix {
			continue
		}
		try.OK(t, errors.Join(os.WriteFile(file, []byte(step.keys), step.mode), os.Chmod(file, step.mode)))
		log.Reset()
		if i == 0 {
			if n, err := ms.Rekey(); n != 1 || err != nil {
				t.Errorf("before it began: %d keys, %v", n, err)
			}
			ms.cluster, ms.server = member(t, 1, func(c *Config) { c.Keys = [][]byte{[]byte("another")} }), s
			go func() {
				defer close(followed)
				ms.keepKeys(life)
			}()
		}
		time.Sleep(3 * keyFilePoll) // virtual
		if log.Count("keys have changed") == 1 == step.isBad || log.Count("keys stay as they were") == 1 != step.isBad {
			t.Errorf("%q: logged %s", step.keys, &log)
		}
		if n, err := ms.Rekey(); (err != nil) != step.isBad || err == nil && n != step.now {
			t.Errorf("%q: %d keys, %v", step.keys, n, err)
		}
		c := try.Get(directory.Join(t.Context(), s.Dialer()))(t)
		link := LinkKey("test", []byte(step.seals))
		if got := c.Terms().Keys; len(got) != step.now || string(got[0]) != string(link[:]) {
			t.Errorf("%q: the contexts have %d keys", step.keys, len(got))
		}
		c.Close()
		ring := ms.cluster.gossip.ring
		if ms.cluster.Stats().Keys != step.now || string(ring.GetPrimaryKey()) != string(gossipKey([]byte(step.seals))) {
			t.Errorf("%q: the member has %d keys", step.keys, len(ring.GetKeys()))
		}
	}
	try.OK(t, os.Remove(file))
	eventually.True(t, "it is missed", func() bool { return log.Count("no such file") > 0 })
	end()
	<-followed
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
