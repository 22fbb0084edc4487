// SPDX-License-Identifier: Apache-2.0

package ofi

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/ofi/internal/fabric"
	"github.com/rocl-go/rocl/subsys"
)

// errStarved means that memory is lacking. The connection goes on when it has come back.
var errStarved = errors.New("ofi: memory limit reached")

func isAgain(err error) bool { return err == fabric.ErrAgain } //nolint:errorlint // it is not wrapped

// deliver gives the sink what has come, in order. The progress goroutine calls it.
func (c *conn) deliver() (frames int) {
	p := c.port
	for {
		p.mu.Lock()
		if c.isClosed {
			if !c.large.isReading {
				c.dropIn()
			}
			p.mu.Unlock()
			return frames
		}
		if !c.isStarted {
			p.mu.Unlock()
			return frames
		}
		m := &c.inbox[c.next%window]
		isWaiting := c.isStarved || c.large.isReading || c.isUnreadLocked()
		err, isOver := c.endLocked(m.buf != nil, isWaiting)
		p.mu.Unlock()
		switch {
		case isOver:
			c.fail(c.readError(err))
			continue
		case isWaiting || m.buf == nil:
			return frames
		}
		n, err := c.deliverSome(m)
		frames += n
		switch {
		case errors.Is(err, errStarved):
			return frames
		case err != nil:
			c.fail(c.readError(err))
		case n == 0 && m.buf != nil:
			return frames // the provider could not take a read
		}
	}
}

// endLocked reports whether the connection is to go down now, and why. hasMore reports whether
// there are messages, and isWaiting whether they cannot be delivered now. port.mu must be held.
func (c *conn) endLocked(hasMore, isWaiting bool) (err error, isOver bool) {
	switch {
	case errors.Is(c.cause, subsys.ErrProtocol):
		return c.cause, true
	case c.isUnreadLocked(): // the peer ends only after it was read, unless it has died
	case hasMore || isWaiting:
		return nil, false
	case c.hasEnd && c.next == c.endSeq:
		return subsys.ErrPeerClosed, true
	}
	if !c.isOver {
		return nil, false
	}
	// What the peer has sent before its end may still be in the provider.
	p := c.port
	if c.overAt == 0 {
		c.overAt = p.empty + 2
	}
	if p.empty < c.overAt {
		p.markLocked(c)
		return nil, false
	}
	if c.cause != nil {
		return fmt.Errorf("%w: %w", subsys.ErrPeerClosed, c.cause), true
	}
	return subsys.ErrPeerClosed, true
}

// isUnreadLocked reports whether the large payload cannot be read any more. To a peer that has
// ended, ofi_rxm connects again and again, and takes no read meanwhile. port.mu must be held.
func (c *conn) isUnreadLocked() bool {
	return c.large.isThere && !c.large.isRead && (c.cause != nil || c.isOver)
}

// deliverSome delivers frames of m that are together, or begins or ends a read. It returns how many
// frames it delivered.
func (c *conn) deliverSome(m *message) (n int, err error) {
	if c.large.isThere {
		return c.deliverLarge(m)
	}
	p := c.port
	mem, off := m.buf.Bytes(), m.off
	for n < len(p.frames) && off < m.end {
		rest := mem[off:m.end]
		if len(rest) < subsys.HeaderLen {
			return 0, subsys.ErrProtocol
		}
		if rest[markAt] == byReading {
			if n > 0 {
				break
			}
			return c.beginLarge(m, rest)
		}
		f := &p.frames[n]
		if err := f.Parse(rest); err != nil {
			return 0, fmt.Errorf("%w: %w", subsys.ErrProtocol, err)
		}
		end := subsys.HeaderLen + int(f.Len)
		if end > len(rest) {
			return 0, subsys.ErrProtocol
		}
		f.Data, f.Buf = rest[subsys.HeaderLen:end:end], m.buf
		off += end
		n++
	}
	if n > 0 {
		err = c.give(p.frames[:n])
		clear(p.frames[:n])
	}
	if err != nil {
		return 0, err
	}
	m.off = off
	c.consume(m)
	return n, nil
}

// consume takes m out of the inbox if it is at its end.
func (c *conn) consume(m *message) {
	if m.off < m.end {
		return
	}
	c.port.mu.Lock()
	b := m.buf
	*m = message{}
	c.next++
	c.port.mu.Unlock()
	b.Release()
}

