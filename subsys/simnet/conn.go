// SPDX-License-Identifier: Apache-2.0

package simnet

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// window limits the bytes of one direction of a connection that are under way or not read.
const window = 256 << 10

// mostSegment is how many bytes travel together over a network with delays.
const mostSegment = 4 << 10

// A half is one direction of a connection.
//
//	from ──write──► flight ──arrive──► arrived ──read──► to
//
// The end of the direction, if from is closed, arrives behind the bytes.
type half struct {
	n        *Network
	from, to *tcpConn
	flight   []segment // in order
	flying   int       // bytes of flight
	arrived  [][]byte  // what to has not read
	unread   int       // bytes of arrived
	hasEnded bool      // the end has arrived: no more bytes come
	breaksIn int64     // the connection breaks when so many bytes more have arrived; below 0: it does not
	isDue    bool      // a timer will call arrive
}

// A segment is the bytes of one write, or the end of the direction.
type segment struct {
	b   []byte
	end bool
	at  time.Time // when it arrives
}

// A tcpConn is one end of a connection. It implements [net.Conn].
type tcpConn struct {
	p             *Process
	local, remote net.Addr
	host          *Host
	in, out       *half
	changed       sync.Cond // broadcast when something of the connection has changed
	isEnding      bool      // the end of out was sent
	isClosed      bool
	err           error     // the connection has broken
	heard         time.Time // when the peer's machine acknowledged something last
	reading       deadline
	writing       deadline
}

// connectLocked makes a connection from p to l.
func (n *Network) connectLocked(p *Process, l *listener) (near, far *tcpConn) {
	now := time.Now()
	near = &tcpConn{p: p, host: p.host, local: p.host.tcpAddr(p.host.freePortLocked(0)), remote: l.Addr(), heard: now}
	far = &tcpConn{p: l.p, host: l.p.host, local: near.remote, remote: near.local, heard: now}
	near.out = &half{n: n, from: near, to: far, breaksIn: -1}
	far.out = &half{n: n, from: far, to: near, breaksIn: -1}
	near.in, far.in = far.out, near.out
	for _, c := range []*tcpConn{near, far} {
		c.changed.L = &n.mu
		c.p.sockets[c] = struct{}{}
		n.halves[c.out] = struct{}{}
	}
	return near, far
}

// sendLocked puts a segment on its way, in parts if it is large.
func (h *half) sendLocked(s segment) {
	if !h.n.isLiveLocked(h) { // the other end is closed, and discards everything
		return
	}
	if h.n.most > 0 && h.from.host != h.to.host {
		for len(s.b) > mostSegment {
			h.departLocked(segment{b: s.b[:mostSegment]})
			s.b = s.b[mostSegment:]
		}
	}
	h.departLocked(s)
}

// departLocked puts a segment on its way.
func (h *half) departLocked(s segment) {
	s.at = time.Now().Add(h.n.drawDelayLocked(h.from.host, h.to.host))
	if k := len(h.flight); k > 0 && h.flight[k-1].at.After(s.at) {
		s.at = h.flight[k-1].at
	}
	h.flight = append(h.flight, s)
	h.flying += len(s.b)
	h.arriveLocked()
}

// isLiveLocked reports whether a half still carries anything.
func (n *Network) isLiveLocked(h *half) bool {
	_, is := n.halves[h]
	return is
}

// arriveLocked delivers the segments whose time has come, and arranges the delivery of the others.
// A segment whose path is cut waits for mendLocked.
func (h *half) arriveLocked() {
	if len(h.flight) == 0 || !h.n.isOpenLocked(h.from.host, h.to.host) {
		return
	}
	now := time.Now()
	for len(h.flight) > 0 && !h.flight[0].at.After(now) {
		s := h.flight[0]
		h.flight = h.flight[1:]
		h.flying -= len(s.b)
		if h.breaksIn >= 0 && int64(len(s.b)) >= h.breaksIn {
			h.acceptLocked(s.b[:h.breaksIn])
			h.breakLocked()
			return
		}
		if h.breaksIn > 0 {
			h.breaksIn -= int64(len(s.b))
		}
		h.acceptLocked(s.b)
		h.hasEnded = h.hasEnded || s.end
		h.to.changed.Broadcast()
		if h.n.isOpenLocked(h.to.host, h.from.host) {
			h.from.heard = now
		}
		h.from.changed.Broadcast()
	}
	switch {
	case h.hasEnded:
		delete(h.n.halves, h)
	case len(h.flight) > 0 && !h.isDue:
		h.isDue = true
		time.AfterFunc(h.flight[0].at.Sub(now), func() {
			h.n.mu.Lock()
			defer h.n.mu.Unlock()
			h.isDue = false
			h.arriveLocked()
		})
	}
}

// acceptLocked gives bytes to the receiving end, unless that is closed.
func (h *half) acceptLocked(b []byte) {
	if !h.to.isClosed && len(b) > 0 {
		h.arrived = append(h.arrived, b)
		h.unread += len(b)
	}
}

// breakAfterLocked breaks the connection when bytes more bytes have arrived.
func (h *half) breakAfterLocked(bytes int64) {
	if bytes == 0 {
		h.breakLocked()
	} else {
		h.breaksIn = bytes
	}
}

