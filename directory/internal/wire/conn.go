// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"github.com/rocl-go/rocl/resource"
)

const (
	firstRead = 4 << 10 // the length of a new buffer for what is read
	mostKept  = 1 << 20 // the length above which a buffer is not used again
)

// A Conn reads and writes the messages of one connection. One goroutine may read while another one
// writes. A message is composed by the Builder, then sent by Send.
type Conn struct {
	net.Conn
	Builder

	in         []byte // nil until something is read
	start, end int    // of the bytes of in that are not taken yet
}

// NewConn returns a Conn that reads and writes nc.
func NewConn(nc net.Conn) *Conn { return &Conn{Conn: nc} }

// readAtLeast reads until n bytes are in the buffer.
func (c *Conn) readAtLeast(n int) error {
	if c.end-c.start >= n {
		return nil
	}
	if len(c.in)-c.start < n {
		b := c.in
		if len(b) < n {
			// The buffer grows as bytes arrive, so that an announced length alone takes no memory.
			b = make([]byte, max(firstRead, min(n, max(2*len(c.in), 64<<10))))
		}
		c.end = copy(b, c.in[c.start:c.end])
		c.in, c.start = b, 0
	}
	for c.end-c.start < n {
		if c.end == len(c.in) {
			b := make([]byte, min(n, 2*len(c.in)))
			copy(b, c.in[:c.end])
			c.in = b
		}
		k, err := c.Read(c.in[c.end:])
		c.end += k
		if err != nil && c.end-c.start < n {
			if err == io.EOF && c.end > c.start {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// take returns n bytes of the buffer, which are there, as a view.
func (c *Conn) take(n int) []byte {
	b := c.in[c.start : c.start+n : c.start+n]
	if c.start += n; c.start == c.end {
		c.start, c.end = 0, 0
		if len(c.in) > mostKept {
			c.in = nil // b keeps the buffer for as long as b is used
		}
	}
	return b
}

// ReadGreeting reads the greeting of a connection and returns its kind.
func (c *Conn) ReadGreeting() (kind byte, err error) {
	if err := c.readAtLeast(8); err != nil {
		return 0, err
	}
	b := c.take(8)
	if string(b[:4]) != "RDIR" || b[6] != 0 || b[7] != 0 {
		return 0, fmt.Errorf("%w: not a directory connection", ErrProtocol)
	}
	if b[4] != version {
		return 0, fmt.Errorf("%w: version %d, ours is %d", ErrProtocol, b[4], version)
	}
	return b[5], nil
}

// ReadMessage reads one message.
func (c *Conn) ReadMessage() (Message, error) {
	if err := c.readAtLeast(headLen); err != nil {
		return Message{}, err
	}
	b := c.in[c.start:]
	n := binary.LittleEndian.Uint32(b)
	if n < headLen-4 || n > maxBody || b[5]|b[6]|b[7] != 0 {
		return Message{}, fmt.Errorf("%w: message of %d bytes", ErrProtocol, n)
	}
	if err := c.readAtLeast(int(n) + 4); err != nil {
		return Message{}, err
	}
	b = c.take(int(n) + 4)
	return Message{b[4], binary.LittleEndian.Uint64(b[8:]), b[headLen:]}, nil
}

// Send finishes the message of the Builder and writes it to the connection.
func (c *Conn) Send() error {
	_, err := c.Write(c.Finish())
	if cap(c.out) > mostKept {
		c.out = nil
	}
	return err
}

// SendError sends err as the answer to message id.
func (c *Conn) SendError(id uint64, err error) error {
	c.Begin(MsgError, id)
	c.out = binary.LittleEndian.AppendUint16(c.out, code(err))
	c.Append([]byte(err.Error()))
	return c.Send()
}

// SendEnd sends the message end: there are no more answers. covered is how many nodes reported all
// they have, failed are those that could not be asked.
func (c *Conn) SendEnd(id uint64, covered int, failed []resource.NodeID) error {
	c.Begin(MsgEnd, id)
	c.out = binary.LittleEndian.AppendUint32(c.out, uint32(covered))
	for _, n := range failed {
		c.U64(uint64(n))
	}
	return c.Send()
}
