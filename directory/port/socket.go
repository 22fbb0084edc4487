package port

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
	"golang.org/x/sys/unix"
)

const (
	readBatch  = 16   // datagrams one system call reads
	writeBatch = 64   // likewise, writes
	roomEach   = 2048 // for one datagram; a longer one is none of ours
	kernelRoom = 4 << 20
)

// A batcher reads and writes many datagrams with one system call. Both packages
// of x/net have one, over the same type of message.
type batcher interface {
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	WriteBatch(ms []ipv4.Message, flags int) (int, error)
}

// socket is a UDP socket that is not in the runtime's poller: who reads it asks
// it, or the Poller it is in. It implements subsys.Source.
type socket struct {
	net.UDPConn // nothing: what x/net knows a UDP socket by
	fd          int
	is4         bool
	io          batcher
	ms          []ipv4.Message
	handle      func(b []byte, from *net.UDPAddr)
	wmu         sync.RWMutex // against closing while writing
	closed      bool
}

// raw lets x/net call upon the descriptor. It never waits.
type raw struct{ fd int }

func (r raw) Control(f func(uintptr)) error    { f(uintptr(r.fd)); return nil }
func (r raw) Read(f func(uintptr) bool) error  { f(uintptr(r.fd)); return nil }
func (r raw) Write(f func(uintptr) bool) error { f(uintptr(r.fd)); return nil }

// SyscallConn shadows that of the empty UDPConn.
func (s *socket) SyscallConn() (syscall.RawConn, error) { return raw{s.fd}, nil }

func newSocket(at *net.UDPAddr, shared bool) (*socket, error) {
	s := &socket{is4: at.IP.To4() != nil}
	family, to := unix.AF_INET6, unix.Sockaddr(nil)
	if s.is4 {
		family = unix.AF_INET
		to = &unix.SockaddrInet4{Port: at.Port, Addr: [4]byte(at.IP.To4())}
	} else {
		sa := &unix.SockaddrInet6{Port: at.Port}
		copy(sa.Addr[:], at.IP.To16())
		if at.Zone != "" {
			ifi, err := net.InterfaceByName(at.Zone)
			if err != nil {
				return nil, err
			}
			sa.ZoneId = uint32(ifi.Index)
		}
		to = sa
	}
	var err error
	if s.fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, kernelRoom) // as much as the kernel grants
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, kernelRoom)
	if shared {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err := unix.Bind(s.fd, to); err != nil {
		unix.Close(s.fd)
		return nil, os.NewSyscallError("bind", err)
	}
	if s.is4 {
		s.io = ipv4.NewPacketConn(s)
	} else {
		s.io = ipv6.NewPacketConn(s)
	}
	s.ms = make([]ipv4.Message, readBatch)
	room := make([]byte, readBatch*roomEach)
	for i := range s.ms {
		s.ms[i].Buffers = [][]byte{room[i*roomEach : (i+1)*roomEach : (i+1)*roomEach]}
	}
	return s, nil
}

// Ready implements subsys.Source.
func (s *socket) Ready(on subsys.Readiness) (handled int, again bool) {
	for range 8 {
		n, err := s.io.ReadBatch(s.ms, unix.MSG_DONTWAIT)
		if err != nil {
			// EAGAIN; else what the network said of something sent before.
			return handled, !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EBADF)
		}
		for i := range n {
			m := &s.ms[i]
			if from, ok := m.Addr.(*net.UDPAddr); ok && m.Flags&unix.MSG_TRUNC == 0 {
				s.handle(m.Buffers[0][:m.N], from)
			}
		}
		handled += n
		if n < len(s.ms) {
			return handled, false
		}
	}
	return handled, true // others want to be read as well
}

// join makes a socket that hears what is sent to the group, and lets s send
// there, over the interface that has the address ip.
func (s *socket) join(group *net.UDPAddr, ip net.IP) (*socket, error) {
	ifi, err := interfaceOf(ip)
	if err != nil {
		return nil, err
	}
	if group.IP.To4() != nil != s.is4 {
		return nil, fmt.Errorf("%s and the port are of different families", group.IP)
	}
	at := *group
	if !group.IP.IsMulticast() { // a broadcast address
		at.IP = net.IPv4zero
	}
	g, err := newSocket(&at, true)
	if err != nil {
		return nil, err
	}
	switch {
	case !group.IP.IsMulticast():
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1))
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
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return &all[i], nil
			}
		}
	}
	return nil, fmt.Errorf("no interface has the address %s", ip)
}

func (s *socket) close() {
	s.wmu.Lock()
	defer s.wmu.Unlock()
	if !s.closed {
		s.closed = true
		unix.Close(s.fd)
	}
}

// writer gathers datagrams for one system call.
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

func (w *writer) next(to *net.UDPAddr) *ipv4.Message {
	m := &w.ms[w.n]
	m.Addr = to
	w.n++
	return m
}

// flush sends what was gathered. A datagram that the kernel refuses does not
// keep back those behind it.
func (w *writer) flush(s *socket) (err error) {
	ms := w.ms[:w.n]
	w.n = 0
	s.wmu.RLock()
	defer s.wmu.RUnlock()
	if s.closed {
		return ErrClosed
	}
	for len(ms) > 0 {
		n, e := s.io.WriteBatch(ms, unix.MSG_DONTWAIT)
		if e != nil {
			err = e
		}
		if n <= 0 {
			n = 1
		}
		ms = ms[n:]
	}
	return err
}

// write sends one datagram.
func (s *socket) write(b []byte, to *net.UDPAddr) error {
	w := writers.Get().(*writer)
	defer writers.Put(w)
	m := w.next(to)
	m.Buffers[0] = append(m.Buffers[0][:0], b...)
	return w.flush(s)
}
