// SPDX-License-Identifier: Apache-2.0

package context

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/testkit/eventually"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
	"github.com/rocl-go/rocl/subsys/tls"
)

// listenAt is the option rocl.WithListen.
func listenAt(urls ...string) func(*Config) { return func(c *Config) { c.Listen = urls } }

// over is the option rocl.WithTransports.
func over(t ...subsys.Transport) func(*Config) { return func(c *Config) { c.Transports = t } }

// Promise (Clusters): Contexts are reached from other nodes without configuration, and never by
// loopback addresses of another node. See also TestDefaultHost.
func TestPlaces(t *testing.T) {
	node := func(host string) directory.Terms { return directory.Terms{Member: true, Host: host} }
	sealed := func(host string) directory.Terms { return directory.Terms{Member: true, Host: host, Sealed: true} }
	own := tls.New(nil)
	for name, c := range map[string]struct {
		terms directory.Terms
		opts  []func(*Config)
		want  []string
	}{
		"no cluster":          {node(""), nil, []string{"inproc ", "shm ", "tcp "}},
		"a cluster":           {node("10.0.0.7"), nil, []string{"inproc ", "shm ", "tcp ", "tcp tcp://10.0.0.7:0"}},
		"IPv6":                {node("fd00::7"), nil, []string{"inproc ", "shm ", "tcp ", "tcp tcp://[fd00::7]:0"}},
		"all on one machine":  {node("127.0.0.2"), nil, []string{"inproc ", "shm ", "tcp tcp://127.0.0.2:0"}},
		"the user's own":      {node("10.0.0.7"), []func(*Config){listenAt("tcp://10.0.0.8:1")}, []string{"inproc ", "shm ", "tcp tcp://10.0.0.8:1"}},
		"TCP alone":           {node("10.0.0.7"), []func(*Config){over(tcp.New())}, []string{"tcp ", "tcp tcp://10.0.0.7:0"}},
		"other transports":    {node("10.0.0.7"), []func(*Config){over(inproc.New())}, []string{"inproc "}},
		"none":                {node("10.0.0.7"), []func(*Config){over()}, nil},
		"sealed":              {sealed("10.0.0.7"), nil, []string{"inproc ", "shm ", "tcp ", "tls tls://10.0.0.7:0"}},
		"sealed, one machine": {sealed("127.0.0.2"), nil, []string{"inproc ", "shm ", "tcp ", "tls tls://127.0.0.2:0"}},
		"sealed, IPv6":        {sealed("fd00::7"), nil, []string{"inproc ", "shm ", "tcp ", "tls tls://[fd00::7]:0"}},
		"sealed, user's TLS":  {sealed("10.0.0.7"), []func(*Config){over(own)}, []string{"tls tls://10.0.0.7:0"}},
		"sealed, user's both": {sealed("10.0.0.7"), []func(*Config){over(own, tcp.New())}, []string{"tls tls://10.0.0.7:0", "tcp "}},
		"sealed, inproc":      {sealed("10.0.0.7"), []func(*Config){over(inproc.New())}, []string{"inproc "}},
		"sealed, user's port": {sealed("10.0.0.7"), []func(*Config){listenAt("tls://10.0.0.8:1")}, []string{"inproc ", "shm ", "tcp ", "tls tls://10.0.0.8:1"}},
		"sealed, local port":  {sealed("10.0.0.7"), []func(*Config){listenAt("tcp://127.0.0.1:1")}, []string{"inproc ", "shm ", "tcp tcp://127.0.0.1:1", "tls tls://10.0.0.7:0"}},
		"not sealed, TLS":     {node("10.0.0.7"), []func(*Config){over(own)}, []string{"tls "}},
		"several of the user": {node("10.0.0.7"), []func(*Config){listenAt("tcp://a:1", "tcp://b:2")}, []string{"inproc ", "shm ", "tcp tcp://a:1", "tcp tcp://b:2"}},
	} {
		cfg := Defaults()
		cfg.Transports = []subsys.Transport{inproc.New(), shm.New(), tcp.New()} // those of Linux
		for _, o := range c.opts {
			o(&cfg)
		}
		var sealer subsys.Transport
		if c.terms.Sealed {
			sealer = tls.New(nil)
		}
		var got []string
		for _, a := range cfg.listenAddrs(&c.terms, sealer) {
			got = append(got, a.key())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// In a cluster with a key, a context listens for other nodes only over transports that seal.
func TestListenUnsealed(t *testing.T) {
	cfg := Defaults()
	cfg.Transports = append(cfg.Transports, unsealed{})
	for at, isRefused := range map[string]bool{"clear://10.0.0.7:1": true, "tcp://10.0.0.7:1": true, "clear://127.0.0.1:1": false, "tls://10.0.0.7:1": false} {
		cfg.Listen = []string{at}
		err := cfg.checkListen(&directory.Terms{Member: true, Host: "10.0.0.7", Sealed: true}, tls.New(nil))
		if errors.Is(err, errBare) != isRefused {
			t.Errorf("%s: %v", at, err)
		}
		if err := cfg.checkListen(&directory.Terms{Member: true, Host: "10.0.0.7"}, tls.New(nil)); err != nil {
			t.Errorf("%s without a key: %v", at, err)
		}
	}
}

// An unsealed is a transport that does not seal and is not TCP.
type unsealed struct{ subsys.Transport }

func (unsealed) Name() string { return "clear" }
func (unsealed) Unsealed()    {}

// A context does not dial loopback addresses of another node, unless the whole cluster is on the
// loopback interface. It dials those of its own node. In a cluster with a key it dials another node
// only over transports that seal.
func TestForeignLoopback(t *testing.T) {
	s := directory.NewServer()
	c := newBare(t, s, over(inproc.NewNetwork().Transport(), unsealed{inproc.NewNetwork().Transport()}))
	all := []string{"clear://10.0.0.8:7", "inproc://x/1", "tcp://127.0.0.1:5", "tcp://[::1]:5", "tcp://localhost:5", "tcp://[::]:5", "tcp://0.0.0.0:5", "tls://127.3.3.3:5", "tcp://10.0.0.8:5", "tls://[fd00::8]:6", "%"}
	far := []string{"clear://10.0.0.8:7", "inproc://x/1", "tcp://10.0.0.8:5", "tls://[fd00::8]:6", "%"}
	same, other := resource.MakeGID(c.targets.self.Node(), 77, 0), resource.MakeGID(c.targets.self.Node()^1, 77, 0)
	bare := func(in []string) []string {
		return slices.DeleteFunc(slices.Clone(in), func(s string) bool { return strings.HasPrefix(s, "tcp:") || strings.HasPrefix(s, "clear:") })
	}
	for host, want := range map[string][]string{"": all, "127.0.0.1": all, "10.0.0.7": far, "fd00::7": far} {
		for _, sealed := range []bool{false, true} {
			if sealed {
				want = bare(want)
			}
			s.SetTerms(directory.Terms{Keys: [][]byte{make([]byte, 32)}, Member: true, Host: host, Sealed: sealed})
			eventually.True(t, "the terms are there", func() bool { return slices.Equal(c.ports.Usable(other, all), want) })
			if got := c.ports.Usable(same, all); !slices.Equal(got, all) {
				t.Errorf("host %q: of our own node %q", host, got)
			}
		}
	}
}
