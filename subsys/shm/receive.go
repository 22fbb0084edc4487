// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

// A receiver is the part of a conn that reads frames, and notes. It belongs to the goroutine
// that makes progress.
type receiver struct {
	head   uint64      // bytes of records worked on,
	told   uint64      // and said to be,
	untold bool        // which is not all of them: for who makes progress alone
	over   atomic.Bool // the peer has been told that we come no further
	used   bool        // the reader has been; likewise
	reader stream.Reader
	rung   bool              // by a note; likewise
	arenas map[uint32]*arena // the peer's,
	mapped uint64            // of so many bytes
	last   *arena            // the one of these that was lent in last; nil: none
	loans  []*borrowed       // by the peer's numbers; nil: not made
	made   int
	copied uint64    // bytes that were copied out of lent runs since the connection began
	taken  int       // bytes of the record at head that the reader has, where it lacked memory for more,
	lent   *borrowed // and the run, if the record is of one
	rest   []byte    // of which this is to be read
	held   bool      // frames[0] was lent, and the sink lacked memory for it
	record [lentLen]byte
	frames [1]subsys.Frame
}

// mostRead is how many bytes one Look delivers before another connection has its turn: of
// records, and of the runs that these lend. What a Look delivers is received before the
// next one, so it is still in the cache.
const mostRead = 4 * ringLen

func (in *receiver) free() { in.reader.Free() }

// tell says how far the reader is, for the peer's writer to go on.
func (in *receiver) tell(c *conn) {
	if in.told != in.head {
		in.told = in.head // only now may it be written over
		c.mine.head.Store(in.head)
		if c.theirs.wants.Load() != 0 {
			c.ring()
		}
	}
}

// receive works on the records that are there.
func (c *conn) receive() (frames int, err error) {
	in := &c.in
	copied := in.copied
	for end := in.head + mostRead; in.head+in.copied-copied < end && !c.closed.Load(); {
		word := c.theirs.word(in.head).Load()
		if word == 0 {
			break
		}
		kind, n := uint32(word), word>>32
		if n > mostBytes-recordLen {
			return frames, c.from(broken("a record of %d bytes", n))
		}
		at := in.head + recordLen
		// It counts as worked on also if the sink is not pleased: it may keep
		// what it was lent.
		in.head += spanned(int(n))
		in.untold = true
		got := 0
		// Where memory is lacking for the rest of a record, that is worked on later.
		switch {
		case in.lent != nil:
			got, err = in.goOn(c)
		case in.held:
			got, err = in.deliver()
		case kind == recBytes && n > 0:
			got, err = in.bytes(c, at, int(n))
		case kind == recFrame && n == lentLen:
			got, err = in.frame(c, at)
		case kind == recRun && n == descriptorLen:
			got, err = in.run(c, at)
		case kind == recHome && n == lentLen:
			got, err = in.home(c, at)
		default:
			err = c.from(broken("a record of kind %d with %d bytes", kind, n))
		}
		if errors.Is(err, stream.ErrStarved) {
			in.head -= spanned(int(n))
			return frames + got, nil
		}
		if frames += got; err != nil {
			return frames, err
		}
		// Less than this no writer waits for; it is told when there is time.
		if in.head-in.told >= roomy {
			in.tell(c)
		}
	}
	return frames, nil
}

func (c *conn) from(err error) error { return fmt.Errorf("shm: from %s: %w", c.remote, err) }

// bytes are n of the stream of frames.
func (in *receiver) bytes(c *conn, at uint64, n int) (frames int, err error) {
	if in.taken == 0 {
		c.count(n)
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

// run is a run of frames that is lent: it is copied, and goes back at once.
func (in *receiver) run(c *conn, at uint64) (frames int, err error) {
	var d descriptor
	c.theirs.get(at, in.record[:descriptorLen])
	d.parse(in.record[:])
	b, mem, err := in.borrow(c, &d)
	if err != nil {
		return 0, err
	}
	c.count(len(mem))
	in.copied += uint64(len(mem))
	in.used = true
	in.lent, in.rest = b, mem
	return in.goOn(c)
}

// goOn copies what is left of a run, and gives it back unless memory is lacking.
func (in *receiver) goOn(c *conn) (frames int, err error) {
	for len(in.rest) > 0 && err == nil && !c.closed.Load() {
		var to []byte
		if to, err = in.reader.Space(); errors.Is(err, stream.ErrStarved) {
			return frames, err
		}
		if err == nil {
			k, f := copy(to, in.rest), 0
			in.rest = in.rest[k:]
			f, err = in.reader.Took(k)
			frames += f
		}
	}
	in.giveUp()
	return frames, err
}

// giveUp gives back what was lent and not worked on to its end.
func (in *receiver) giveUp() {
	if in.held {
		in.held = false
		in.letGo()
	}
	if b := in.lent; b != nil {
		in.lent, in.rest = nil, nil
		b.Return(false)
	}
}

// frame is one whose payload is lent.
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

// parse reads the record of a frame whose payload is lent.
func (in *receiver) parse(c *conn, at uint64) (f *subsys.Frame, d descriptor, err error) {
	c.theirs.get(at, in.record[:])
	d.parse(in.record[:])
	f = &in.frames[0]
	if err := f.Parse(in.record[descriptorLen:]); err != nil || f.Len != d.n || f.Type == subsys.TypeRun || !in.reader.Whole() {
		return nil, d, c.from(broken("a frame of %d bytes with %d lent, %v", f.Len, d.n, err))
	}
	return f, d, nil
}

// deliver hands the frame whose payload is lent to the sink.
func (in *receiver) deliver() (frames int, err error) {
	err = in.reader.Deliver(in.frames[:])
	if in.held = errors.Is(err, stream.ErrStarved); in.held {
		return 0, err
	}
	in.letGo()
	return 1, err
}

// letGo gives the lent payload back, unless the sink keeps it.
func (in *receiver) letGo() {
	f := &in.frames[0]
	if f.Buf != nil {
		f.Buf.Release()
	}
	*f = subsys.Frame{}
}

func (c *conn) count(n int) {
	c.port.cfg.Count.Copies.Add(1)
	c.port.cfg.Count.CopiedB.Add(uint64(n))
}
