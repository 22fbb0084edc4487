// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/subsys"
	"golang.org/x/sys/unix"
)

// The hello, which each end sends first, with descriptors: its segment, and those of its bell. The
// dialling end sends first.
const (
	helloLen = 24
	version  = 5
	mostFDs  = 4
)

var magic = [8]byte{'r', 'o', 'c', 'l', '-', 's', 'h', 'm'}

// hello returns the bytes of a hello.
func hello() (b [helloLen]byte) {
	copy(b[:], magic[:])
	le.PutUint32(b[8:], version)
	le.PutUint32(b[12:], segmentLen)
	le.PutUint32(b[16:], ringLen)
	le.PutUint32(b[20:], maxLoans)
	return b
}

// isRefused reports whether a connection failed because no process listens at the address.
func isRefused(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT)
}

// shake makes the handshake on a connected socket and returns the conn, which has a descriptor of
// its own. It closes uc in any case. isBeside is set if the ends have met in the folder, and first
// at the dialling end.
func (p *port) shake(ctx context.Context, uc *net.UnixConn, isBeside, first bool) (*conn, error) {
	defer uc.Close()
	_ = uc.SetDeadline(time.Now().Add(shakeTimeout)) // before track, after which Close may set another deadline
	untrack, ok := p.track(uc)
	if !ok {
		return nil, subsys.ErrClosed
	}
	defer untrack()
	defer context.AfterFunc(ctx, func() { _ = uc.SetDeadline(time.Now()) })()
	c, err := p.connect(uc, isBeside, first)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return c, err
}

// connect is shake without its limits in time.
func (p *port) connect(uc *net.UnixConn, isBeside, first bool) (_ *conn, err error) {
	c := &conn{port: p, remote: scheme + p.addr.node + "/?", sock: -1}
	c.refs.Store(1)
	c.back.uses.Store(1)
	defer func() {
		if err != nil {
			c.drop()
		}
	}()
	if c.poller = p.cfg.Poller(); c.poller == nil {
		return nil, subsys.ErrClosed
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil, err
	}
	if err := c.identifyPeer(raw, isBeside); err != nil {
		return nil, err
	}
	segment, err := c.makeSegment()
	if err != nil {
		return nil, err
	}
	defer memfd.Close(segment)
	bell, err := c.bellDescriptors()
	if err != nil {
		return nil, err
	}
	fds := append([]int{segment}, bell...)
	if first {
		if err := sendHello(uc, fds); err != nil {
			return nil, err
		}
	}
	if err := c.readHello(uc); err != nil {
		return nil, err
	}
	if c.sock, err = onSocket(raw, memfd.Dup); err != nil { // the conn has a descriptor of its own
		c.sock = -1
		return nil, fmt.Errorf("duplicating a socket: %w", err)
	}
	// The sink is not known yet. conn.Start runs reader.Start again, with the sink. Nothing is
	// delivered before.
	c.in.reader.Start(c, nil, &c.closed, &p.cfg, func() {})
	if err := p.adopt(c); err != nil {
		return nil, err
	}
	if !first {
		if err := sendHello(uc, fds); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// identifyPeer notes which process and which user are at the other end of the socket, and fails if
// that user may not connect.
func (c *conn) identifyPeer(raw syscall.RawConn, isBeside bool) error {
	cred, err := c.port.peer(raw, isBeside)
	if err != nil {
		return err
	}
	c.remote = fmt.Sprintf("%s%s/%d", scheme, c.port.addr.node, cred.PID) // Dial replaces it by the address
	c.ofUser = int(cred.UID) == os.Getuid()
	return nil
}

// isWary reports whether the peer is trusted with nothing but reading: it is of another user, or
// the port is for a group.
func (c *conn) isWary() bool { return !c.ofUser || c.port.group != nil }

// makeSegment allocates and maps this end's segment, and returns its descriptor, which the caller
// closes.
func (c *conn) makeSegment() (fd int, err error) {
	fd, mem, err := memfd.Create(context.Background(), "rocl-shm", segmentLen)
	if err != nil {
		return -1, fmt.Errorf("allocating memory for a connection: %w", err)
	}
	c.mine = newSegment(mem)
	return fd, nil
}

// sendHello sends the hello of this end with its descriptors.
func sendHello(uc *net.UnixConn, fds []int) error {
	h := hello()
	_, _, err := uc.WriteMsgUnix(h[:], unix.UnixRights(fds...), nil)
	return err
}

// readHello reads the hello of the other end and maps the memory that came with it.
func (c *conn) readHello(uc *net.UnixConn) error {
	var b [helloLen + spare]byte
	oob := make([]byte, unix.CmsgSpace(4*mostFDs))
	n, oobn, flags, _, err := uc.ReadMsgUnix(b[:], oob)
	fds, e := descriptors(oob[:oobn])
	defer func() {
		for _, fd := range fds {
			if fd >= 0 { // -1: the bell keeps the descriptor
				unix.Close(fd)
			}
		}
	}()
	switch {
	case err != nil:
		return fmt.Errorf("waiting for a hello: %w", err)
	case n == 0:
		return fmt.Errorf("waiting for a hello: %w", subsys.ErrPeerClosed)
	case e != nil:
		return e
	case flags&unix.MSG_CTRUNC != 0:
		return errors.New("a hello came without its descriptors: too many are open here")
	case n != helloLen || [helloLen]byte(b[:helloLen]) != hello():
		return broken("not a hello of version %d", version)
	}
	if len(fds) != 1+c.bellFDs() {
		return broken("a hello with %d descriptors", len(fds))
	}
	theirs, err := memfd.Open(fds[0], segmentLen)
	if err != nil {
		return fmt.Errorf("mapping the segment of a peer: %w", err)
	}
	c.theirs = newSegment(theirs)
	return c.takeBell(fds[1:])
}

// descriptors returns the descriptors that came with a message.
func descriptors(oob []byte) (fds []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	ms, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	for i := range ms {
		if got, e := unix.ParseUnixRights(&ms[i]); e == nil {
			fds = append(fds, got...)
		}
	}
	return fds, nil
}
