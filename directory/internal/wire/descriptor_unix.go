// SPDX-License-Identifier: Apache-2.0

//go:build unix

package wire

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// CarriesDescriptors reports whether the connection is one over which SendDescriptor works: a Unix
// socket.
func (c *Conn) CarriesDescriptors() bool {
	_, ok := c.Conn.(*net.UnixConn)
	return ok
}

// SendDescriptor sends the message done with a number and a descriptor as the answer to message id.
func (c *Conn) SendDescriptor(id, number uint64, fd int) error {
	uc, ok := c.Conn.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("%w: a descriptor over a connection of type %T", ErrProtocol, c.Conn)
	}
	c.Begin(MsgDone, id)
	c.U64(number)
	_, _, err := uc.WriteMsgUnix(c.Finish(), unix.UnixRights(fd), nil)
	return err
}

// ReceiveDescriptor reads the one answer of a connection and returns it with the descriptor that it
// carries, -1 if it carries none. The caller closes the descriptor.
func ReceiveDescriptor(nc *net.UnixConn) (m Message, fd int, err error) {
	b, oob := make([]byte, firstRead), make([]byte, 64)
	n, oobn, _, _, err := nc.ReadMsgUnix(b, oob)
	if err != nil {
		return m, -1, err
	}
	var fds []int
	if msgs, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil && len(msgs) > 0 {
		fds, _ = unix.ParseUnixRights(&msgs[0])
	}
	c := &Conn{Conn: nc, in: b, end: n}
	if m, err = c.ReadMessage(); err == nil && m.Type == MsgError {
		err = ParseError(m.Body)
	}
	if err == nil && len(fds) == 1 {
		return m, fds[0], nil
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	return m, -1, err
}
