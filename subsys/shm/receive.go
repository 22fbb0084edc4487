// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

// A receiver is the part of a conn that reads frames and notes. The goroutine that makes progress
// uses it.
type receiver struct {
	head          uint64      // bytes of records processed
	published     uint64      // the value of head that the peer knows
	isUnpublished bool        // published may be less than head
	finished      atomic.Bool // the peer knows that this end reads no more
	used          bool        // reader was used since the last trim
	reader        stream.Reader
	noteRang      bool              // the peer has rung by a note
	arenas        map[uint32]*arena // mapped arenas of the peer, by its numbers
	mapped        uint64            // bytes of arenas
	last          *arena            // arena of the last loan; nil: none
	loans         []*borrowed       // by the peer's numbers; nil: not made yet
	made          int
	copied        uint64 // bytes copied out of lent batches since the start
	copies        uint64 // copies that are not in the counters yet, and their bytes
	copiedB       uint64
	taken         int       // bytes of the record at head that the reader has, if it lacked memory for more
	batch         *borrowed // the batch of the record at head, if that is not completely read
	unread        []byte    // bytes of batch that are still to be read
	held          bool      // frames[0] is a lent frame for which the sink lacked memory
	record        [lentLen]byte
	frames        [1]subsys.Frame
}

// mostRead is how many bytes of records, and of batches that they lend, one Look delivers before
// another connection has its turn. What a Look delivers is received before the next Look, so it is
// still in the cache.
const mostRead = 4 * ringLen

func (in *receiver) free() { in.reader.Free() }

// publishHead publishes the reader's position, so that the peer's writer can go on.
func (in *receiver) publishHead(c *conn) {
	if in.published != in.head {
		in.published = in.head // only now may the peer overwrite the records
		c.mine.head.Store(in.head)
		c.port.cfg.Count.Copies.Add(in.copies)
		c.port.cfg.Count.CopiedB.Add(in.copiedB)
		in.copies, in.copiedB = 0, 0
		if c.theirs.awaitsSpace.Load() != 0 {
			c.ring()
		}
	}
}

// receive processes the records that have arrived.
func (c *conn) receive() (frames int, err error) {
	in := &c.in
	copied := in.copied
	for end := in.head + mostRead; in.head+in.copied-copied < end && !c.closed.Load(); {
		// After the reader was starved, the word of the same record is read again. A peer that has
		// changed it damages only its own stream: n is checked again, and batch and held say what
		// was begun.
		word := c.theirs.word(in.head).Load()
		if word == 0 {
			break
		}
		kind, n := uint32(word), word>>32
		if n > mostBytes-recordLen {
			return frames, c.from(broken("a record of %d bytes", n))
		}
		at := in.head + recordLen
		// The record counts as processed also if the sink returns an error, because the sink may
		// keep the lent memory.
		in.head += spanned(int(n))
		in.isUnpublished = true
		got := 0
		// If memory is lacking for the remaining bytes of a record, they are processed later.
		switch {
		case in.batch != nil:
			got, err = in.copyLent(c)
		case in.held:
			got, err = in.deliver()
		case kind == recBytes && n > 0:
			got, err = in.bytes(c, at, int(n))
		case kind == recFrame && n == lentLen:
			got, err = in.frame(c, at)
		case kind == recBatch && n == extentLen:
			got, err = in.lentBatch(c, at)
		case kind == recHome && n == lentLen:
			got, err = in.ownFrame(c, at)
		default:
			err = c.from(broken("a record of kind %d with %d bytes", kind, n))
		}
		frames += got
		if err != nil {
			if errors.Is(err, stream.ErrStarved) {
				in.head -= spanned(int(n))
				err = nil
			}
			return frames, err
		}
		// No writer waits for less than this. It is published when there is time.
		if in.head-in.published >= writableRoom {
			in.publishHead(c)
		}
	}
	return frames, nil
}

func (c *conn) from(err error) error { return fmt.Errorf("shm: from %s: %w", c.remote, err) }

