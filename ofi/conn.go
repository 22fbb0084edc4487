// SPDX-License-Identifier: Apache-2.0

package ofi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/subsys"
)

const (
	window    = 32      // messages of one direction that the receiver has not consumed
	mostQueue = 8       // messages that wait until the receiver has consumed some
	ackFrom   = 8       // consumed messages that are acknowledged by a message of their own
	mostReads = 16      // payloads of one direction that the receiver has not read
	inline    = 8 << 10 // bytes of the largest payload that goes in a message
	recordMin = subsys.HeaderLen + locatorLen
	mostAhead = 16 << 20 // bytes of payloads of a port that are read ahead
)

// A conn implements [subsys.Conn] and [subsys.Prober].
type conn struct {
	port      *port
	control   *net.TCPConn
	remote    string
	sink      subsys.Sink
	number    uint64        // of the connection in messages to this end
	ended     chan struct{} // closed when the connection is closed
	isRevived atomic.Bool   // memory has come back
	isQuiet   bool          // nothing else was there when a message was consumed; the progress goroutine's

	// port.mu guards the following fields.
	peer        *peer  // nil until the handshake
	farNumber   uint64 // of the connection in messages to the peer
	isStarted   bool
	isClosed    bool // the sink is not called any more
	isForgotten bool
	isDirty     bool  // is in port.dirty
	isBlocked   bool  // is in port.blocked
	wantsRoom   bool  // Send has taken too little
	cause       error // why the connection breaks
	endSeq      uint32
	hasEnd      bool   // the peer sends messages below endSeq only
	isOver      bool   // the control connection has ended
	overAt      uint64 // what engine.empty must be before the end is reported

	open     *buffers.Buffer   // message that is being filled
	used     int               // bytes of open
	queue    []*buffers.Buffer // messages that the provider or the peer has no room for
	sent     uint32            // messages that the provider has taken
	credited uint32            // of these, those that the peer has consumed
	exposed  []*buffers.Buffer // payloads that the peer reads, in order
	unread   uint32            // number of the first of exposed

	inbox    [window]message // by the number modulo window
	next     uint32          // number of the message that is to be delivered
	told     uint32          // value of next that the peer knows
	reads    uint32          // payloads read
	toldRead uint32          // value of reads that the peer knows
	isAcking bool            // a message without records is being sent

	// larges are the payloads that are being read, or were read and are not delivered, in order.
	// Only the progress goroutine changes them.
	larges    [mostReads]large
	first, n  int    // the first of them, and their number
	reading   int    // reads in progress
	seenSeq   uint32 // message and offset of the first record that readAhead has not seen
	seenOff   int
	isStarved bool
}

// A message has come and is not consumed: its bytes off to end are to be delivered.
type message struct {
	buf      *buffers.Buffer
	off, end int
}

// A large is a payload that is being read from the peer's memory.
type large struct {
	frame             subsys.Frame    // its Buf is of Room or, if isAhead, of the pool; nil if there is none
	isAhead           bool            // read before the sink was asked
	bounce            *buffers.Buffer // where the payload is read to, if not to frame.Buf
	at, key           uint64
	isReading, isRead bool
}

// Transport implements [subsys.Conn].
func (c *conn) Transport() string { return c.port.name }

// Remote implements [subsys.Conn].
func (c *conn) Remote() string { return c.remote }

// Start implements [subsys.Conn].
func (c *conn) Start() {
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	c.isStarted = true
	p.markLocked(c)
	p.wake()
}

// Unanswered implements [subsys.Prober]. The kernel of the peer's machine answers on the control
// connection.
func (c *conn) Unanswered() (owes bool, heard time.Duration) {
	raw, err := c.control.SyscallConn()
	if err != nil {
		return false, 0
	}
	_ = raw.Control(func(fd uintptr) { owes, heard = unanswered(int(fd), []byte{recordPing, 0, 0, 0, 0}) })
	return owes, heard
}

// Send implements [subsys.Conn].
func (c *conn) Send(fs []subsys.Frame) (int, error) {
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.isClosed {
		return 0, c.sendError(subsys.ErrClosed)
	}
	if c.cause != nil || c.hasEnd || c.isOver {
		return 0, nil // Down follows what the peer has sent
	}
	wasBlocked := c.isBlocked
	n := 0
	for ; n < len(fs); n++ {
		if !c.hasRoomLocked() {
			c.wantsRoom = true
			break
		}
		if err := c.addLocked(&fs[n]); err != nil {
			return n, c.sendError(err)
		}
	}
	if c.flushLocked(); c.isBlocked && !wasBlocked {
		p.wake()
	}
	return n, nil
}

// hasRoomLocked reports whether the connection takes another frame. port.mu must be held.
func (c *conn) hasRoomLocked() bool {
	return len(c.queue) < mostQueue && len(c.exposed) < mostReads
}

