// SPDX-License-Identifier: Apache-2.0

package ofi

import (
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
			if c.reading == 0 {
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
		isWaiting := c.isStarved || c.n > 0 && c.larges[c.first].isReading || c.isUnreadLocked()
		err, isOver := c.endLocked(m.buf != nil, isWaiting)
		if c.isStarved {
			c.dropAheadLocked()
		}
		p.mu.Unlock()
		switch {
		case isOver:
			c.fail(c.readError(err))
			continue
		case isWaiting:
			c.readAhead()
			return frames
		case m.buf == nil:
			return frames
		}
		c.isQuiet = false
		n, err := c.deliverSome(m)
		frames += n
		switch {
		case c.isQuiet:
			return frames
		case errors.Is(err, errStarved):
			return frames
		case err != nil:
			c.fail(c.readError(err))
		case n == 0 && m.buf != nil: // a read has begun, or the provider could not take it
			c.readAhead()
			return frames
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

// isUnreadLocked reports whether the first large payload cannot be read any more. To a peer that
// has ended, ofi_rxm connects again and again, and takes no read meanwhile. port.mu must be held.
func (c *conn) isUnreadLocked() bool {
	return c.n > 0 && !c.larges[c.first].isRead && (c.cause != nil || c.isOver)
}

// deliverSome delivers frames of m that are together, or begins or ends a read. It returns how many
// frames it delivered.
func (c *conn) deliverSome(m *message) (n int, err error) {
	p := c.port
	off := m.off
	for n < len(p.frames) && off < m.end {
		f := &p.frames[n]
		r, err := m.record(off, &f.Header)
		if err != nil {
			return 0, err
		}
		if r.isLarge {
			if n > 0 {
				break
			}
			if c.n == 0 {
				return c.beginLarge(m, &r)
			}
			return c.deliverLarge(m)
		}
		f.Data, f.Buf = r.data, m.buf
		off = r.next
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
	c.isQuiet = c.inbox[c.next%window].buf == nil && c.cause == nil && !c.hasEnd && !c.isOver && !c.isClosed
	c.port.mu.Unlock()
	b.Release()
}

// beginLarge begins to read the payload of r.
func (c *conn) beginLarge(m *message, r *record) (n int, err error) {
	p := c.port
	h := r.header
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
	c.addLargeLocked(r, buf).bounce = bounce
	p.mu.Unlock()
	return c.deliverLarge(m)
}

// addLargeLocked adds the payload of r, which is read into buf. Without buf the payload is skipped.
// port.mu must be held.
func (c *conn) addLargeLocked(r *record, buf *buffers.Buffer) *large {
	l := &c.larges[(c.first+c.n)%len(c.larges)]
	c.n++
	*l = large{frame: subsys.Frame{Header: *r.header, Buf: buf}, isRead: buf == nil, at: r.at, key: r.key}
	if buf != nil {
		l.frame.Data = buf.Bytes()[:r.header.Len:r.header.Len]
	}
	return l
}

// readAhead begins to read the payloads behind the first one into buffers of the pool. The sink is
// not asked: it may ask for memory only for the next frame.
func (c *conn) readAhead() {
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := &c.inbox[c.next%window]; int32(c.seenSeq-c.next) < 0 || c.seenSeq == c.next && c.seenOff <= m.off {
		c.seenSeq, c.seenOff = c.next, m.off+recordMin // the record of the first payload
	}
	for c.n > 0 && c.larges[c.first].isReading && c.n < len(c.larges) && c.cause == nil && !c.isOver && !c.isClosed {
		m := &c.inbox[c.seenSeq%window]
		if m.buf == nil || c.seenSeq-c.next >= window {
			return
		}
		if c.seenOff >= m.end {
			c.seenSeq, c.seenOff = c.seenSeq+1, headLen
			continue
		}
		var h subsys.Header
		r, err := m.record(c.seenOff, &h)
		if err != nil { // delivery will tell
			return
		}
		if !r.isLarge {
			c.seenOff = r.next
			continue
		}
		if p.ahead+int(h.Len) > mostAhead {
			return
		}
		b, err := p.cfg.Pool.Get(int(h.Len))
		if err != nil {
			return
		}
		if _, isRegistered := p.memory.desc(b.Bytes()); !isRegistered {
			b.Release()
			return
		}
		l := c.addLargeLocked(&r, b)
		l.isAhead = true
		p.ahead += int(h.Len)
		if !c.readLocked(l) {
			c.releaseLocked(l)
			return
		}
		c.seenOff = r.next
	}
}

// deliverLarge delivers the large payload if it is read, or else reads it.
func (c *conn) deliverLarge(m *message) (n int, err error) {
	p := c.port
	l := &c.larges[c.first]
	if !l.isRead {
		c.readLarge(l)
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
	c.dropLargeLocked()
	c.reads++
	p.mu.Unlock()
	m.off += recordMin
	c.consume(m)
	return 1, nil
}

// readLarge begins to read the first large payload. If the provider cannot take the read now, the
// next progress tries again.
func (c *conn) readLarge(l *large) {
	p := c.port
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.isOver { // the read may have no end
		p.markLocked(c)
		return
	}
	if !c.readLocked(l) && c.cause == nil {
		p.blockLocked(c)
		c.isDirty = false
		p.markLocked(c)
	}
}

// readLocked gives the read of a large payload to the provider. It reports false if the provider
// cannot take it now, or has failed. port.mu must be held.
func (c *conn) readLocked(l *large) bool {
	p := c.port
	into := l.frame.Buf
	if l.bounce != nil {
		into = l.bounce
	}
	mem := into.Bytes()[:l.frame.Len]
	desc, _ := p.memory.desc(mem)
	op, ok := p.beginLocked(opRead, into, c)
	if !ok {
		return false
	}
	if err := p.ep.Read(op, mem, desc, c.peer.at, l.at, l.key); err != nil {
		p.finishLocked(op)
		if !isAgain(err) { // mostly the peer has ended
			c.breakLocked(err)
		}
		return false
	}
	into.Retain()
	p.ops[op].large = l
	l.isReading = true
	c.reading++
	return true
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
	p.markLocked(c) // for dropAheadLocked
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
	for c.n > 0 {
		c.dropLargeLocked()
	}
	if c.isStarved {
		c.port.cfg.Pool.Unawait(c)
		c.isStarved = false
	}
}

// dropLargeLocked forgets the first large payload. port.mu must be held.
func (c *conn) dropLargeLocked() {
	c.releaseLocked(&c.larges[c.first])
	c.first = (c.first + 1) % len(c.larges)
}

// dropAheadLocked gives back the memory of payloads that were read ahead: it may be what the
// connection lacks. They are read again. port.mu must be held.
func (c *conn) dropAheadLocked() {
	if c.reading > 0 { // deliver is called again when a read has ended
		return
	}
	for c.n > 0 {
		l := &c.larges[(c.first+c.n-1)%len(c.larges)]
		if !l.isAhead {
			break
		}
		c.releaseLocked(l)
	}
	c.seenSeq, c.seenOff = c.next, 0
}

// releaseLocked frees the first or the last of larges. port.mu must be held.
func (c *conn) releaseLocked(l *large) {
	if l.isAhead {
		c.port.ahead -= int(l.frame.Len)
	}
	if l.frame.Buf != nil {
		l.frame.Buf.Release()
	}
	if l.bounce != nil {
		l.bounce.Release()
	}
	*l = large{}
	c.n--
}
