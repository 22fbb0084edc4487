// SPDX-License-Identifier: Apache-2.0

package rocl_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// near opens a context at a server that it reaches in memory.
func near(t *testing.T, s *directory.Server, opts ...rocl.Option) *rocl.Context {
	t.Helper()
	c := try.Get(rocl.Open(bg, append([]rocl.Option{icontext.WithDirectory(s.Dialer())}, opts...)...))(t)
	t.Cleanup(func() { c.Close() })
	return c
}

// nodes returns n servers that see each other's resources.
func nodes(t *testing.T, n int) (all []*directory.Server) {
	db := directory.NewDatabase()
	for range n {
		s := directory.NewServer(directory.WithDatabase(db))
		t.Cleanup(func() { s.Close() })
		all = append(all, s)
	}
	return all
}

// A context without a cluster name takes that of the directory. A context with another name gets an
// error.
func TestClusterName(t *testing.T) {
	ss := nodes(t, 3)
	key := [][]byte{[]byte("the cluster's")}
	for i, name := range []string{"blue", "blue", "red"} {
		ss[i].SetTerms(directory.Terms{Keys: key, Member: true, Cluster: name})
	}
	a, b := near(t, ss[0], rocl.WithGiveUp(50*time.Millisecond)), near(t, ss[1], rocl.WithCluster("blue"))
	me, you := newResource(t, a, nil), newResource(t, b, nil)
	send(t, me, you.ID(), "hello")
	expect(t, you, "hello")

	reported := make(reports, 1)
	red := near(t, ss[2], rocl.WithGiveUp(50*time.Millisecond), reported.option())
	send(t, newResource(t, red, nil), you.ID(), "hello")
	if u := <-reported; !errors.Is(u.Err, dispatch.ErrUnreachable) {
		t.Errorf("from another cluster: %v", u.Err)
	}
	for _, name := range []string{"red", "Blue", "blue "} {
		c, err := rocl.Open(bg, icontext.WithDirectory(ss[0].Dialer()), rocl.WithCluster(name))
		if !errors.Is(err, rocl.ErrCluster) || !strings.Contains(err.Error(), `"blue"`) {
			t.Errorf("%q: %v", name, err)
		}
		if c != nil {
			c.Close()
		}
	}
}

// Keys that the directory changes are used from the next link on. A context that has not received
// them can link while the old key is valid.
func TestKeysChange(t *testing.T) {
	ss := nodes(t, 2)
	old, fresh := [32]byte{1}, [32]byte{2}
	for _, s := range ss {
		s.SetLinkKeys(old)
	}
	reported := make(reports, 1)
	reach := func(ok bool) {
		t.Helper()
		a := near(t, ss[0], rocl.WithGiveUp(100*time.Millisecond), reported.option())
		b := near(t, ss[1])
		defer a.Close()
		defer b.Close()
		me, you := newResource(t, a, nil), newResource(t, b, nil)
		send(t, me, you.ID(), "hello")
		if ok {
			expect(t, you, "hello")
			return
		}
		if u := <-reported; !errors.Is(u.Err, dispatch.ErrUnreachable) {
			t.Errorf("without a common key: %v", u.Err)
		}
	}
	stays, peer := near(t, ss[0]), near(t, ss[1])
	me, you := newResource(t, stays, nil), newResource(t, peer, nil)
	say := func() {
		t.Helper()
		send(t, me, you.ID(), "still here")
		expect(t, you, "still here")
	}
	say()
	reach(true)
	ss[0].SetLinkKeys(fresh, old)
	reach(true)
	say()
	ss[1].SetLinkKeys(fresh, old)
	reach(true)
	ss[0].SetLinkKeys(fresh)
	reach(true)
	ss[1].SetLinkKeys(old)
	reach(false)
	say()
}

