// SPDX-License-Identifier: Apache-2.0

package context_test

import (
	stdctx "context"
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

	"github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/cluster"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/tcp"
	"github.com/rocl-go/rocl/subsys/tls"
)

// Promise (Clusters): Contexts are reached from other nodes without configuration, and never by
// loopback addresses of another node. See also TestDefaultHost.
func TestPlaces(t *testing.T) {
	node := func(host string) directory.Terms { return directory.Terms{Member: true, Host: host} }
	sealed := func(host string) directory.Terms { return directory.Terms{Member: true, Host: host, Sealed: true} }
	own := tls.New(nil)
	for name, c := range map[string]struct {
		terms directory.Terms
		opts  []context.Option
		want  []string
	}{
		"no cluster":          {node(""), nil, []string{"inproc ", "shm ", "tcp "}},
		"a cluster":           {node("10.0.0.7"), nil, []string{"inproc ", "shm ", "tcp ", "tcp tcp://10.0.0.7:0"}},
		"IPv6":                {node("fd00::7"), nil, []string{"inproc ", "shm ", "tcp ", "tcp tcp://[fd00::7]:0"}},
		"all on one machine":  {node("127.0.0.2"), nil, []string{"inproc ", "shm ", "tcp tcp://127.0.0.2:0"}},
		"the user's own":      {node("10.0.0.7"), []context.Option{context.WithListen("tcp://10.0.0.8:1")}, []string{"inproc ", "shm ", "tcp tcp://10.0.0.8:1"}},
		"TCP alone":           {node("10.0.0.7"), []context.Option{context.WithTransports(tcp.New())}, []string{"tcp ", "tcp tcp://10.0.0.7:0"}},
		"other transports":    {node("10.0.0.7"), []context.Option{context.WithTransports(inproc.New())}, []string{"inproc "}},
		"none":                {node("10.0.0.7"), []context.Option{context.WithTransports()}, nil},
		"sealed":              {sealed("10.0.0.7"), nil, []string{"inproc ", "shm ", "tcp ", "tls tls://10.0.0.7:0"}},
		"sealed, one machine": {sealed("127.0.0.2"), nil, []string{"inproc ", "shm ", "tcp ", "tls tls://127.0.0.2:0"}},
		"sealed, IPv6":        {sealed("fd00::7"), nil, []string{"inproc ", "shm ", "tcp ", "tls tls://[fd00::7]:0"}},
		"sealed, user's TLS":  {sealed("10.0.0.7"), []context.Option{context.WithTransports(own)}, []string{"tls tls://10.0.0.7:0"}},
		"sealed, user's both": {sealed("10.0.0.7"), []context.Option{context.WithTransports(own, tcp.New())}, []string{"tls tls://10.0.0.7:0", "tcp "}},
		"sealed, inproc":      {sealed("10.0.0.7"), []context.Option{context.WithTransports(inproc.New())}, []string{"inproc "}},
		"sealed, user's port": {sealed("10.0.0.7"), []context.Option{context.WithListen("tls://10.0.0.8:1")}, []string{"inproc ", "shm ", "tcp ", "tls tls://10.0.0.8:1"}},
		"sealed, local port":  {sealed("10.0.0.7"), []context.Option{context.WithListen("tcp://127.0.0.1:1")}, []string{"inproc ", "shm ", "tcp tcp://127.0.0.1:1", "tls tls://10.0.0.7:0"}},
		"not sealed, TLS":     {node("10.0.0.7"), []context.Option{context.WithTransports(own)}, []string{"tls "}},
		"several of the user": {node("10.0.0.7"), []context.Option{context.WithListen("tcp://a:1", "tcp://b:2")}, []string{"inproc ", "shm ", "tcp tcp://a:1", "tcp tcp://b:2"}},
	} {
		if got := context.ListenAddrs(c.terms, c.opts...); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// near opens a context at a server that it reaches in memory.
func near(t *testing.T, s *directory.Server, opts ...context.Option) *context.Context {
	t.Helper()
	c, err := context.Open(bg, append([]context.Option{context.WithDirectory(s.Dialer())}, opts...)...)
	must(t, err)
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

// A context does not dial loopback addresses of another node, unless the whole cluster is on the
// loopback interface. It dials those of its own node. In a cluster with a key it dials another node
// only over transports that seal.
func TestForeignLoopback(t *testing.T) {
	s := nodes(t, 1)[0]
	c := near(t, s, context.WithTransports(inproc.NewNetwork().Transport()))
	all := []string{"inproc://x/1", "tcp://127.0.0.1:5", "tcp://[::1]:5", "tcp://localhost:5", "tcp://[::]:5", "tcp://0.0.0.0:5", "tls://127.3.3.3:5", "tcp://10.0.0.8:5", "tls://[fd00::8]:6", "%"}
	far := []string{"inproc://x/1", "tcp://10.0.0.8:5", "tls://[fd00::8]:6", "%"}
	same, other := resource.MakeGID(c.ID().Node(), 77, 0), resource.MakeGID(c.ID().Node()^1, 77, 0)
	bare := func(in []string) []string {
		return slices.DeleteFunc(slices.Clone(in), func(s string) bool { return strings.HasPrefix(s, "tcp:") })
	}
	for host, want := range map[string][]string{"": all, "127.0.0.1": all, "10.0.0.7": far, "fd00::7": far} {
		for _, sealed := range []bool{false, true} {
			if sealed {
				want = bare(want)
			}
			s.SetTerms(directory.Terms{Keys: [][]byte{make([]byte, 32)}, Member: true, Host: host, Sealed: sealed})
			eventually.True(t, "the terms are there", func() bool { return slices.Equal(c.UsableAddrs(other, all...), want) })
			if got := c.UsableAddrs(same, all...); !slices.Equal(got, all) {
				t.Errorf("host %q: of our own node %q", host, got)
			}
		}
	}
}

// A context without a cluster name takes that of the directory. A context with another name gets an
// error.
func TestClusterName(t *testing.T) {
	ss := nodes(t, 3)
	key := [][]byte{[]byte("the cluster's")}
	for i, name := range []string{"blue", "blue", "red"} {
		ss[i].SetTerms(directory.Terms{Keys: key, Member: true, Cluster: name})
	}
	a, b := near(t, ss[0], context.WithGiveUp(50*time.Millisecond)), near(t, ss[1], context.WithCluster("blue"))
	me, you := register(t, a, nil), register(t, b, nil)
	send(t, me, you.ID(), "hello")
	expect(t, you, "hello")

	reported := make(reports, 1)
	red := near(t, ss[2], context.WithGiveUp(50*time.Millisecond), reported.option())
	send(t, register(t, red, nil), you.ID(), "hello")
	if u := <-reported; !errors.Is(u.Err, dispatch.ErrUnreachable) {
		t.Errorf("from another cluster: %v", u.Err)
	}
	for _, name := range []string{"red", "Blue", "blue "} {
		c, err := context.Open(bg, context.WithDirectory(ss[0].Dialer()), context.WithCluster(name))
		if !errors.Is(err, context.ErrCluster) || !strings.Contains(err.Error(), `"blue"`) {
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
		a := near(t, ss[0], context.WithGiveUp(100*time.Millisecond), reported.option())
		b := near(t, ss[1])
		defer a.Close()
		defer b.Close()
		me, you := register(t, a, nil), register(t, b, nil)
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
	me, you := register(t, stays, nil), register(t, peer, nil)
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
	nc, err := net.Dial("tcp", strings.TrimPrefix(addr, "tcp://"))
	must(t, err)
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
	c := near(t, s, context.WithTransports(inproc.New(), moving{tcp.New(), &has}), says(said).option())
	me := register(t, c, nil)
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
		c := near(t, s, context.WithTransports(tcp.New()), context.WithListen(listen))
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
	f, err := c.Lookup(bg, c.ID())
	must(t, err)
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
	must(t, errOf(db.Put(c.ID(), c.ID(), &f.Attrs)))
	eventually.True(t, "the directory has the new address", func() bool { return strings.Contains(fmt.Sprint(registered(t, c)), "tcp://"+host+":") })
}

// Open says what is wrong with the settings of a member, if it would serve the directory. The
// environment counts if there are no settings.
func TestMemberFails(t *testing.T) {
	dir := t.TempDir()
	open := func(opts ...context.Option) error {
		ctx, cancel := stdctx.WithTimeout(bg, eventually.Timeout)
		defer cancel()
		c, err := context.Open(ctx, append([]context.Option{context.WithSocket(filepath.Join(dir, "sock"))}, opts...)...)
		if err == nil {
			c.Close()
		}
		return err
	}
	missing := cluster.Member{Bind: "127.0.0.1:0", KeyFile: filepath.Join(dir, "no key")}
	for name, m := range map[string]cluster.Member{
		"no key": missing, "no port": {Bind: "127.0.0.1"}, "nothing to bind": {Join: []string{"127.0.0.1:1"}}, "nobody to join": {Bind: "127.0.0.1:0", Join: []string{"127.0.0.1"}},
	} {
		fails(t, open(context.WithMember(m)), cluster.ErrConfig, name)
	}
	for name, value := range map[string]string{"ROCL_SEARCH": "far", "ROCL_POLL": "long", "ROCL_GROUP": "239.1.2.3", "ROCL_JOIN": "127.0.0.1:1"} {
		t.Setenv(name, value)
		fails(t, open(context.WithMember(cluster.Environment())), cluster.ErrConfig, "%s=%s from the environment", name, value)
		os.Unsetenv(name)
	}
	t.Setenv("ROCL_BIND", missing.Bind)
	t.Setenv("ROCL_KEY_FILE", missing.KeyFile)
	fails(t, open(context.WithMember(cluster.Environment())), cluster.ErrConfig, "from the environment")
	if err := open(); !errors.Is(err, cluster.ErrConfig) || !strings.Contains(err.Error(), "WithMember") {
		t.Errorf("a program without WithMember where the environment describes a member: %v", err)
	}
	// If a directory serves already, the key is not needed, and the cluster is that of the
	// directory.
	s, err := directory.Listen(filepath.Join(dir, "sock"), directory.AsDaemon())
	must(t, err)
	defer s.Close()
	s.SetTerms(directory.Terms{Member: true, Cluster: "blue"})
	noErr(t, open())
	t.Setenv("ROCL_CLUSTER", "red")
	fails(t, open(), context.ErrCluster, "from the environment")
	noErr(t, open(context.WithCluster("blue")))
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

func (s says) option() context.Option {
	return context.WithLogger(slog.New(slog.NewTextHandler(s, nil)))
}

func (s says) Write(b []byte) (int, error) {
	s <- string(b)
	return len(b), nil
}
