// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/internal/testkit/logged"
	"github.com/rocl-go/rocl/internal/testkit/try"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/simnet"
)

// A tap records what arrives at the ports of processes.
type tap struct {
	mu  sync.Mutex
	all []*recorded
}

// A recorded is a datagram, or what was read from a connection.
type recorded struct {
	to net.Addr
	bytes.Buffer
}

func (x *tap) record(to net.Addr) *recorded {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := &recorded{to: to}
	x.all = append(x.all, r)
	return r
}

// tapped is the network of a process whose ports are recorded.
type tapped struct {
	*simnet.Process
	x *tap
}

func (p tapped) ListenPacket(addr string) (net.PacketConn, error) {
	c, err := p.Process.ListenPacket(addr)
	return tappedPackets{c, p.x}, err
}

func (p tapped) Listen(addr string) (net.Listener, error) {
	ln, err := p.Process.Listen(addr)
	return tappedListener{ln, p.x}, err
}

type tappedPackets struct {
	net.PacketConn
	x *tap
}

func (c tappedPackets) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.PacketConn.ReadFrom(b)
	if err == nil {
		c.x.record(c.LocalAddr()).Write(b[:n])
	}
	return n, from, err
}

type tappedListener struct {
	net.Listener
	x *tap
}

func (l tappedListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tappedConn{nc, l.x.record(l.Addr())}, nil
}

type tappedConn struct {
	net.Conn
	r *recorded
}

func (c tappedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.r.Write(b[:n])
	return n, err
}

// replay sends all that was recorded again from p, each to the port where it arrived.
func (x *tap) replay(t *testing.T, p *simnet.Process) {
	t.Helper()
	pc := try.Get(p.ListenPacket(""))(t)
	defer pc.Close()
	for i, r := range x.all {
		if i%64 == 63 {
			time.Sleep(time.Millisecond) // virtual: a port holds a limited number of datagrams
		}
		if to, ok := r.to.(*net.UDPAddr); ok {
			_, _ = pc.WriteTo(r.Bytes(), to)
			continue
		}
		nc := try.Get(p.DialContext(t.Context(), r.to.String()))(t)
		_, _ = nc.Write(r.Bytes())
		nc.Close()
	}
}

// All that members of a cluster with a key send each other is recorded, reports of deaths among it.
// It is sent again after all members were started anew with the same numbers, at the same
// addresses. No member is then taken for dead, or believed to leave, and what they have is found
// all the time.
func TestReplayedGossip(t *testing.T) { inMemory(t, testReplayedGossip) }

func testReplayedGossip(t *testing.T) {
	network, _ := networks.Load(t)
	n := network.(*simnet.Network)
	var binds []string
	for range 3 {
		binds = append(binds, fmt.Sprint(n.AddHost("").IP(), ":7946"))
	}
	var x tap
	start := func(i int, change func(*Config)) *Cluster {
		return member(t, resource.NodeID(i+1), func(c *Config) {
			c.Bind, c.Keys = binds[i], [][]byte{[]byte("0123456789abcdef")}
			c.Join = slices.Delete(slices.Clone(binds), i, i+1)
			change(c)
		})
	}
	all := func(change func(*Config)) (cs []*Cluster) {
		for i := range binds {
			cs = append(cs, start(i, change))
		}
		together(t, cs...)
		return cs
	}
	recorded := func(c *Config) { c.Network = tapped{processFor(n, c.Bind), &x} }
	cs := all(recorded)
	for range 2 {
		kill(cs[2])
		together(t, cs[:2]...)
		cs[2] = start(2, recorded)
		together(t, cs...)
	}
	time.Sleep(10 * time.Second) // virtual
	for _, c := range cs {
		c.Close()
	}
	kinds := map[string]int{}
	for _, r := range x.all {
		kinds[r.to.Network()]++
	}
	if kinds["udp"] < 100 || kinds["tcp"] < 3 {
		t.Fatalf("recorded: %v", kinds)
	}

	var log logged.Log
	cs = all(func(c *Config) { unhurried(c); c.Logger = log.Logger() })
	held := put(t, cs[2], 1, resource.Attrs{"type": "held"})
	log.Reset()
	stranger := n.AddHost("").Start()
	for range 5 {
		x.replay(t, stranger)
		for _, c := range cs[:2] {
			finds(t, c, resource.Match{"type": "held"}, held)
			denies(t, c, resource.Match{"type": "nobody's"})
		}
	}
	if s := log.String(); strings.Contains(s, "alive=false") {
		t.Errorf("after recorded gossip was sent again:\n%s", s)
	}
}
