// SPDX-License-Identifier: Apache-2.0

package simnet

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// mostQueued limits the datagrams that a packetConn holds for its reader. Further ones are lost.
const mostQueued = 4096

// A packetConn is a port for datagrams. It implements [net.PacketConn].
type packetConn struct {
	p        *Process
	at       *net.UDPAddr
	queue    []datagram
	news     sync.Cond
	isClosed bool
	reading  deadline
}

type datagram struct {
	b    []byte
	from *net.UDPAddr
}

// ListenPacket opens a port for datagrams at "" or HOST:PORT, as [Process.Listen] does.
func (p *Process) ListenPacket(addr string) (net.PacketConn, error) {
	n := p.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	port, err := p.portLocked(addr)
	if err == nil && port != 0 && p.host.packets[port] != nil {
		err = syscall.EADDRINUSE
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: "udp", Err: err}
	}
	port = p.host.freePortLocked(port)
	c := &packetConn{p: p, at: net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.host.ip, port))}
	c.news.L = &n.mu
	p.host.packets[port] = c
	p.sockets[c] = struct{}{}
	return c, nil
}

func (c *packetConn) ReadFrom(b []byte) (int, net.Addr, error) {
	c.news.L.Lock()
	defer c.news.L.Unlock()
	for {
		switch {
		case c.isClosed:
			return 0, nil, c.opError("read", net.ErrClosed)
		case len(c.queue) > 0 && !c.p.isStopped:
			d := c.queue[0]
			c.queue = c.queue[1:]
			return copy(b, d.b), d.from, nil
		case c.reading.hasPassed():
			return 0, nil, c.opError("read", os.ErrDeadlineExceeded)
		}
		c.news.Wait()
	}
}

// WriteTo implements [net.PacketConn]. It never blocks. A datagram that is lost is no error.
func (c *packetConn) WriteTo(b []byte, to net.Addr) (int, error) {
	n := c.p.host.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.isClosed {
		return 0, c.opError("write", net.ErrClosed)
	}
	at, ok := to.(*net.UDPAddr)
	if !ok {
		return 0, c.opError("write", syscall.EINVAL)
	}
	h := n.hostLocked(at.IP.String())
	if h == nil || h != c.p.host && n.rnd.Float64() < n.loss {
		return len(b), nil
	}
	d := datagram{append([]byte(nil), b...), c.at}
	arrive := func() {
		if r := h.packets[uint16(at.Port)]; r != nil && n.isOpenLocked(c.p.host, h) && len(r.queue) < mostQueued {
			r.queue = append(r.queue, d)
			r.news.Broadcast()
		}
	}
	delay := n.drawDelayLocked(c.p.host, h)
	if delay == 0 {
		arrive()
		return len(b), nil
	}
	time.AfterFunc(delay, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		arrive()
	})
	return len(b), nil
}

func (c *packetConn) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: "udp", Source: c.at, Err: err}
}

func (c *packetConn) Close() error {
	c.news.L.Lock()
	defer c.news.L.Unlock()
	delete(c.p.sockets, c)
	c.killLocked()
	return nil
}

func (c *packetConn) wake() { c.news.Broadcast() }

func (c *packetConn) killLocked() {
	if c.isClosed {
		return
	}
	c.isClosed = true
	c.reading.stop()
	delete(c.p.host.packets, uint16(c.at.Port))
	c.news.Broadcast()
}

func (c *packetConn) LocalAddr() net.Addr { return c.at }

func (c *packetConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

func (c *packetConn) SetReadDeadline(t time.Time) error {
	c.news.L.Lock()
	defer c.news.L.Unlock()
	if !c.isClosed {
		c.reading.set(t, &c.news)
	}
	return nil
}

// SetWriteDeadline implements [net.PacketConn]. Writes never block.
func (c *packetConn) SetWriteDeadline(time.Time) error { return nil }