// bytes reads a record with n bytes of the stream of frames.
func (in *receiver) bytes(c *conn, at uint64, n int) (frames int, err error) {
	if in.taken == 0 {
		in.count(n)
	}
	in.used = true
	for in.taken < n {
		to, err := in.reader.Space()
		if err != nil {
			return frames, err
		}
		k := min(n-in.taken, len(to))
		c.theirs.get(at+uint64(in.taken), to[:k])
		in.taken += k
		f, err := in.reader.Took(k)
		if frames += f; err != nil || c.closed.Load() {
			return frames, err
		}
	}
	in.taken = 0
	return frames, nil
}

// lentBatch reads the record of a lent batch of frames. The batch is copied, and given back at
// once.
func (in *receiver) lentBatch(c *conn, at uint64) (frames int, err error) {
	var d extent
	c.theirs.get(at, in.record[:extentLen])
	d.parse(in.record[:])
	b, mem, err := in.borrow(c, &d)
	if err != nil {
		return 0, err
	}
	in.count(len(mem))
	in.copied += uint64(len(mem))
	in.used = true
	in.batch, in.unread = b, mem
	return in.copyLent(c)
}

// copyLent copies the remaining bytes of a batch, and gives the batch back. If memory is lacking it
// returns stream.ErrStarved and keeps the batch.
func (in *receiver) copyLent(c *conn) (frames int, err error) {
	for len(in.unread) > 0 && err == nil && !c.closed.Load() {
		var to []byte
		if to, err = in.reader.Space(); errors.Is(err, stream.ErrStarved) {
			return frames, err
		}
		if err == nil {
			k, f := copy(to, in.unread), 0
			in.unread = in.unread[k:]
			f, err = in.reader.Took(k)
			frames += f
		}
	}
	in.returnUnread()
	return frames, err
}

// returnUnread gives back loans that are not completely processed.
func (in *receiver) returnUnread() {
	if in.held {
		in.held = false
		in.releaseFrame()
	}
	if b := in.batch; b != nil {
		in.batch, in.unread = nil, nil
		b.Return(false)
	}
}

// frame reads the record of a frame whose payload is lent.
func (in *receiver) frame(c *conn, at uint64) (frames int, err error) {
	f, d, err := in.parse(c, at)
	if err != nil {
		return 0, err
	}
	b, mem, err := in.borrow(c, &d)
	if err != nil {
		return 0, err
	}
	f.Data, f.Buf, f.Spare = mem, c.port.cfg.Pool.Borrow(&b.buf, mem, b), true
	return in.deliver()
}

// parse reads the record at position at, of a frame whose payload is lent, into frames[0].
func (in *receiver) parse(c *conn, at uint64) (f *subsys.Frame, d extent, err error) {
	c.theirs.get(at, in.record[:])
	d.parse(in.record[:])
	f = &in.frames[0]
	if err := f.Parse(in.record[extentLen:]); err != nil || f.Len != d.n || f.Type == subsys.TypeBatch || !in.reader.Whole() {
		return nil, d, c.from(broken("a frame of %d bytes with %d lent, %v", f.Len, d.n, err))
	}
	return f, d, nil
}

// deliver gives the lent frame in frames[0] to the sink.
func (in *receiver) deliver() (frames int, err error) {
	err = in.reader.Deliver(in.frames[:])
	if in.held = errors.Is(err, stream.ErrStarved); in.held {
		return 0, err
	}
	in.releaseFrame()
	return 1, err
}

// releaseFrame gives the lent payload in frames[0] back, unless the sink keeps it.
func (in *receiver) releaseFrame() {
	f := &in.frames[0]
	if f.Buf != nil {
		f.Buf.Release()
	}
	*f = subsys.Frame{}
}

// count counts a copy of n bytes. publishHead makes it known.
func (in *receiver) count(n int) {
	in.copies++
	in.copiedB += uint64(n)
}