// addLocked adds a frame, or the frames of a batch, to the messages. port.mu must be held.
func (c *conn) addLocked(f *subsys.Frame) error {
	if f.Type != subsys.TypeBatch {
		return c.addOneLocked(&f.Header, f.Data, f.Buf)
	}
	for b := f.Data; len(b) >= subsys.HeaderLen; {
		var h subsys.Header
		if err := h.Parse(b); err != nil {
			return err
		}
		end := subsys.HeaderLen + int(h.Len)
		if end > len(b) {
			return subsys.ErrBadHeader
		}
		if err := c.addOneLocked(&h, b[subsys.HeaderLen:end], f.Buf); err != nil {
			return err
		}
		b = b[end:]
	}
	return nil
}

func (c *conn) addOneLocked(h *subsys.Header, data []byte, buf *buffers.Buffer) error {
	p := c.port
	if len(data) <= inline {
		b, err := c.spaceLocked(subsys.HeaderLen + len(data))
		if err != nil {
			return err
		}
		h.Put(b)
		if copy(b[subsys.HeaderLen:], data); len(data) > 0 {
			p.cfg.Count.Copies.Add(1)
			p.cfg.Count.CopiedB.Add(uint64(len(data)))
		}
		return nil
	}
	at := p.memory.find(data)
	if buf != nil && at.Region != nil {
		buf.Retain()
	} else {
		var err error
		if buf, err = p.own.Get(len(data)); err != nil {
			return err
		}
		copy(buf.Bytes(), data)
		p.cfg.Count.Copies.Add(1)
		p.cfg.Count.CopiedB.Add(uint64(len(data)))
		data = buf.Bytes()
		if at = p.memory.find(data); at.Region == nil {
			buf.Release()
			return errUnregistered
		}
	}
	b, err := c.spaceLocked(recordMin)
	if err != nil {
		buf.Release()
		return err
	}
	c.exposed = append(c.exposed, buf)
	p.exposed++
	h.Put(b)
	b[markAt] = byReading
	binary.LittleEndian.PutUint64(b[subsys.HeaderLen:], at.Base+uint64(addressOf(data)-at.from))
	binary.LittleEndian.PutUint64(b[subsys.HeaderLen+8:], at.Key)
	return nil
}

var errUnregistered = errors.New("the provider registers no memory (see ulimit -l)")

// spaceLocked returns n bytes for the next record. port.mu must be held.
func (c *conn) spaceLocked(n int) ([]byte, error) {
	if c.open != nil && c.used+n > messageLen {
		c.closeOpenLocked()
	}
	if c.open == nil {
		b, err := c.port.own.Get(messageLen)
		if err != nil {
			return nil, err
		}
		c.open, c.used = b, headLen
	}
	b := c.open.Bytes()[c.used : c.used+n]
	c.used += n
	return b, nil
}

// closeOpenLocked puts the message that is being filled into the queue. port.mu must be held.
func (c *conn) closeOpenLocked() {
	if c.open != nil {
		_ = c.open.Resize(c.used)
		c.queue = append(c.queue, c.open)
		c.open = nil
	}
}

// flushLocked sends what the peer and the provider have room for. The message that is being filled
// is sent last. It is filled further if there is no room for it. port.mu must be held.
func (c *conn) flushLocked() {
	n := 0
	for c.cause == nil && c.sent-c.credited < window {
		if n == len(c.queue) {
			c.closeOpenLocked()
		}
		if n == len(c.queue) || !c.postLocked(c.queue[n], opSend) {
			break
		}
		n++
	}
	if n > 0 {
		rest := copy(c.queue, c.queue[n:])
		clear(c.queue[rest:])
		c.queue = c.queue[:rest]
	}
	if c.wantsRoom && c.hasRoomLocked() {
		c.port.markLocked(c)
	}
	c.ackLocked()
}

// postLocked gives a message to the provider, which has b afterwards. It reports false if the
// provider cannot take it now. port.mu must be held.
func (c *conn) postLocked(b *buffers.Buffer, kind opKind) bool {
	p := c.port
	h := head{conn: c.farNumber, seq: c.sent, consumed: c.next, reads: c.reads}
	mem := b.Bytes()
	h.put(mem)
	desc, isRegistered := p.memory.desc(mem)
	if !isRegistered {
		c.breakLocked(errUnregistered)
		return false
	}
	op, ok := p.beginLocked(kind, b, c)
	if !ok {
		p.blockLocked(c)
		return false
	}
	err := p.ep.Send(op, mem, desc, c.peer.at)
	if err != nil {
		p.finishLocked(op)
		if isAgain(err) {
			p.blockLocked(c)
		} else {
			c.breakLocked(err)
		}
		return false
	}
	c.told, c.toldRead = c.next, c.reads
	if kind == opSend {
		c.sent++
	}
	return true
}

// ackLocked sends a message without records if the peer should know what this end has consumed or
// read. port.mu must be held.
func (c *conn) ackLocked() {
	p := c.port
	if c.isClosed || c.isAcking || c.cause != nil || c.peer == nil || c.next-c.told < ackFrom && c.reads == c.toldRead {
		return
	}
	b, err := p.own.Get(headLen)
	if err != nil {
		return
	}
	if c.isAcking = c.postLocked(b, opAck); !c.isAcking {
		b.Release()
	}
}