// A node joins a cluster while contexts run on it. They open ports that the other nodes reach, and
// register the addresses.
func TestHostLater(t *testing.T) {
	s := nodes(t, 1)[0]
	c := near(t, s)
	if n := len(c.Addrs()); n != 3 {
		t.Fatalf("addresses %q", c.Addrs())
	}
	const host = "127.0.0.2"
	s.SetTerms(directory.Terms{Member: true, Host: "192.0.2.1"}) // not an address of this machine: the context goes on as before
	s.SetTerms(directory.Terms{Member: true, Host: host})
	eventually.True(t, "the directory has the new address", func() bool {
		return slices.ContainsFunc(registered(t, c), func(at string) bool {
			return strings.HasPrefix(at, "tcp://"+host+":") && slices.Contains(c.Addrs(), at)
		})
	})
	addr := c.Addrs()[len(c.Addrs())-1]
	nc := try.Get(net.Dial("tcp", strings.TrimPrefix(addr, "tcp://")))(t)
	nc.Close()
	// A context that opens later listens there at once. If the host is not on this machine, the
	// context opens without that port.
	later := near(t, s)
	if a := later.Addrs(); len(a) != 3 || !strings.HasPrefix(a[2], "tcp://"+host+":") {
		t.Errorf("addresses %q", a)
	}
	s.SetTerms(directory.Terms{Member: true, Host: "192.0.2.1"})
	without := near(t, s)
	if a := without.Addrs(); len(a) != 3 || !strings.HasPrefix(a[2], "tcp://127.0.0.1:") {
		t.Errorf("addresses on a host that belongs to another machine: %q", a)
	}
}

// moving is TCP on a machine whose addresses come and go. All of them are 127.0.0.1.
type moving struct {
	subsys.Transport
	has *atomic.Pointer[string] // the address that the machine has besides those of the loopback interface
}

func (m moving) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	if addr == "" {
		return m.Transport.Listen(addr, cfg)
	}
	host := strings.TrimSuffix(strings.TrimPrefix(addr, "tcp://"), ":0")
	if host != *m.has.Load() {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: syscall.EADDRNOTAVAIL}
	}
	p, err := m.Transport.Listen("tcp://127.0.0.1:0", cfg)
	return posing{p, host}, err
}

// posing is a port that tells another host.
type posing struct {
	subsys.Port
	host string
}

func (p posing) Addr() string { return strings.Replace(p.Port.Addr(), "127.0.0.1", p.host, 1) }

// Where the machine does not have the cluster's address, a context opens without the port for
// other nodes, with one warning. It opens the port when the machine has the address, and tells no
// address by which the node was known before.
func TestClusterAddressMoves(t *testing.T) {
	s := nodes(t, 1)[0]
	const old, fresh = "198.51.100.1", "198.51.100.2"
	var has atomic.Pointer[string]
	set := func(host string) { has.Store(&host) }
	set("")
	s.SetTerms(directory.Terms{Member: true, Host: old})
	said := make(chan string, 100)
	c := near(t, s, rocl.WithTransports(inproc.New(), moving{tcp.New(), &has}), says(said).option())
	me := newResource(t, c, nil)
	send(t, me, me.ID(), "local")
	expect(t, me, "local")
	at := func(host string) func() bool {
		return func() bool {
			var hosts []string
			for _, at := range registered(t, c) {
				if u, err := url.Parse(at); err == nil && u.Scheme == "tcp" && u.Hostname() != "127.0.0.1" {
					hosts = append(hosts, u.Hostname())
				}
			}
			return host == "" && len(hosts) == 0 || len(hosts) == 1 && hosts[0] == host
		}
	}
	if !at("")() {
		t.Errorf("addresses %q", c.Addrs())
	}
	set(old)
	eventually.True(t, "the address is back", at(old))
	set(fresh)
	s.SetTerms(directory.Terms{Member: true, Host: fresh})
	eventually.True(t, "the node has another address", at(fresh))
	set(old)
	s.SetTerms(directory.Terms{Member: true, Host: old})
	eventually.True(t, "the first address is told again", at(old))
	c.Close() // afterwards the handler has all lines
	warned := 0
	for len(said) > 0 {
		if strings.Contains(<-said, "other nodes do not reach this context") {
			warned++
		}
	}
	if warned != 1 {
		t.Errorf("warned %d times, want once", warned)
	}
}

// Promise (Clusters): A context that listens at every address is told to other nodes by the
// cluster's host.
func TestListenEverywhere(t *testing.T) {
	s := nodes(t, 1)[0]
	for listen, host := range map[string]string{"tcp://0.0.0.0:0": "198.51.100.1", "tcp://[::]:0": "2001:db8::1"} {
		s.SetTerms(directory.Terms{Member: true, Host: host})
		c := near(t, s, rocl.WithTransports(tcp.New()), rocl.WithListen(listen))
		a := c.Addrs()
		if len(a) != 2 || !strings.HasPrefix(a[1], "tcp://"+strings.TrimSuffix(net.JoinHostPort(host, ""), ":")+":") {
			t.Errorf("%s: %q", listen, a)
		}
		u, err := url.Parse(a[0])
		if err != nil || !strings.HasSuffix(a[1], ":"+u.Port()) {
			t.Errorf("%s: the ports of %q differ: %v", listen, a, err)
		}
	}
}

