// SPDX-License-Identifier: Apache-2.0

package index

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/dchest/siphash"
	"github.com/rocl-go/rocl/resource"
)

// Protocol: The index
//
// The index has the node's resources in a memfd of 16 GiB, mostly not allocated: words u64 in the
// machine's order. Places are numbers of words, 0 none. Of two numbers in a word, the first is the
// lower half.
//
// | at | what |
// |---|---|
// | 0 | `rimage`, 0, version 1 |
// | 1 | key of the hashes, two words |
// | 3 | state: 0 being filled, 1 valid, 2 ended |
// | 4 | 1: what is not here does not exist |
// | 5 | number of records |
// | 16 | 256 parts of two words: version; place of the table (upper half), log2 of its slots |
// | 1,024 | places of pages of 128 records, u32 each, up to 524,288 |
// | 263,168 | tables, lists, records, blocks |
//
// A hash is the SipHash-2-4, under the key, of an attribute's form in a list; of an identifier's 16
// bytes with the key's first word inverted. Bit 63 is then set. The lowest 8 bits are the part; the
// rest, modulo the slots, the first slot to look at, on to an empty one. A slot is a hash and a
// posting: bit 0 says whether it is a list, bits 1 to 31 its length, the upper half a record's
// number plus one, or the list's place. A list is a word for the writer, then numbers plus one,
// u32.
//
// A record has 16 words: sequence number; identifier, two words; description; revision; the list,
// up to 88 bytes, or the place of a block: owner, two words, and list. Description: 0 free; bit 31
// used; 30 found only by `rocl.` names; 29 the list, above 64 KiB, is not here; 28 a block; bits 0
// to 19 bytes of the list.
//
// A version or sequence number is odd while its object changes. What was read counts if the number
// was even before and is the same after, "nothing matches" if the part's version too.

// The file consists of words of eight bytes. A place is the number of a word. The header begins at
// 0, so place 0 means none.
const (
	magic = 0x01_00_6567_616d_6972 // "rimage", version 1

	atMagic = 0
	atKey   = 1 // two words
	atState = 3
	atAlone = 4
	atMade  = 5 // number of records, including free ones
	// Two words for each part: its version; the place of its table (upper half) and log2 of the
	// table's number of slots (lower half).
	atParts = 16
	atPages = 1024 // half a word for each page: its place
	atData  = atPages + maxPages/2

	parts    = 256
	pageLen  = 128 // records of a page
	maxPages = 1 << 19

	// A record has its sequence number, its identifier (two words), its description, its revision,
	// and then its list or the place of a block with owner and list.
	recordLen  = 16 // two cache lines, which the processor fetches together
	recordHead = 5
	maxWithin  = 8 * (recordLen - recordHead) // bytes of a list within a record
	blockHead  = 2

	// The description of a record is 0 if the record has no resource.
	flagUsed   = 1 << 31
	flagSystem = 1 << 30
	flagLarge  = 1 << 29 // the list is too large to be kept
	flagBlock  = 1 << 28 // the place of a block follows, rather than the list
	sizeMask   = 1<<20 - 1

	// maxKept is the size of the largest list that the index keeps.
	maxKept = 64 << 10
)

// States of an index.
const (
	filling = iota
	live
	ended
)

// DefaultSize is the size up to which an index can grow: 16 GiB, or 256 MiB on 32 bits. It is
// address space, not memory.
const DefaultSize = 1 << 28 << (6 * (^uint(0) >> 63)) // 16 GiB, 256 MiB on 32 bits

// minSize has room for the header, most of which is never touched, and as much again.
const minSize = 4 << 20

// Errors of this package.
var (
	// ErrFull says that an index cannot grow: its size, or the machine's memory, is used up.
	ErrFull = errors.New("index: the index is full")
	// ErrWorn says that most of an index's memory is not in use any more.
	ErrWorn = errors.New("index: most of the memory is unused")
	// ErrCollision says that two attributes have the same hash.
	ErrCollision = errors.New("index: two attributes have the same hash")
	// ErrEnded says that an index is no longer updated.
	ErrEnded = errors.New("index: the index is no longer updated")
	// ErrMalformed says that a file is not an index.
	ErrMalformed = errors.New("index: the file is not a valid index")
)

// wordsOf returns mapped memory as words.
func wordsOf(mem []byte) []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[0])), len(mem)/8)
}

// key is the key of the hashes.
type key struct{ k0, k1 uint64 }

// of returns the hash of an encoded attribute, which is never 0.
func (k *key) of(encoded []byte) uint64 { return siphash.Hash(k.k0, k.k1, encoded) | 1<<63 }

// ofID returns the hash of an identifier. It uses another key, so that it differs from the hashes
// of attributes.
func (k *key) ofID(id resource.GID) uint64 {
	var b [16]byte
	resource.PutGID(b[:], id)
	return siphash.Hash(^k.k0, k.k1, b[:]) | 1<<63
}

// partOf returns the place of the header of the part to which a hash belongs.
func partOf(h uint64) uint64 { return atParts + 2*(h%parts) }

// slotOf returns the number of the slot, before the mask of the table, at which the search for a
// hash begins.
func slotOf(h uint64) uint64 { return h / parts }

// A posting is the second word of a slot. Its upper half is the number plus one of its only record,
// or the place of a list. Its lower half has the count, and in the lowest bit whether there is a
// list. The first word of a list is for the writer alone. The numbers plus one follow, two in a
// word, the lower half first.
type posting uint64

// makePosting returns a posting of n records. ref is the number plus one, or the place of the list.
func makePosting(ref uint32, n uint32, list bool) posting {
	p := posting(ref)<<32 | posting(n)<<1
	if list {
		p |= 1
	}
	return p
}

func (p posting) ref() uint32 { return uint32(p >> 32) }
func (p posting) len() uint32 { return uint32(p) >> 1 }
func (p posting) list() bool  { return p&1 != 0 }

// half returns number k of an array that has two numbers in each word, if w is its word.
func half(w uint64, k uint32) uint32 { return uint32(w >> (32 * (k & 1))) }

// splitGID returns an identifier as two words.
func splitGID(g resource.GID) (hi, lo uint64) {
	var b [16]byte
	resource.PutGID(b[:], g)
	return binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])
}

// joinGID is the reverse of splitGID.
func joinGID(hi, lo uint64) resource.GID {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return resource.GetGID(b[:])
}