// creditLocked takes the counts of a message. It reports false if they are wrong. port.mu must be
// held.
func (c *conn) creditLocked(h *head) bool {
	n, reads := h.consumed-c.credited, h.reads-c.unread
	if int32(n) < 0 || int32(reads) < 0 { // of a message that was overtaken
		return true
	}
	if n > c.sent-c.credited || uint64(reads) > uint64(len(c.exposed)) {
		c.breakLocked(fmt.Errorf("%w: more was acknowledged than was sent", subsys.ErrProtocol))
		return false
	}
	if n == 0 && reads == 0 {
		return true
	}
	c.credited = h.consumed
	for i, b := range c.exposed[:reads] {
		b.Release()
		c.exposed[i] = nil
	}
	c.port.exposed -= int(reads)
	rest := copy(c.exposed, c.exposed[reads:])
	clear(c.exposed[rest:])
	c.exposed, c.unread = c.exposed[:rest], h.reads
	c.flushLocked()
	return true
}

// breakLocked ends the connection because of err, after what has come was delivered. A peer that
// has violated the protocol is not waited for. port.mu must be held.
func (c *conn) breakLocked(err error) {
	if c.cause == nil {
		c.cause = err
		_ = c.control.SetReadDeadline(time.Now().Add(linger))
		_ = c.control.CloseWrite() // the peer learns of it
	}
	if c.isClosed {
		c.control.Close()
	}
	c.port.markLocked(c)
	c.port.wake()
}

// watch reads the control connection until it ends, and waits for the end of c.
func (c *conn) watch() {
	p := c.port
	c.readControl()
	p.mu.Lock()
	c.isOver = true
	p.markLocked(c)
	p.mu.Unlock()
	p.wake()
	<-c.ended
	c.control.Close()
	p.mu.Lock()
	c.forgetLocked()
	p.mu.Unlock()
}

// readControl returns when no record follows, or none that matters.
func (c *conn) readControl() {
	p := c.port
	var b [recordLen]byte
	for {
		if _, err := io.ReadFull(c.control, b[:]); err != nil {
			return
		}
		switch b[0] {
		case recordPing:
		case recordEnd:
			p.mu.Lock()
			c.hasEnd, c.endSeq = true, binary.LittleEndian.Uint32(b[1:])
			isClosed := c.isClosed
			p.markLocked(c)
			p.mu.Unlock()
			p.wake()
			if isClosed { // both ends are closed, and neither waits for anything
				return
			}
		default:
			p.mu.Lock()
			c.breakLocked(fmt.Errorf("%w: control record %d", subsys.ErrProtocol, b[0]))
			p.mu.Unlock()
			return
		}
	}
}

// Close implements [subsys.Conn]. The peer gets what was sent before.
func (c *conn) Close() error {
	c.end(false)
	return nil
}

// end closes the connection, once. isFirst reports whether this call closed it. If isFailure, what
// was sent is not waited for.
func (c *conn) end(isFailure bool) (isFirst bool) {
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.isClosed {
		return false
	}
	c.isClosed = true
	close(c.ended)
	p.markLocked(c) // drops what has come
	p.wake()
	if c.peer == nil || isFailure || c.cause != nil || c.isOver || c.hasEnd {
		c.control.Close()
		c.dropOutLocked()
		if c.peer == nil { // no watch
			c.forgetLocked()
		}
		return true
	}
	c.closeOpenLocked()
	c.flushLocked()
	var b [recordLen]byte
	b[0] = recordEnd
	binary.LittleEndian.PutUint32(b[1:], c.sent+uint32(len(c.queue)))
	now := time.Now()
	_ = c.control.SetDeadline(now.Add(linger))
	_, _ = c.control.Write(b[:]) // it has room: little else is written there
	return true
}

// fail closes the connection because of err and tells the sink, unless the connection was closed
// before.
func (c *conn) fail(err error) {
	if c.end(true) {
		c.sink.Down(c, err)
	}
}

// forgetLocked frees what a closed connection has. port.mu must be held.
func (c *conn) forgetLocked() {
	p := c.port
	if c.isForgotten {
		return
	}
	c.isForgotten = true
	delete(p.conns, c.number)
	c.dropOutLocked()
	p.markLocked(c)
	if c.peer != nil {
		p.leaveLocked(c.peer)
	}
}

// dropOutLocked releases what was not sent or not read. port.mu must be held.
func (c *conn) dropOutLocked() {
	c.port.exposed -= len(c.exposed)
	for _, all := range []*[]*buffers.Buffer{&c.queue, &c.exposed} {
		for _, b := range *all {
			b.Release()
		}
		*all = nil
	}
	if c.open != nil {
		c.open.Release()
		c.open = nil
	}
}

func (c *conn) sendError(err error) error {
	return fmt.Errorf("%s: sending to %s: %w", c.port.name, c.remote, err)
}

func (c *conn) readError(err error) error {
	return fmt.Errorf("%s: from %s: %w", c.port.name, c.remote, err)
}
