// SPDX-License-Identifier: Apache-2.0

package simnet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// ErrKilled is returned by the sockets of a process that was killed, or whose machine has crashed.
var ErrKilled = errors.New("simnet: the process was killed")

// A Network joins hosts. Make it with New.
type Network struct {
	mu      sync.Mutex
	rnd     *rand.Rand
	hosts   []*Host
	least   time.Duration
	most    time.Duration
	loss    float64
	cut     map[path]bool
	halves  map[*half]struct{}   // of connections that are open
	exposed map[string]*exposure // by key
	mended  chan struct{}        // closed and replaced when a path may have become open
}

// A path leads from one host to another.
type path struct{ from, to *Host }

// New returns a network without hosts, delay and faults. What it draws depends on seed.
func New(seed uint64) *Network {
	return &Network{
		rnd: rand.New(rand.NewPCG(seed, 0x73696d6e6574)), cut: map[path]bool{}, halves: map[*half]struct{}{}, exposed: map[string]*exposure{}, mended: make(chan struct{}),
	}
}

// SetDelay sets how long bytes and datagrams take: a time between least and most, drawn anew for
// each datagram and each write. Datagrams may overtake each other. Within a host there is no delay.
func (n *Network) SetDelay(least, most time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.least, n.most = least, max(least, most)
}

// SetLoss sets which part of the datagrams between hosts is lost, from 0 to 1.
func (n *Network) SetLoss(part float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loss = part
}

// Cut lets nothing pass from one host to another. The other direction stays as it is.
func (n *Network) Cut(from, to *Host) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[path{from, to}] = true
}

// Heal ends all effects of Cut.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cut)
	n.mendLocked()
}

// Break breaks the open connections between two hosts when bytes more bytes have arrived at the
// host to. Their ends read what has arrived, and then an error. With 0 the connections break at
// once. Break returns how many connections it has found.
func (n *Network) Break(from, to *Host, bytes int64) (found int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for h := range n.halves {
		if h.from.host == from && h.to.host == to {
			found++
			h.breakAfterLocked(bytes)
		}
	}
	return found
}

// mendLocked lets go on what waits for a path. mu must be held.
func (n *Network) mendLocked() {
	close(n.mended)
	n.mended = make(chan struct{})
	for h := range n.halves {
		h.arriveLocked()
	}
}

// isOpenLocked reports whether something can pass from one host to another. mu must be held.
func (n *Network) isOpenLocked(from, to *Host) bool {
	return from == to || !n.cut[path{from, to}] && !from.isStill() && !to.isStill()
}

// drawDelayLocked returns a delay between two hosts. mu must be held.
func (n *Network) drawDelayLocked(from, to *Host) time.Duration {
	if from == to || n.most == 0 {
		return 0
	}
	return n.least + time.Duration(n.rnd.Int64N(int64(n.most-n.least)+1))
}

// A Host is a machine. Network.AddHost makes it.
type Host struct {
	n         *Network
	name      string
	ip        netip.Addr
	isStopped bool
	isDown    bool // crashed, and no process was started since
	processes map[*Process]struct{}
	listeners map[uint16]*listener
	packets   map[uint16]*packetConn
	lastPort  uint16
}

// AddHost adds a machine. Its address is 10.0.0.1 for the first host, and so on.
func (n *Network) AddHost(name string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := len(n.hosts) + 1
	h := &Host{
		n: n, name: name, ip: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), lastPort: 30000,
		processes: map[*Process]struct{}{}, listeners: map[uint16]*listener{}, packets: map[uint16]*packetConn{},
	}
	n.hosts = append(n.hosts, h)
	return h
}

// Host returns the host with a name or an address, or nil if there is none.
func (n *Network) Host(at string) *Host {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.hostLocked(at)
}

// Name returns the name that the host was given.
func (h *Host) Name() string { return h.name }

// IP returns the address of the host.
func (h *Host) IP() netip.Addr { return h.ip }

func (h *Host) isStill() bool { return h.isStopped || h.isDown }

// Stop lets the machine stand still: nothing leaves it, and nothing arrives.
func (h *Host) Stop() {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	h.isStopped = true
}

// Continue ends Stop.
func (h *Host) Continue() {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	h.isStopped = false
	h.n.mendLocked()
}

// Crash lets the machine lose power: its processes are killed, and no other machine is told. When a
// process is started there again, the connections of before break.
func (h *Host) Crash() {
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	h.isDown = true
	for p := range h.processes {
		p.killLocked()
	}
}

// Start starts a process.
func (h *Host) Start() *Process {
	n := h.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if h.isDown {
		for f := range n.halves { // the machine knows nothing of its former connections
			if f.from.host == h || f.to.host == h {
				f.breakAfterLocked(0)
			}
		}
		h.isDown, h.isStopped = false, false
		n.mendLocked()
	}
	p := &Process{host: h, sockets: map[socket]struct{}{}}
	h.processes[p] = struct{}{}
	return p
}

// freePortLocked returns port, or a port that no socket of the host has if port is 0.
func (h *Host) freePortLocked(port uint16) uint16 {
	for port == 0 {
		h.lastPort = max(h.lastPort+1, 30000)
		if h.listeners[h.lastPort] == nil && h.packets[h.lastPort] == nil {
			port = h.lastPort
		}
	}
	return port
}

// A Process owns sockets on a host. Host.Start makes it.
type Process struct {
	host      *Host
	sockets   map[socket]struct{}
	isKilled  bool
	isStopped bool
}

// A socket is what the end of a process closes. Network.mu is held.
type socket interface {
	killLocked()
	// wake lets the readers of the socket look again.
	wake()
}

