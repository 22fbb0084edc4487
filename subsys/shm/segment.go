// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/rocl-go/rocl/internal/memfd"
	"github.com/rocl-go/rocl/subsys"
)

// The segment of one end of a conn; docs/PROTOCOL.md draws it.
const (
	returnsAt  = 2 << 10
	maxLoans   = 512 // out at once, of one end; a power of two
	keptLoans  = 16  // for which a conn that rests is ready
	ringAt     = returnsAt + 4*maxLoans
	ringLen    = 16 << 10 // a power of two
	segmentLen = ringAt + ringLen
)

// words are at the start of a segment. Each line has one writer, and words that
// change at different times have lines of their own.
type words struct {
	head   atomic.Uint64 // bytes of the other's records worked on, ever
	_      [56]byte
	wants  atomic.Uint32 // the writer waits for room in its ring
	closed atomic.Uint32 // no record comes any more, and head stays as it is,
	done   atomic.Uint32 // and nothing that the other has lent is read any more
	arenas atomic.Uint32 // the other may have so many more than fewArenas mapped at once,
	gib    atomic.Uint32 // of so many GiB more than fewBytes
	_      [44]byte

	// A bit for each loan from the other end whose memory may have been passed on to a
	// third process.
	passed [maxLoans / 64]atomic.Uint64
}

// A segment is one end's, mapped: by that end for writing.
type segment struct {
	*words
	returns *[maxLoans]atomic.Uint32 // see giveBack
	ring    []byte
	mem     []byte
}

func newSegment(mem []byte) segment {
	return segment{
		words:   (*words)(unsafe.Pointer(&mem[0])),
		returns: (*[maxLoans]atomic.Uint32)(unsafe.Pointer(&mem[returnsAt])),
		ring:    mem[ringAt:segmentLen:segmentLen],
		mem:     mem,
	}
}

// lostBit is set in the number of a loan that is given back while a third process may
// still read it: the memory must not be written again.
const lostBit = 1 << 15

// The k-th loan given back, ever, is at k modulo their count: its number and 1, and
// above that how often all places were used before, so that each word says by itself
// that it is there.
func (s *segment) giveBack(k uint64, loan uint32) {
	s.returns[k%maxLoans].Store(uint32(k/maxLoans)<<16 | (loan + 1))
}

// givenBack is the k-th loan given back, if it is there. The number may be any.
func (s *segment) givenBack(k uint64) (loan uint32, ok bool) {
	w := s.returns[k%maxLoans].Load()
	return w&0xffff - 1, w&0xffff != 0 && w>>16 == uint32(k/maxLoans)&0xffff
}

// setPassed notes that the memory of a loan may be passed on.
func (s *segment) setPassed(loan uint32) { s.passed[loan/64].Or(1 << (loan % 64)) }

// clearPassed undoes setPassed.
func (s *segment) clearPassed(loan uint32) {
	if s.isPassed(loan) {
		s.passed[loan/64].And(^uint64(1 << (loan % 64)))
	}
}

// isPassed reports whether the memory of a loan may have been passed on.
func (s *segment) isPassed(loan uint32) bool {
	return s.passed[loan/64].Load()&(1<<(loan%64)) != 0
}

func (s *segment) unmap() {
	if s.mem != nil {
		memfd.Unmap(s.mem)
		*s = segment{}
	}
}

// put copies b into the ring at byte pos of all records.
func (s *segment) put(pos uint64, b []byte) {
	at := int(pos % ringLen)
	if n := copy(s.ring[at:], b); n < len(b) {
		copy(s.ring, b[n:])
	}
}

// get copies from the ring.
func (s *segment) get(pos uint64, b []byte) {
	at := int(pos % ringLen)
	if n := copy(b, s.ring[at:]); n < len(b) {
		copy(b[n:], s.ring)
	}
}

// line is the first of the record at pos. What is lent has no more.
func (s *segment) line(pos uint64) []byte {
	at := pos % ringLen
	return s.ring[at : at+line : at+line]
}

// word is the first word of the record at pos, 0 if there is none yet.
func (s *segment) word(pos uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&s.ring[pos%ringLen]))
}

// A record begins a cache line. Its first word is the kind and, in the upper half,
// the number of bytes behind it; it is written last, after that of the next record
// has been made 0. So who waits for a record looks at the line in which it will
// come, and a loan is one line.
const (
	line      = 64
	recordLen = 8                // the word
	mostBytes = ringLen - 2*line // of records: there is always a word that is 0
)

// Kinds of records.
const (
	recBytes = 1 + iota // bytes of the stream of frames, cut anywhere
	recFrame            // one frame whose payload is lent: a descriptor and a header
	recRun              // a run of frames that is lent: a descriptor
	recHome             // one frame whose payload the reader has lent: a descriptor and a header
)

const (
	descriptorLen = 24
	lentLen       = descriptorLen + subsys.HeaderLen
)

// spanned is what a record with n bytes takes of the ring.
func spanned(n int) uint64 { return uint64(recordLen+n+line-1) &^ (line - 1) }

// A descriptor says where lent bytes lie. In a recHome record, arena is the number of the
// reader's loan, and off the place in that.
type descriptor struct {
	arena, loan uint32
	off         uint64
	n           uint32
}

func (d *descriptor) put(b []byte) {
	le.PutUint32(b, d.arena)
	le.PutUint32(b[4:], d.loan)
	le.PutUint64(b[8:], d.off)
	le.PutUint32(b[16:], d.n)
	le.PutUint32(b[20:], 0)
}

func (d *descriptor) parse(b []byte) {
	d.arena, d.loan, d.off, d.n = le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint32(b[16:])
}

// broken is what a peer is told off with.
func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", subsys.ErrProtocol, fmt.Sprintf(format, args...))
}