// New addresses that the directory has refused are registered when it takes them.
func TestAddressesRefused(t *testing.T) {
	db := directory.NewDatabase()
	s := directory.NewServer(directory.WithDatabase(db))
	t.Cleanup(func() { s.Close() })
	said := make(chan string, 100)
	c := near(t, s, says(said).option())
	f := try.Get(c.Lookup(bg, c.ID()))(t)
	if err := db.Delete(c.ID()); err != nil { // the directory refuses an update now
		t.Fatal(err)
	}
	const host = "127.0.0.2"
	s.SetTerms(directory.Terms{Member: true, Host: host})
	for line := range said {
		if strings.Contains(line, "the directory did not take the new addresses") {
			break
		}
	}
	try.OK(t, errOf(db.Put(c.ID(), c.ID(), &f.Attrs)))
	eventually.True(t, "the directory has the new address", func() bool { return strings.Contains(fmt.Sprint(registered(t, c)), "tcp://"+host+":") })
}

// Open says what is wrong with the settings of a member, if it would serve the directory. The
// environment counts if there are no settings.
func TestMemberFails(t *testing.T) {
	dir := t.TempDir()
	open := func(opts ...rocl.Option) error {
		ctx, cancel := context.WithTimeout(bg, eventually.Timeout)
		defer cancel()
		c, err := rocl.Open(ctx, append([]rocl.Option{rocl.WithSocket(filepath.Join(dir, "sock"))}, opts...)...)
		if err == nil {
			c.Close()
		}
		return err
	}
	missing := cluster.Member{Bind: "127.0.0.1:0", KeyFile: filepath.Join(dir, "no key")}
	for name, m := range map[string]cluster.Member{
		"no key": missing, "no port": {Bind: "127.0.0.1"}, "nothing to bind": {Join: []string{"127.0.0.1:1"}}, "nobody to join": {Bind: "127.0.0.1:0", Join: []string{"127.0.0.1"}},
	} {
		try.Fails(open(rocl.WithMember(m)))(t, cluster.ErrConfig, name)
	}
	for name, value := range map[string]string{"ROCL_SEARCH": "far", "ROCL_POLL": "long", "ROCL_GROUP": "239.1.2.3", "ROCL_JOIN": "127.0.0.1:1"} {
		t.Setenv(name, value)
		try.Fails(open(rocl.WithMember(cluster.Environment())))(t, cluster.ErrConfig, "%s=%s from the environment", name, value)
		os.Unsetenv(name)
	}
	t.Setenv("ROCL_BIND", missing.Bind)
	t.Setenv("ROCL_KEY_FILE", missing.KeyFile)
	try.Fails(open(rocl.WithMember(cluster.Environment())))(t, cluster.ErrConfig, "from the environment")
	if err := open(); !errors.Is(err, cluster.ErrConfig) || !strings.Contains(err.Error(), "WithMember") {
		t.Errorf("a program without WithMember where the environment describes a member: %v", err)
	}
	// If a directory serves already, the key is not needed, and the cluster is that of the
	// directory.
	s := try.Get(directory.Listen(filepath.Join(dir, "sock"), directory.AsDaemon()))(t)
	defer s.Close()
	s.SetTerms(directory.Terms{Member: true, Cluster: "blue"})
	try.Check(t, open())
	t.Setenv("ROCL_CLUSTER", "red")
	try.Fails(open())(t, rocl.ErrCluster, "from the environment")
	try.Check(t, open(rocl.WithCluster("blue")))
}

// A program without the settings of a member takes over a node's directory, and so takes the node
// out of its cluster. The context logs that, because nothing else explains why resources of other
// nodes are not found.
func TestClusterLost(t *testing.T) {
	s := nodes(t, 1)[0]
	s.SetTerms(directory.Terms{Member: true, Cluster: "blue"})
	said := make(chan string, 10)
	near(t, s, says(said).option())
	s.SetTerms(directory.Terms{})
	for end := time.After(eventually.Timeout); ; {
		select {
		case line := <-said:
			if strings.Contains(line, "has left its cluster") && strings.Contains(line, "cluster=blue") {
				return
			}
		case <-end:
			t.Fatal("nothing was said")
		}
	}
}

// says is a writer that passes on what is logged.
type says chan<- string

func (s says) option() rocl.Option {
	return rocl.WithLogger(slog.New(slog.NewTextHandler(s, nil)))
}

func (s says) Write(b []byte) (int, error) {
	s <- string(b)
	return len(b), nil
}
