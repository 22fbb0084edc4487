// SPDX-License-Identifier: Apache-2.0

//go:build linux || darwin || freebsd || netbsd || openbsd

package shm

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/subsys"
)

// Protocol: Shared memory
//
// **Address.** `shm://NODE/NAME`, or `shm://NODE/FOLDER/NAME` of a port that listens beside the
// directory's socket too. NODE is the first 8 bytes, in hex, of the SHA-256 of the boot id, on
// big-endian machines `big`, the links `/proc/self/ns/net` and `user`, and the user's
// (`shm.ForGroup`: the group's) number, a newline behind each. FOLDER is the same of the boot id,
// there `big`, then `folder`, device and inode of the folder, decimal, with blanks between, and a
// newline. A port listens at the abstract SEQPACKET socket `rocl-shm-NODE-NAME`, and at
// `.rocl-shm-NAME` in the folder, mode 0600. If NODE is the dialler's, it dials the first; if only
// FOLDER is, the second. Each end checks the other's user (SO_PEERCRED; of a group:
// SO_PEERGROUPS); at the path, as the directory does.
//
// **Handshake.** All memory is memfds, allocated, with the seals SHRINK, GROW and FUTURE_WRITE.
// Both ends send, the dialler first, `rocl-shm`, version 5 u32, segment bytes 20,480 u32, ring
// bytes 16,384 u32, loans 512 u32, with descriptors: its segment; its port's bell (4,096 bytes);
// the page it naps on (4,096 bytes, not FUTURE_WRITE); between processes of one user, the bell's
// eventfd. **Notes** of 16 bytes follow: kind u16, hops u16, arena u32, size u64. Kind 1, with a
// descriptor: loans may be in this arena, which was forwarded hops times, up to 8. Kind 2: nothing
// in the arena is lent any more. Kind 3: ring the bell. An end numbers its arenas, and may have 8
// of 4 GiB in all mapped, and what the other's segment allows beyond.
//
// **Segment** of one end, numbers in the machine's order:
//
// | at | what |
// |---|---|
// | 0 | head u64: bytes of the other's records processed, a multiple of 64 |
// | 64 | wants u32: 1 while the writer waits for room. closed u32: no further record comes. done
// u32: nothing lent is read. arenas u32, GiB u32: what more may be mapped |
// | 128 | 512 bits: loans of the other whose memory was forwarded to a third process; set before,
// cleared before the return |
// | 2,048 | returned loans, u32: the k-th at k modulo 512: number + 1 in the lower half, k / 512 in
// the upper. Bit 15: a third process may still read it |
// | 4,096 | the ring |
//
// A record begins at a multiple of 64, modulo 16,384. Its first word u64 has the kind below and the
// bytes behind it above; it is written last, after the successor's word was set to 0. At most
// 16,256 bytes.
//
// | kind | behind the word |
// |---|---|
// | 1 | bytes of the stream of frames, cut anywhere |
// | 2 | a loan and a header: that frame's payload |
// | 3 | a loan: whole frames, to be copied |
// | 4 | a loan and a header: the payload is in a loan from the reader, whose number is in the arena
// field; the reader returns the writer's number at once |
//
// A loan is arena u32, number u32 (below 512), place u64, bytes u32, 0 u32. A number is lent again
// when it was returned, or the other end is done, has closed with the loan at or behind its head,
// or has ended.
//
// **Bell.** The lower two bits of its first word u64 say how the context waits: 0 polls; 1 sleeps:
// write to the eventfd, else send note 3; 2 naps: add 1 to the page's first word u32 and FUTEX_WAKE
// one, shared. A process reads it after it has written a record or return, made wanted room, or
// ended, and acts once for each value.
//
// **Without memfds**, on macOS and the BSDs, memory is unlinked files, passed by descriptors for
// reading. A hello has two: segment and bell, which is rung by note 3. A port listens at the stream
// socket `rocl-shm-UID/s-NAME` in TMPDIR. NODE stands for the target of the link `number` there,
// the user, the byte order and the machine's name. LOCAL_PEERCRED, LOCAL_PEEREID or SO_PEERCRED
// tell the user.

// The layout of the segment of one end of a connection.
const (
	returnsAt  = 2 << 10
	maxLoans   = 512 // most loans of one end at a time; a power of two
	keptLoans  = 16  // loans for which an idle connection keeps memory
	ringAt     = returnsAt + 4*maxLoans
	ringLen    = 16 << 10 // a power of two
	segmentLen = ringAt + ringLen
)

