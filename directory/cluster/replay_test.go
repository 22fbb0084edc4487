// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/binary"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl/resource"
	"golang.org/x/sys/unix"
)

// A tap records what is sent over the loopback interface to some ports.
type tap struct {
	fd    int
	ports []uint16
	stop  chan struct{}
	done  sync.WaitGroup

	mu        sync.Mutex
	datagrams map[uint16][][]byte
	streams   map[uint16]map[uint16]*[]byte // by port, then by the sender's port
}

func newTap(t *testing.T, ports ...uint16) *tap {
	t.Helper()
	const all = unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8 // in the byte order of the network
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all)
	if err == unix.EPERM {
		t.Skip("only root may record what is sent")
	}
	if err != nil {
		t.Fatal(err)
	}
	lo, err := net.InterfaceByName("lo")
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: lo.Index})
	}
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20_000})
	}
	if err != nil {
		t.Fatal(err)
	}
	x := &tap{fd: fd, ports: ports, stop: make(chan struct{}), datagrams: map[uint16][][]byte{}, streams: map[uint16]map[uint16]*[]byte{}}
	x.done.Go(x.listen)
	return x
}

func (x *tap) listen() {
	b := make([]byte, 1<<17)
	for {
		n, from, err := unix.Recvfrom(x.fd, b, 0)
		select {
		case <-x.stop:
			return
		default:
		}
		// An outgoing packet is seen again as an incoming one.
		if err == nil && from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING {
			x.heard(b[:n])
		}
	}
}

// heard records one packet of IPv4.
func (x *tap) heard(b []byte) {
	if len(b) < 20 || len(b) < int(b[0]&15)*4+20 && b[9] == unix.IPPROTO_TCP {
		return
	}
	head := int(b[0]&15) * 4
	p := b[head:min(len(b), int(binary.BigEndian.Uint16(b[2:])))]
	src, dst := binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:])
	if !slices.Contains(x.ports, dst) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch b[9] {
	case unix.IPPROTO_UDP:
		x.datagrams[dst] = append(x.datagrams[dst], slices.Clone(p[8:]))
	case unix.IPPROTO_TCP:
		if x.streams[dst] == nil {
			x.streams[dst] = map[uint16]*[]byte{}
		}
		if x.streams[dst][src] == nil {
			x.streams[dst][src] = new([]byte)
		}
		// No segment is lost on the loopback interface.
		*x.streams[dst][src] = append(*x.streams[dst][src], p[int(p[12]>>4)*4:]...)
	}
}

func (x *tap) end() {
	close(x.stop)
	x.done.Wait()
	unix.Close(x.fd)
}

// replay sends all that was recorded again, each to the port that it was sent to.
func (x *tap) replay(t *testing.T) {
	t.Helper()
	for port, all := range x.datagrams {
		nc, err := net.Dial("udp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range all {
			_, _ = nc.Write(b)
			if i%64 == 63 {
				time.Sleep(time.Millisecond) // or the kernel drops what is too much at once
			}
		}
		nc.Close()
	}
	for port, all := range x.streams {
		for _, b := range all {
			nc, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = nc.Write(*b)
			nc.Close()
		}
	}
}

// All that members of a cluster with a key send each other is recorded, reports of deaths among it.
// It is sent again after all members were started anew with the same numbers, at the same
// addresses. No member is then taken for dead, or believed to leave, and what they have is found
// all the time.
func TestReplayedGossip(t *testing.T) {
	var binds []string
	var ports []uint16
	for range 3 {
		at := freePort(t)
		a, err := net.ResolveUDPAddr("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		binds, ports = append(binds, at), append(ports, uint16(a.Port))
	}
	start := func(i int, log *lines) *Cluster {
		return member(t, resource.NodeID(i+1), func(c *Config) {
			c.Bind, c.Keys = binds[i], [][]byte{[]byte("0123456789abcdef")}
			c.Join = slices.Delete(slices.Clone(binds), i, i+1)
			if log != nil {
				unhurried(c)
				c.Logger = slog.New(slog.NewTextHandler(log, nil))
			}
		})
	}
	all := func(log *lines) (cs []*Cluster) {
		for i := range binds {
			cs = append(cs, start(i, log))
		}
		together(t, cs...)
		return cs
	}
	x := newTap(t, ports...)
	cs := all(nil)
	for range 2 {
		kill(cs[2])
		together(t, cs[:2]...)
		cs[2] = start(2, nil)
		together(t, cs...)
	}
	for _, c := range cs {
		c.Close()
	}
	x.end()
	if len(x.datagrams) != 3 || len(x.streams) == 0 {
		t.Fatalf("recorded: datagrams to %d ports, streams to %d", len(x.datagrams), len(x.streams))
	}

	log := new(lines)
	cs = all(log)
	held := put(t, cs[2], 1, resource.Attrs{"type": "held"})
	together(t, cs...)
	log.forget()
	for range 5 {
		x.replay(t)
		for _, c := range cs[:2] {
			finds(t, c, resource.Match{"type": "held"}, held)
			denies(t, c, resource.Match{"type": "nobody's"})
		}
	}
	if s := log.String(); strings.Contains(s, "alive=false") {
		t.Errorf("after recorded gossip was sent again:\n%s", s)
	}
}