// beginLarge begins to read the payload of the record b.
func (c *conn) beginLarge(m *message, b []byte) (n int, err error) {
	if len(b) < recordMin {
		return 0, subsys.ErrProtocol
	}
	p := c.port
	h := &p.header
	b[markAt] = 0
	err = h.Parse(b)
	b[markAt] = byReading
	if err != nil || h.Len == 0 {
		return 0, subsys.ErrProtocol
	}
	var buf, bounce *buffers.Buffer
	if err := c.get(func() (err error) { buf, err = c.sink.Room(c, h); return err }); err != nil {
		return 0, err
	}
	if buf != nil {
		_, isRegistered := p.memory.desc(buf.Bytes())
		if buf.Lender() != nil || !isRegistered {
			// The lender may take the memory back while the provider writes it.
			if bounce, err = p.own.Get(int(h.Len)); err != nil {
				buf.Release()
				return 0, err
			}
		}
	}
	p.mu.Lock()
	c.large = large{isThere: true, frame: subsys.Frame{Header: *h, Buf: buf}, bounce: bounce, isRead: buf == nil,
		at: binary.LittleEndian.Uint64(b[subsys.HeaderLen:]), key: binary.LittleEndian.Uint64(b[subsys.HeaderLen+8:])}
	if buf != nil {
		c.large.frame.Data = buf.Bytes()[:h.Len:h.Len]
	}
	p.mu.Unlock()
	return c.deliverLarge(m)
}

// deliverLarge delivers the large payload if it is read, or else reads it.
func (c *conn) deliverLarge(m *message) (n int, err error) {
	p := c.port
	l := &c.large
	if !l.isRead {
		c.readLarge()
		return 0, nil
	}
	if l.bounce != nil {
		b, err := l.frame.Buf.Moved()
		if err != nil {
			return 0, err
		}
		if b != nil {
			l.frame.Buf.Release()
			l.frame.Buf, l.frame.Data = b, b.Bytes()[:l.frame.Len:l.frame.Len]
		}
		copy(l.frame.Data, l.bounce.Bytes())
		p.cfg.Count.Copies.Add(1)
		p.cfg.Count.CopiedB.Add(uint64(l.frame.Len))
	}
	p.frames[0] = l.frame
	err = c.give(p.frames[:1])
	clear(p.frames[:1])
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	c.dropLarge()
	c.reads++
	p.mu.Unlock()
	m.off += recordMin
	c.consume(m)
	return 1, nil
}

// readLarge gives the read of the large payload to the provider. If that cannot take it now, the
// next progress tries again.
func (c *conn) readLarge() {
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.isOver { // the read may have no end
		p.markLocked(c)
		return
	}
	l := &c.large
	into := l.frame.Buf
	if l.bounce != nil {
		into = l.bounce
	}
	mem := into.Bytes()[:l.frame.Len]
	desc, _ := p.memory.desc(mem)
	op, ok := p.beginLocked(opRead, into.Retain(), c)
	if ok {
		err := p.ep.Read(op, mem, desc, c.peer.at, l.at, l.key)
		if err == nil {
			l.isReading = true
			return
		}
		p.finishLocked(op)
		if !isAgain(err) { // mostly the peer has ended
			into.Release()
			c.breakLocked(err)
			return
		}
	}
	into.Release()
	p.blockLocked(c)
	c.isDirty = false
	p.markLocked(c)
}

// give gives frames to the sink.
func (c *conn) give(fs []subsys.Frame) error {
	return c.get(func() error { return c.sink.Frames(c, fs) })
}

// get calls f. If that lacks memory, get arranges that the connection goes on when memory has come
// back, and returns errStarved.
func (c *conn) get(f func() error) error {
	err := f()
	if !buffers.IsTemporary(err) {
		return err
	}
	p := c.port
	p.mu.Lock()
	c.isStarved = true
	p.mu.Unlock()
	p.cfg.Pool.Await(c, func() { p.revivedLater(c) })
	if err = f(); !buffers.IsTemporary(err) { // memory has come back meanwhile
		p.cfg.Pool.Unawait(c)
		p.mu.Lock()
		c.isStarved = false
		p.mu.Unlock()
		return err
	}
	return errStarved
}

// dropIn releases what has come and was not delivered. port.mu must be held.
func (c *conn) dropIn() {
	for i := range c.inbox {
		if b := c.inbox[i].buf; b != nil {
			b.Release()
		}
		c.inbox[i] = message{}
	}
	c.dropLarge()
	if c.isStarved {
		c.port.cfg.Pool.Unawait(c)
		c.isStarved = false
	}
}

// dropLarge releases the buffers of the large payload. port.mu must be held.
func (c *conn) dropLarge() {
	if c.large.frame.Buf != nil {
		c.large.frame.Buf.Release()
	}
	if c.large.bounce != nil {
		c.large.bounce.Release()
	}
	c.large = large{}
}