// Host returns the machine of the process.
func (p *Process) Host() *Host { return p.host }

// Stop lets the process receive nothing: its kernel answers, and the process reads no bytes, no
// datagrams and no connections. Its goroutines run on, because they share the test's process, and
// what they send goes out.
func (p *Process) Stop() { p.setStopped(true) }

// Continue ends Stop.
func (p *Process) Continue() { p.setStopped(false) }

func (p *Process) setStopped(is bool) {
	p.host.n.mu.Lock()
	defer p.host.n.mu.Unlock()
	p.isStopped = is
	for s := range p.sockets {
		s.wake()
	}
}

// Kill ends the process as a kill does: its sockets are closed. What they have sent arrives. What
// the process does afterwards fails with ErrKilled.
func (p *Process) Kill() {
	p.host.n.mu.Lock()
	defer p.host.n.mu.Unlock()
	p.killLocked()
}

func (p *Process) killLocked() {
	p.isKilled = true
	delete(p.host.processes, p)
	for s := range p.sockets {
		s.killLocked()
	}
	clear(p.sockets)
}

// Listen opens a port for connections at "", PORT, or HOST:PORT with the host's address. The port 0
// is any free one.
func (p *Process) Listen(addr string) (net.Listener, error) { return p.listen(addr) }

func (p *Process) listen(addr string) (*listener, error) {
	n := p.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	port, err := p.portLocked(addr)
	if err == nil && port != 0 && p.host.listeners[port] != nil {
		err = syscall.EADDRINUSE
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: err}
	}
	l := &listener{p: p, port: p.host.freePortLocked(port)}
	l.news.L = &n.mu
	p.host.listeners[l.port] = l
	p.sockets[l] = struct{}{}
	return l, nil
}

// portLocked returns the port in an address of the process's host.
func (p *Process) portLocked(addr string) (uint16, error) {
	if p.isKilled {
		return 0, ErrKilled
	}
	if addr == "" {
		return 0, nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, err
	}
	at, err := netip.ParseAddrPort(net.JoinHostPort(p.host.ip.String(), port))
	if err != nil {
		return 0, err
	}
	if ip, err := netip.ParseAddr(host); host != "" && (err != nil || ip.Unmap() != p.host.ip) {
		return 0, syscall.EADDRNOTAVAIL
	}
	return at.Port(), nil
}

// DialContext connects to HOST:PORT, where HOST is the address or the name of a host. While there
// is no path, it waits until ctx ends. If nothing listens there, the error matches
// syscall.ECONNREFUSED.
func (p *Process) DialContext(ctx context.Context, addr string) (net.Conn, error) {
	e, err := p.dial(ctx, addr)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: fmt.Errorf("%s: %w", addr, err)}
	}
	return e, nil
}

func (p *Process) dial(ctx context.Context, addr string) (*tcpConn, error) {
	n := p.host.n
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	to := n.hostLocked(host)
	if to == nil {
		return nil, syscall.EHOSTUNREACH
	}
	at, err := netip.ParseAddrPort(net.JoinHostPort(to.ip.String(), port))
	if err != nil {
		return nil, err
	}
	for delay := n.drawDelayLocked(p.host, to) + n.drawDelayLocked(to, p.host); ; { // a packet to the peer and one back
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		switch {
		case p.isKilled:
			return nil, ErrKilled
		case delay > 0:
			n.mu.Unlock()
			sleep(ctx, delay)
			delay = 0
			n.mu.Lock()
		case n.isOpenLocked(p.host, to) && n.isOpenLocked(to, p.host):
			l := to.listeners[at.Port()]
			if l == nil {
				return nil, syscall.ECONNREFUSED
			}
			near, far := n.connectLocked(p, l)
			l.queue = append(l.queue, far)
			l.news.Broadcast()
			return near, nil
		default:
			mended := n.mended
			n.mu.Unlock()
			select {
			case <-mended:
			case <-ctx.Done():
			}
			n.mu.Lock()
		}
	}
}

// hostLocked returns the host with an address or a name.
func (n *Network) hostLocked(at string) *Host {
	ip, _ := netip.ParseAddr(at)
	for _, h := range n.hosts {
		if h.name == at || h.ip == ip.Unmap() {
			return h
		}
	}
	return nil
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// A listener is a port for connections.
type listener struct {
	p        *Process
	port     uint16
	queue    []*tcpConn // connections that no goroutine has accepted yet
	news     sync.Cond
	isClosed bool
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.accept()
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (l *listener) accept() (*tcpConn, error) {
	n := l.p.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	for (len(l.queue) == 0 || l.p.isStopped) && !l.isClosed {
		l.news.Wait()
	}
	if l.isClosed {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: net.ErrClosed}
	}
	c := l.queue[0]
	l.queue = l.queue[1:]
	return c, nil
}

func (l *listener) Addr() net.Addr { return l.p.host.tcpAddr(l.port) }

func (h *Host) tcpAddr(port uint16) net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(h.ip, port))
}

// Close implements [net.Listener]. It closes the connections that no goroutine has accepted.
func (l *listener) Close() error {
	n := l.p.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(l.p.sockets, l)
	l.killLocked()
	return nil
}

func (l *listener) wake() { l.news.Broadcast() }

func (l *listener) killLocked() {
	if l.isClosed {
		return
	}
	l.isClosed = true
	delete(l.p.host.listeners, l.port)
	for _, c := range l.queue {
		c.killLocked()
	}
	l.queue = nil
	l.news.Broadcast()
}
