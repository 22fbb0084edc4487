// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

const (
	readBatch        = 16   // datagrams that one system call reads
	writeBatch       = 64   // datagrams that one system call writes
	datagramSize     = 2048 // bytes for one datagram; a longer one is not a member's
	socketBufferSize = 4 << 20
)

// A batcher reads and writes many datagrams with one system call. Both packages of x/net have one,
// with the same type of message.
type batcher interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteBatch(ms []ipv4.Message, flags int) (int, error)
}

// A socket is a UDP socket that is not in the Go runtime's poller. Its reader calls Ready, or the
// Poller that it is in does. It implements subsys.Source.
type socket struct {
	net.UDPConn // empty; x/net recognizes a UDP socket by it
	fd          int
	at          *net.UDPAddr
	is4         bool
	more        bool // the last Ready found a datagram
	io          batcher
	ms          []ipv4.Message
	handle      func(b []byte, from *net.UDPAddr)
	rmu         sync.Mutex   // held by the goroutine that reads
	wmu         sync.RWMutex // held to write, and exclusively to close
	closed      bool
	packets     net.PacketConn // of a Network, in place of fd and io; nil: of the kernel
	to          *net.UDPAddr   // the address it is connected to; nil: not connected
	source      source         // the address that the last datagram came from
}

// raw lets x/net use the descriptor. It never waits.
type raw struct{ fd int }

func (r raw) Control(f func(uintptr)) error    { f(uintptr(r.fd)); return nil }
func (r raw) Read(f func(uintptr) bool) error  { f(uintptr(r.fd)); return nil }
func (r raw) Write(f func(uintptr) bool) error { f(uintptr(r.fd)); return nil }

// SyscallConn shadows the method of the empty UDPConn.
func (s *socket) SyscallConn() (syscall.RawConn, error) { return raw{s.fd}, nil }