// words must end before the returns: this does not compile otherwise.
const _ = returnsAt - unsafe.Sizeof(words{})

// words are at the start of a segment. Each cache line has one writer, and words that change at
// different times have lines of their own.
type words struct {
	head        atomic.Uint64 // bytes of the other end's records processed since the start
	_           [56]byte
	awaitsSpace atomic.Uint32 // the writer waits for room in its ring
	closed      atomic.Uint32 // the writer sends no more records, and head does not change any more
	done        atomic.Uint32 // the writer reads no lent memory of the other end any more
	arenas      atomic.Uint32 // arenas beyond fewArenas that the other end may have mapped here at a time
	gib         atomic.Uint32 // GiB beyond fewBytes that these arenas may have
	_           [44]byte

	// One bit for each loan from the other end whose memory may have been passed on to a third
	// process.
	passed [maxLoans / 64]atomic.Uint64
}

// A segment is the mapped segment of one end. That end has mapped it for writing.
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

// lostBit is set in the number of a loan that is given back while a third process may still read
// the memory. The memory must not be written again.
const lostBit = 1 << 15

// giveBack writes the k-th return of a loan, counted from the start, to place k modulo maxLoans.
// The word has the loan's number plus 1, and above it how often all places were used before. So
// each word shows by itself whether it is the k-th.
func (s *segment) giveBack(k uint64, loan uint32) {
	s.returns[k%maxLoans].Store(uint32(k/maxLoans)<<16 | (loan + 1))
}

// givenBack returns the k-th loan that was given back, if it has been. The peer wrote the number,
// so it may have any value.
func (s *segment) givenBack(k uint64) (loan uint32, ok bool) {
	w := s.returns[k%maxLoans].Load()
	return w&0xffff - 1, w&0xffff != 0 && w>>16 == uint32(k/maxLoans)&0xffff
}

// setPassed records that the memory of a loan may be passed on.
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

// put copies b into the ring at position pos, counted in bytes of all records.
func (s *segment) put(pos uint64, b []byte) {
	at := int(pos % ringLen)
	if n := copy(s.ring[at:], b); n < len(b) {
		copy(s.ring, b[n:])
	}
}

// get copies bytes at position pos from the ring to b.
func (s *segment) get(pos uint64, b []byte) {
	at := int(pos % ringLen)
	if n := copy(b, s.ring[at:]); n < len(b) {
		copy(b[n:], s.ring)
	}
}

// line returns the first cache line of the record at pos. A record of a loan has only that line.
func (s *segment) line(pos uint64) []byte {
	at := pos % ringLen
	return s.ring[at : at+line : at+line]
}

// word returns the first word of the record at pos. It is 0 if no record is there yet.
func (s *segment) word(pos uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&s.ring[pos%ringLen]))
}

// A record begins a cache line. Its first word has the kind and, in the upper half, the number of
// bytes that follow. The first word is written last, after the first word of the next record was
// set to 0. So a waiting reader looks at the line in which the next record will appear, and a loan
// takes one line.
const (
	line      = 64
	recordLen = 8                // length of the first word
	mostBytes = ringLen - 2*line // most bytes of records in the ring: one first word is always 0
)

// Kinds of records.
const (
	recBytes = 1 + iota // bytes of the stream of frames, cut anywhere
	recFrame            // one frame whose payload is lent: an extent and a header
	recBatch            // a batch of frames that is lent: an extent
	recHome             // one frame whose payload the reader has lent: an extent and a header
)

const (
	extentLen = 24
	lentLen   = extentLen + subsys.HeaderLen
)

// spanned returns how many bytes of the ring a record with n bytes takes.
func spanned(n int) uint64 { return uint64(recordLen+n+line-1) &^ (line - 1) }

// An extent says where lent bytes lie. In a recHome record, arena is the number of the reader's
// loan, and off is the offset in that loan.
type extent struct {
	arena, loan uint32
	off         uint64
	n           uint32
}

func (d *extent) put(b []byte) {
	le.PutUint32(b, d.arena)
	le.PutUint32(b[4:], d.loan)
	le.PutUint64(b[8:], d.off)
	le.PutUint32(b[16:], d.n)
	le.PutUint32(b[20:], 0)
}

func (d *extent) parse(b []byte) {
	d.arena, d.loan, d.off, d.n = le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint32(b[16:])
}

// broken returns an error for a violation of the protocol by a peer.
func broken(format string, args ...any) error {
	return fmt.Errorf("%w: %s", subsys.ErrProtocol, fmt.Sprintf(format, args...))
}