// breakLocked breaks the connection at both ends. What is under way is lost.
func (h *half) breakLocked() {
	for _, c := range []*tcpConn{h.from, h.to} {
		if c.err == nil {
			c.err = syscall.ECONNRESET
		}
		c.out.flight, c.out.flying = nil, 0
		delete(h.n.halves, c.out)
		c.changed.Broadcast()
	}
}

// room returns how many bytes the direction can take.
func (h *half) room() int { return window - h.flying - h.unread }

func (c *tcpConn) Read(b []byte) (int, error) {
	c.changed.L.Lock()
	defer c.changed.L.Unlock()
	for {
		n, err := c.readLocked(b)
		if n > 0 || err != nil || len(b) == 0 {
			return n, c.opError("read", err)
		}
		if c.reading.hasPassed() {
			return 0, c.opError("read", os.ErrDeadlineExceeded)
		}
		c.changed.Wait()
	}
}

// readNow reads what has arrived. It returns 0 and nil if there is nothing to read yet.
func (c *tcpConn) readNow(b []byte) (n int, err error) {
	c.changed.L.Lock()
	defer c.changed.L.Unlock()
	return c.readLocked(b)
}

// readLocked reads what has arrived. It returns 0 and nil if there is nothing to read yet.
func (c *tcpConn) readLocked(b []byte) (n int, err error) {
	switch {
	case c.p.isKilled:
		return 0, ErrKilled
	case c.isClosed:
		return 0, net.ErrClosed
	case c.p.isStopped:
		return 0, nil
	case c.in.unread > 0:
		for n < len(b) && c.in.unread > 0 {
			first := &c.in.arrived[0]
			k := copy(b[n:], *first)
			n += k
			c.in.unread -= k
			if *first = (*first)[k:]; len(*first) == 0 {
				c.in.arrived = c.in.arrived[1:]
			}
		}
		c.in.from.changed.Broadcast()
		return n, nil
	case c.in.hasEnded:
		return 0, io.EOF
	}
	return 0, c.err
}

func (c *tcpConn) Write(b []byte) (n int, err error) {
	c.changed.L.Lock()
	defer c.changed.L.Unlock()
	for {
		if err := c.writeErrorLocked(); err != nil {
			return n, c.opError("write", err)
		}
		if k := min(max(c.out.room(), 0), len(b)); k > 0 || len(b) == 0 {
			c.out.sendLocked(segment{b: append([]byte(nil), b[:k]...)})
			n += k
			if b = b[k:]; len(b) == 0 {
				return n, nil
			}
			continue
		}
		if c.writing.hasPassed() {
			return n, c.opError("write", os.ErrDeadlineExceeded)
		}
		c.changed.Wait()
	}
}

// writeErrorLocked returns the error of a write, or nil.
func (c *tcpConn) writeErrorLocked() error {
	switch {
	case c.p.isKilled:
		return ErrKilled
	case c.isClosed:
		return net.ErrClosed
	case c.isEnding, c.in.from.isClosed && c.in.hasEnded:
		return syscall.EPIPE
	}
	return c.err
}

func (c *tcpConn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// Close implements [net.Conn]. The other end reads what was written, and then the end.
func (c *tcpConn) Close() error {
	c.changed.L.Lock()
	defer c.changed.L.Unlock()
	delete(c.p.sockets, c)
	c.killLocked()
	return nil
}

// CloseWrite ends this direction of the connection. The other end reads what was written, and then
// the end. Users of net.Conn look for this method.
func (c *tcpConn) CloseWrite() error {
	c.changed.L.Lock()
	defer c.changed.L.Unlock()
	c.endLocked()
	return nil
}

// endLocked sends the end of the direction, once.
func (c *tcpConn) endLocked() {
	if !c.isEnding {
		c.isEnding = true
		c.out.sendLocked(segment{end: true})
	}
}

func (c *tcpConn) wake() { c.changed.Broadcast() }

func (c *tcpConn) killLocked() {
	if c.isClosed {
		return
	}
	c.isClosed = true
	c.in.arrived, c.in.unread = nil, 0
	c.reading.stop()
	c.writing.stop()
	c.endLocked()
	c.changed.Broadcast()
}

func (c *tcpConn) LocalAddr() net.Addr  { return c.local }
func (c *tcpConn) RemoteAddr() net.Addr { return c.remote }

func (c *tcpConn) SetDeadline(t time.Time) error      { return c.setDeadline(t, &c.reading, &c.writing) }
func (c *tcpConn) SetReadDeadline(t time.Time) error  { return c.setDeadline(t, &c.reading) }
func (c *tcpConn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, &c.writing) }

func (c *tcpConn) setDeadline(t time.Time, of ...*deadline) error {
	c.changed.L.Lock()
	defer c.changed.L.Unlock()
	if !c.isClosed {
		for _, d := range of {
			d.set(t, &c.changed)
		}
	}
	return nil
}

// A deadline is a time at which waiting goroutines look again. The zero value is none.
type deadline struct {
	at time.Time
	t  *time.Timer
}

func (d *deadline) set(at time.Time, changed *sync.Cond) {
	d.stop()
	d.at = at
	if at.IsZero() {
		return
	}
	if left := time.Until(at); left > 0 {
		d.t = time.AfterFunc(left, func() {
			changed.L.Lock()
			defer changed.L.Unlock()
			changed.Broadcast()
		})
		return
	}
	changed.Broadcast()
}

func (d *deadline) stop() {
	if d.t != nil {
		d.t.Stop()
		d.t = nil
	}
}

func (d *deadline) hasPassed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }
