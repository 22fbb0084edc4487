package shm

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/rocl-go/rocl/internal/memfd"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/stream"
)

// A receiver is the part of a conn that reads frames. Who makes progress uses it;
// mu is for who closes the conn meanwhile.
type receiver struct {
	mu     sync.Mutex
	head   uint64 // bytes of records worked on,
	told   uint64 // and said to be,
	untold bool   // which is not all of them: for who makes progress alone
	over   bool   // the peer has been told that we come no further
	used   bool   // the reader has been; likewise
	reader stream.Reader
	record [lentLen]byte
	frames [1]subsys.Frame
}

// mostRead is how many bytes of records are worked on before another conn has its
// turn.
const mostRead = 4 * ringLen

func (in *receiver) free() { in.reader.Free() }

// tell says how far we are, for who writes to go on. mu is held.
func (in *receiver) tell(c *conn) {
	if in.told != in.head {
		in.told = in.head // only now may it be written over
		c.mine.head.Store(in.head)
		if c.theirs.wants.Load() != 0 {
			c.ring()
		}
	}
}

// receive works on the records that are there. mu is held.
func (c *conn) receive() (frames int, err error) {
	in := &c.in
	for end := in.head + mostRead; in.head < end && !c.closed.Load(); {
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
		switch {
		case kind == recBytes && n > 0:
			got, err = in.bytes(c, at, int(n))
		case kind == recFrame && n == lentLen:
			got, err = in.frame(c, at)
		case kind == recRun && n == descriptorLen:
			got, err = in.run(c, at)
		default:
			err = c.from(broken("a record of kind %d with %d bytes", kind, n))
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
	c.count(n)
	in.used = true
	for n > 0 {
		to, err := in.reader.Space()
		if err != nil {
			return frames, err
		}
		k := min(n, len(to))
		c.theirs.get(at, to[:k])
		at, n = at+uint64(k), n-k
		f, err := in.reader.Took(k)
		if frames += f; err != nil || c.closed.Load() {
			return frames, err
		}
	}
	return frames, nil
}

// run is a run of frames that is lent: it is copied, and goes back at once.
func (in *receiver) run(c *conn, at uint64) (frames int, err error) {
	var d descriptor
	c.theirs.get(at, in.record[:descriptorLen])
	d.parse(in.record[:])
	mem, token, err := c.borrow(&d)
	if err != nil {
		return 0, err
	}
	defer c.Return(token)
	c.count(len(mem))
	in.used = true
	for len(mem) > 0 {
		to, err := in.reader.Space()
		if err != nil {
			return frames, err
		}
		k := copy(to, mem)
		mem = mem[k:]
		f, err := in.reader.Took(k)
		if frames += f; err != nil || c.closed.Load() {
			return frames, err
		}
	}
	return frames, nil
}

// frame is one whose payload is lent.
func (in *receiver) frame(c *conn, at uint64) (frames int, err error) {
	var d descriptor
	c.theirs.get(at, in.record[:])
	d.parse(in.record[:])
	f := &in.frames[0]
	if err := f.Parse(in.record[descriptorLen:]); err != nil || f.Len != d.n || f.Type == subsys.TypeRun || !in.reader.Whole() {
		return 0, c.from(broken("a frame of %d bytes with %d lent, %v", f.Len, d.n, err))
	}
	mem, token, err := c.borrow(&d)
	if err != nil {
		return 0, err
	}
	f.Data, f.Buf = mem, c.port.cfg.Pool.Borrow(mem, c, token)
	err = c.sink.Frames(c, in.frames[:])
	f.Buf.Release()
	*f = subsys.Frame{}
	return 1, err
}

func (c *conn) count(n int) {
	c.port.cfg.Count.Copies.Add(1)
	c.port.cfg.Count.CopiedB.Add(uint64(n))
}

// A lender is what we have of the peer's: its arenas, and loans in them.
type lender struct {
	mu       sync.Mutex
	arenas   map[uint32]*arena
	last     *arena // the one of these that was lent in last; nil: none
	loans    []borrowed
	free     []uint32 // of loans
	returned uint64
	holds    bool // the conn, since the first loan
	closed   bool // no more will be borrowed
}

// over notes that nothing more will be borrowed.
func (l *lender) over(c *conn) {
	l.mu.Lock()
	l.closed = true
	last := l.done(c)
	l.mu.Unlock()
	if last {
		c.drop()
	}
}

// done says so when nothing is borrowed, nor will be. Whatever the peer makes of
// how far we read, and of what came back, all it has lent is its own then. mu is
// held. It says whether the conn is to be dropped.
func (l *lender) done(c *conn) (last bool) {
	if !l.closed || len(l.free) < len(l.loans) {
		return false
	}
	c.mine.done.Store(1)
	last, l.holds = l.holds, false
	return last
}

// An arena is mapped until the peer says that it is no more and we hold nothing
// in it, whatever the peer says.
type arena struct {
	id   uint32
	mem  []byte
	held int
	gone bool
}

func (a *arena) unmap() { memfd.Unmap(a.mem) }

type borrowed struct {
	arena *arena
	loan  uint32
}

// borrow finds what d describes. It is ours until Return, which gets the token.
func (c *conn) borrow(d *descriptor) (mem []byte, token uint32, err error) {
	l := &c.back
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.last
	if a == nil || a.id != d.arena {
		a = l.arenas[d.arena]
	}
	if a == nil {
		// Its note was sent before.
		l.mu.Unlock()
		_, err := c.listen()
		l.mu.Lock()
		if err != nil {
			return nil, 0, c.from(err)
		}
		if a = l.arenas[d.arena]; a == nil {
			return nil, 0, c.from(broken("a loan in arena %d, which is unknown", d.arena))
		}
	}
	if size := uint64(len(a.mem)); d.off > size || uint64(d.n) > size-d.off || d.n == 0 || d.loan >= maxLoans {
		return nil, 0, c.from(broken("loan %d of %d bytes at %d of %d", d.loan, d.n, d.off, size))
	}
	token = uint32(len(l.loans))
	if n := len(l.free); n > 0 {
		token, l.free = l.free[n-1], l.free[:n-1]
	} else if token == maxLoans {
		return nil, 0, c.from(broken("more than %d loans", maxLoans))
	} else {
		l.loans = append(l.loans, borrowed{})
	}
	l.loans[token], l.last = borrowed{a, d.loan}, a
	a.held++
	if !l.holds {
		l.holds = true
		c.refs.Add(1)
	}
	return a.mem[d.off : d.off+uint64(d.n) : d.off+uint64(d.n)], token, nil
}

// Return implements buffers.Lender. The returns cannot overflow: as many fit as
// may be out.
func (c *conn) Return(token uint32) {
	l := &c.back
	l.mu.Lock()
	b := l.loans[token]
	l.loans[token].arena = nil
	l.free = append(l.free, token)
	if b.arena.held--; b.arena.held == 0 && b.arena.gone {
		b.arena.unmap()
	}
	*(*uint32)(unsafe.Pointer(&c.mine.returns[l.returned%maxLoans])) = b.loan // seen with returned, as a record is with its word
	l.returned++
	c.mine.returned.Store(l.returned)
	c.ring() // while the conn is held
	last := l.done(c)
	l.mu.Unlock()
	if last {
		c.drop()
	}
}

// unmap is for a conn that nobody holds.
func (l *lender) unmap() {
	for _, a := range l.arenas {
		a.unmap()
	}
	l.arenas = nil
}
