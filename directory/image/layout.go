// SPDX-License-Identifier: Apache-2.0

package image

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/dchest/siphash"
	"github.com/rocl-go/rocl/resource"
)

// Everything is words of eight bytes. A place is the number of a word; 0, where
// the header begins, stands for none.
const (
	magic = 0x01_00_6567_616d_6972 // "rimage", version 1

	atMagic = 0
	atKey   = 1 // two words
	atState = 3
	atAlone = 4
	atMade  = 5    // so many records there are, free ones among them
	atParts = 16   // two words each: version; place of the table above, log2 of its slots below
	atPages = 1024 // half a word each: place
	atData  = atPages + maxPages/2

	parts    = 256
	pageLen  = 128 // records
	maxPages = 1 << 19

	// A record: its sequence number; identifier, two words; description; revision;
	// its list, or the place of a block with owner and list.
	recordLen  = 16 // two cache lines, which come together
	recordHead = 5
	maxWithin  = 8 * (recordLen - recordHead) // bytes of a list
	blockHead  = 2

	// The description of a record is 0 if it is nobody's.
	flagUsed   = 1 << 31
	flagSystem = 1 << 30
	flagLarge  = 1 << 29 // the list is not kept
	flagBlock  = 1 << 28 // the place of a block follows, rather than the list
	sizeMask   = 1<<20 - 1

	// maxKept is the size of the largest list in the image.
	maxKept = 64 << 10
)

// States of an image.
const (
	filling = iota
	live
	ended
)

// DefaultSize is how far an image can grow: it is address space, not memory.
const DefaultSize = 1 << 28 << (6 * (^uint(0) >> 63)) // 16 GiB, 256 MiB on 32 bits

// minSize has room for the header, of which most is never touched, and as much
// again.
const minSize = 4 << 20

// Errors of this package.
var (
	// ErrFull says that an image cannot grow: its size, or the machine's memory,
	// is used up.
	ErrFull = errors.New("image: full")
	// ErrWorn says that most of an image's memory is not in use any more.
	ErrWorn = errors.New("image: mostly empty")
	// ErrCollision says that two attributes share a hash.
	ErrCollision = errors.New("image: two attributes have the same hash")
	// ErrEnded says that an image is not kept any more.
	ErrEnded = errors.New("image: ended")
	// ErrMalformed says that what was given is no image.
	ErrMalformed = errors.New("image: malformed")
)

// wordsOf is mapped memory as words.
func wordsOf(mem []byte) []atomic.Uint64 {
	return unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[0])), len(mem)/8)
}

// key is that of the hashes.
type key struct{ k0, k1 uint64 }

// of is the hash of an encoded attribute; never 0.
func (k *key) of(encoded []byte) uint64 { return siphash.Hash(k.k0, k.k1, encoded) | 1<<63 }

// ofID is that of an identifier, under another key: no attribute shares it.
func (k *key) ofID(id resource.GID) uint64 {
	var b [16]byte
	resource.PutGID(b[:], id)
	return siphash.Hash(^k.k0, k.k1, b[:]) | 1<<63
}

// partOf is where the header of the part of a hash is.
func partOf(h uint64) uint64 { return atParts + 2*(h%parts) }

// slotOf is where in a table to look for a hash first.
func slotOf(h uint64) uint64 { return h / parts }

// A posting is the word of a slot behind its hash: with one record that record's
// number plus one above; with more the place of a list. Below are the count and,
// in the lowest bit, whether it is a list. A list is a word that is the writer's,
// then numbers plus one, two in a word, the lower half first.
type posting uint64

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

// half is number k of those that lie two in a word.
func half(w uint64, k uint32) uint32 { return uint32(w >> (32 * (k & 1))) }

func splitGID(g resource.GID) (hi, lo uint64) {
	var b [16]byte
	resource.PutGID(b[:], g)
	return binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])
}

func joinGID(hi, lo uint64) resource.GID {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return resource.GetGID(b[:])
}

// A Record is one resource.
type Record struct {
	ID, Owner resource.GID
	Revision  uint64
	Attrs     resource.List
}