// newSocket binds a UDP socket. shared lets several sockets bind one address, as those of a group
// do.
func newSocket(at *net.UDPAddr, shared bool) (*socket, error) {
	s := &socket{at: at, is4: at.IP.To4() != nil}
	family := syscall.AF_INET6
	if s.is4 {
		family = syscall.AF_INET
	}
	to, err := s.sockaddr(at)
	if err != nil {
		return nil, err
	}
	if s.fd, err = openSocket(family); err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	_ = syscall.SetsockoptInt(descriptor(s.fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, socketBufferSize) // as much as the kernel grants
	_ = syscall.SetsockoptInt(descriptor(s.fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, socketBufferSize)
	if shared {
		_ = syscall.SetsockoptInt(descriptor(s.fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	if err := syscall.Bind(descriptor(s.fd), to); err != nil {
		closeSocket(s.fd)
		return nil, os.NewSyscallError("bind", err)
	}
	if s.is4 {
		s.io = ipv4.NewPacketConn(s)
	} else {
		s.io = ipv6.NewPacketConn(s)
	}
	s.ms = make([]ipv4.Message, readBatch)
	buf := make([]byte, readBatch*datagramSize)
	for i := range s.ms {
		s.ms[i].Buffers = [][]byte{buf[i*datagramSize : (i+1)*datagramSize : (i+1)*datagramSize]}
	}
	return s, nil
}

// sockaddr returns an address as the kernel has it, in the family of s.
func (s *socket) sockaddr(a *net.UDPAddr) (syscall.Sockaddr, error) {
	if s.is4 {
		ip := a.IP.To4()
		if ip == nil {
			return nil, fmt.Errorf("%s is no IPv4 address", a.IP)
		}
		return &syscall.SockaddrInet4{Port: a.Port, Addr: [4]byte(ip)}, nil
	}
	sa := &syscall.SockaddrInet6{Port: a.Port}
	copy(sa.Addr[:], a.IP.To16())
	if a.Zone != "" {
		ifi, err := net.InterfaceByName(a.Zone)
		if err != nil {
			return nil, err
		}
		sa.ZoneId = uint32(ifi.Index)
	}
	return sa, nil
}

// LocalAddr shadows the method of the empty UDPConn: x/net puts the address into errors.
func (s *socket) LocalAddr() net.Addr { return s.at }

// Ready implements subsys.Source. Mostly there is one datagram or none, and a polling goroutine
// asks all the time. So the first datagram is read by itself, which costs half as much. Batches
// begin if another one is right behind it.
//
// If another goroutine is reading, Ready returns at once. That goroutine either reads until nothing
// is left, or adds the socket to the Poller again, which reports what is there to read.
func (s *socket) Ready(on subsys.Readiness) (handled int, again bool) {
	if !s.rmu.TryLock() {
		return 0, false
	}
	from, n, e := s.readOne()
	if e == syscall.EAGAIN { // the most frequent result for a polling goroutine
		s.more = false
		s.rmu.Unlock()
		return 0, false
	}
	defer s.rmu.Unlock()
	if e != 0 {
		s.more = false
		return 0, mayHaveMore(e)
	}
	if n <= datagramSize {
		s.handle(s.ms[0].Buffers[0][:n], from)
	}
	if !s.more {
		s.more = true
		return 1, true
	}
	return s.readMore()
}

// readPackets reads a socket of a Network until it is closed.
func (s *socket) readPackets() {
	var b [datagramSize]byte
	for {
		n, from, err := s.packets.ReadFrom(b[:])
		if err != nil {
			return
		}
		s.handle(b[:n], from.(*net.UDPAddr))
	}
}

// readMore reads the datagrams behind the first one.
func (s *socket) readMore() (handled int, again bool) {
	handled = 1
	for range 8 {
		n, err := s.readBatch()
		if err != nil {
			// EAGAIN, or an error that the network reported about an earlier datagram.
			s.more = mayHaveMore(err)
			return handled, s.more
		}
		for i := range n {
			m := &s.ms[i]
			if from, ok := m.Addr.(*net.UDPAddr); ok && m.Flags&truncated == 0 {
				s.handle(m.Buffers[0][:m.N], from)
			}
		}
		handled += n
	}
	return handled, true // other sockets have to be read too
}

// mayHaveMore reports whether there may be more to read behind an error.
func mayHaveMore(err error) bool {
	return !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EBADF)
}

// writeOne writes one datagram.
func (s *socket) writeOne(b []byte, to *net.UDPAddr) error {
	if s.packets != nil {
		_, err := s.packets.WriteTo(b, to)
		return err
	}
	if to == s.to {
		for try := 0; ; try++ {
			err := s.write(b)
			if err != syscall.ECONNREFUSED || try > 0 { // an earlier datagram was refused
				return err
			}
		}
	}
	return s.sendTo(b, to)
}

// connect makes the socket send to one address alone, and receive from it alone. If that fails, the
// socket stays unconnected.
func (s *socket) connect(to *net.UDPAddr) {
	if sa, err := s.sockaddr(to); err == nil && syscall.Connect(descriptor(s.fd), sa) == nil {
		s.to = to
	}
}

// join makes a socket that receives what is sent to the group, and lets s send there, over the
// interface with the address ip.
func (s *socket) join(group *net.UDPAddr, ip net.IP) (*socket, error) {
	ifi, err := interfaceOf(ip)
	if err != nil {
		return nil, err
	}
	if group.IP.To4() != nil != s.is4 {
		return nil, fmt.Errorf("%s and the port are of different families", group.IP)
	}
	if !s.is4 && !group.IP.IsMulticast() {
		return nil, fmt.Errorf("%s: IPv6 has no broadcast", group.IP)
	}
	at := *group
	if !group.IP.IsMulticast() { // a broadcast address
		at.IP = net.IPv4zero
	} else if group.IP.IsLinkLocalMulticast() && !s.is4 && at.Zone == "" {
		at.Zone = ifi.Name // each link has such a group
	}
	g, err := newSocket(&at, true)
	if err != nil {
		return nil, err
	}
	switch {
	case !group.IP.IsMulticast():
		err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(descriptor(s.fd), syscall.SOL_SOCKET, syscall.SO_BROADCAST, 1))
	case s.is4:
		out := s.io.(*ipv4.PacketConn)
		err = errors.Join(g.io.(*ipv4.PacketConn).JoinGroup(ifi, group),
			out.SetMulticastInterface(ifi), out.SetMulticastLoopback(true), out.SetMulticastTTL(1))
	default:
		out := s.io.(*ipv6.PacketConn)
		err = errors.Join(g.io.(*ipv6.PacketConn).JoinGroup(ifi, group),
			out.SetMulticastInterface(ifi), out.SetMulticastLoopback(true), out.SetMulticastHopLimit(1))
	}
	if err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

// interfaceOf returns the interface that has the address ip.
func interfaceOf(ip net.IP) (*net.Interface, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for i := range all {
		addrs, err := all[i].Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && (n.IP.Equal(ip) || ip.IsLoopback() && n.Contains(ip)) {
				return &all[i], nil
			}
		}
	}
	return nil, fmt.Errorf("no interface has the address %s", ip)
}

// close closes the descriptor once, when no goroutine writes.
func (s *socket) close() {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if !s.closed {
		s.closed = true
		if s.packets != nil {
			s.packets.Close()
			return
		}
		closeSocket(s.fd)
	}
}

// A writer gathers datagrams for one system call.
type writer struct {
	ms    []ipv4.Message
	n     int
	plain []byte
}

var writers = sync.Pool{New: func() any {
	w := &writer{ms: make([]ipv4.Message, writeBatch)}
	for i := range w.ms {
		w.ms[i].Buffers = [][]byte{nil}
	}
	return w
}}

// next adds a datagram to the address to, and returns its message. The caller sets the first
// buffer. w must not be full.
func (w *writer) next(to *net.UDPAddr) *ipv4.Message {
	m := &w.ms[w.n]
	m.Addr = to
	w.n++
	return m
}

// flush sends the datagrams that were gathered. A datagram that the kernel refuses does not keep
// back those behind it. flush returns how many were sent, and their bytes.
func (w *writer) flush(s *socket) (sent, bytes int, err error) {
	ms := w.ms[:w.n]
	w.n = 0
	s.wmu.RLock()
	defer s.wmu.RUnlock()
	if s.closed {
		return 0, 0, ErrClosed
	}
	for len(ms) > 0 {
		var n int
		var e error
		if len(ms) > 1 && s.packets == nil {
			n, e = s.writeBatch(ms)
		} else if e = s.writeOne(ms[0].Buffers[0], ms[0].Addr.(*net.UDPAddr)); e == nil {
			n = 1
		}
		if e != nil {
			err = e
		}
		for _, m := range ms[:max(n, 0)] {
			sent++
			bytes += len(m.Buffers[0])
		}
		ms = ms[max(n, 1):]
	}
	return sent, bytes, err
}
