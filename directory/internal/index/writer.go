// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/rocl-go/rocl/internal/os/memfd"
	"github.com/rocl-go/rocl/resource"
)

// A Writer makes an index. Only one goroutine may use it at a time. After an error, which Err
// returns, its methods do nothing, and readers see that the index has ended.
//
// The caller chooses the numbers of records and the positions in postings. They are those of its
// own index.
type Writer struct {
	key
	fd       int
	mem      []byte
	w        []atomic.Uint64
	space    space
	pages    uint64        // words of the directory of pages that have memory
	used     [parts]uint64 // slots in use, of each part
	changing []uint64      // places of the parts that are odd until Commit
	err      error         // why the index has ended
}

// New makes an index that may grow to size bytes. The caller fills it and then calls Live, from
// which on readers may use it.
func New(size int) (*Writer, error) {
	size = max(size, minSize) &^ 4095
	fd, mem, err := memfd.Reserve("rocl-directory", size)
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	w := &Writer{fd: fd, mem: mem, w: wordsOf(mem)}
	w.space = space{next: atData, size: uint64(size / 8), commit: func(from, to uint64) error {
		if err := memfd.Commit(context.Background(), fd, int(from)*8, int(to)*8); err != nil {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		return nil
	}}
	if err := w.space.commit(0, atPages); err != nil {
		w.Close()
		return nil, err
	}
	w.space.there = atData
	var k [16]byte
	_, _ = rand.Read(k[:]) // Read never fails
	w.key = key{binary.LittleEndian.Uint64(k[:]), binary.LittleEndian.Uint64(k[8:])}
	w.w[atKey].Store(w.k0)
	w.w[atKey+1].Store(w.k1)
	w.w[atMagic].Store(magic)
	return w, nil
}

// File returns a descriptor of the index for readers to map, and the size of the file. The caller
// closes the descriptor.
func (w *Writer) File() (fd, size int, err error) {
	if w.mem == nil {
		return -1, 0, ErrEnded
	}
	fd, err = memfd.Dup(w.fd)
	return fd, len(w.mem), err
}

// Bytes returns how much memory the index takes.
func (w *Writer) Bytes() int { return int(atPages+w.pages+w.space.there-atData) * 8 }

// Err returns the reason why the index has ended, nil if it has not.
func (w *Writer) Err() error { return w.err }

// Live tells readers that the index is complete and may be used.
func (w *Writer) Live() {
	if w.err == nil {
		w.w[atState].Store(live)
	}
}

// SetAlone tells readers whether the node is alone: then a resource that is not in the index does
// not exist.
func (w *Writer) SetAlone(alone bool) {
	if w.mem == nil {
		return
	}
	v := uint64(0)
	if alone {
		v = 1
	}
	w.w[atAlone].Store(v)
}

// fail records the first error and ends the index for readers.
func (w *Writer) fail(err error) {
	if w.err == nil {
		w.err = err
		w.w[atState].Store(ended)
	}
}

// Close ends the index. Processes that have mapped it may still read it, and see that it has ended.
func (w *Writer) Close() {
	if w.mem == nil {
		return
	}
	w.fail(ErrEnded)
	memfd.Unmap(w.mem)
	memfd.Close(w.fd)
	w.mem, w.w = nil, nil
}

// Commit ends a change. From then on readers rely on what was indexed, put and removed since the
// last Commit.
func (w *Writer) Commit() {
	if w.mem == nil {
		return
	}
	for _, p := range w.changing {
		w.w[p].Store(w.w[p].Load() + 1)
	}
	w.changing = w.changing[:0]
	const worn = 8 << 20 // words; a smaller loss is accepted
	if w.space.idle > worn && w.space.idle > w.space.next/2 {
		w.fail(ErrWorn)
	}
}

// beginChange makes the version of a part odd until Commit.
func (w *Writer) beginChange(p uint64) {
	if w.w[p].Load()&1 == 0 {
		w.w[p].Add(1) // readers see nothing that follows before this
		w.changing = append(w.changing, p)
	}
}

// get returns a block of n words with arbitrary content. If there is none it ends the index.
func (w *Writer) get(n uint64) (at uint64, ok bool) {
	at, err := w.space.get(n)
	if err != nil {
		w.fail(err)
	}
	return at, err == nil
}

// zeroed is get with a block of zeros.
func (w *Writer) zeroed(n uint64) (at uint64, ok bool) {
	if at, ok = w.get(n); ok {
		clear(w.mem[at*8 : (at+n)*8])
	}
	return at, ok
}

// Put stores a resource as record i. Its attributes must be indexed before.
func (w *Writer) Put(i uint32, id, owner resource.GID, revision uint64, system bool, attrs *resource.List) {
	if w.err != nil {
		return
	}
	r, ok := w.record(i)
	if !ok {
		return
	}
	wire := attrs.Wire()
	desc := flagUsed | uint64(len(wire))
	block := uint64(0)
	switch {
	case len(wire) > maxKept:
		wire, desc = nil, flagUsed|flagLarge
	case len(wire) > maxWithin || owner != id.Context():
		desc |= flagBlock
		if block, ok = w.get(blockLen(len(wire))); !ok {
			return
		}
		hi, lo := splitGID(owner)
		b := w.mem[block*8:]
		binary.NativeEndian.PutUint64(b, hi)
		binary.NativeEndian.PutUint64(b[8:], lo)
		copy(b[8*blockHead:], wire)
	}
	if system {
		desc |= flagSystem
	}
	was, wasAt := w.w[r+3].Load(), w.w[r+recordHead].Load()
	if was == 0 {
		w.addPosting(w.ofID(id), i, 0)
	}
	hi, lo := splitGID(id)
	w.w[r].Add(1) // readers see nothing that follows before this
	w.w[r+1].Store(hi)
	w.w[r+2].Store(lo)
	w.w[r+3].Store(desc)
	w.w[r+4].Store(revision)
	if block != 0 {
		w.w[r+recordHead].Store(block)
	} else {
		copy(w.mem[8*(r+recordHead):8*(r+recordLen)], wire)
	}
	w.w[r].Store(w.w[r].Load() + 1)
	w.release(was, wasAt)
}

// blockLen returns the words of a block with a list of so many bytes.
func blockLen(wire int) uint64 { return blockHead + uint64(wire+7)/8 }

// release frees the block of a record with that description, if it has one.
func (w *Writer) release(desc, block uint64) {
	if desc&flagBlock != 0 {
		w.space.put(block, blockLen(int(desc&sizeMask)))
	}
}

// Remove empties record i. From then on readers do not find it. The caller takes its attributes out
// of the index afterwards.
func (w *Writer) Remove(i uint32) {
	if w.err != nil {
		return
	}
	r, ok := w.record(i)
	if !ok {
		return
	}
	was := w.w[r+3].Load()
	if was == 0 {
		return
	}
	id := joinGID(w.w[r+1].Load(), w.w[r+2].Load())
	w.w[r].Add(1)
	w.w[r+3].Store(0)
	w.w[r].Store(w.w[r].Load() + 1)
	w.release(was, w.w[r+recordHead].Load())
	w.removePosting(w.ofID(id), 0, 0)
}

// record returns the place of record i and makes its page if necessary.
func (w *Writer) record(i uint32) (at uint64, ok bool) {
	n := uint64(i) / pageLen
	if n >= maxPages {
		w.fail(ErrFull)
		return 0, false
	}
	word := &w.w[atPages+n/2]
	page := uint64(0)
	if n/2 < w.pages {
		page = uint64(half(word.Load(), uint32(n)))
	}
	if page == 0 {
		if !w.directory(n / 2) {
			return 0, false
		}
		if page, ok = w.zeroed(pageLen * recordLen); !ok {
			return 0, false
		}
		word.Store(word.Load() | page<<(32*(n&1)))
	}
	if made := uint64(i) + 1; made > w.w[atMade].Load() {
		w.w[atMade].Store(made)
	}
	return page + uint64(i)%pageLen*recordLen, true
}

// directory ensures that word n of the directory of pages has memory.
func (w *Writer) directory(n uint64) bool {
	const more = 512
	for n >= w.pages {
		if err := w.space.commit(atPages+w.pages, atPages+w.pages+more); err != nil {
			w.fail(err)
			return false
		}
		w.pages += more
	}
	return true
}

// AddPosting stores that record i is at a position of the posting of an attribute.
func (w *Writer) AddPosting(encoded []byte, i, pos uint32) {
	if w.err == nil {
		w.addPosting(w.of(encoded), i, pos)
	}
}

// RemovePosting removes an entry from the posting of an attribute: the last entry, which was at
// from, moves to pos, and the posting is one shorter.
func (w *Writer) RemovePosting(encoded []byte, pos, from uint32) {
	if w.err == nil {
		w.removePosting(w.of(encoded), pos, from)
	}
}

// addPosting is AddPosting for a hash.
func (w *Writer) addPosting(h uint64, i, pos uint32) {
	part := partOf(h)
	w.beginChange(part)
	at, ok := w.slot(part, h)
	if !ok {
		return
	}
	p := posting(w.w[at+1].Load())
	switch {
	case pos < p.len() && w.entry(p, pos) != 0:
		w.fail(ErrCollision)
		return
	case !p.list() && pos == 0:
		p = makePosting(i+1, 1, false)
	default:
		if p, ok = w.grow(p, pos+1); !ok {
			return
		}
		w.setEntry(p, pos, i+1)
	}
	w.w[at+1].Store(uint64(p))
}

// removePosting is Unindex for a hash.
func (w *Writer) removePosting(h uint64, pos, from uint32) {
	part := partOf(h)
	w.beginChange(part)
	at := w.find(part, h)
	if at == 0 {
		return // the index is being filled and does not have the attribute yet
	}
	p := posting(w.w[at+1].Load())
	last := uint32(0)
	if from < p.len() {
		last = w.entry(p, from)
	}
	n := min(p.len(), from)
	switch {
	case n == 0:
		if p.list() {
			w.drop(p)
		}
		w.remove(part, at)
		return
	case !p.list(): // one entry, and the last entry is not in the index yet
		if pos == 0 {
			p = makePosting(0, 1, false)
		}
	default:
		if pos < n {
			w.setEntry(p, pos, last)
		}
		p = w.shrink(p, n)
	}
	w.w[at+1].Store(uint64(p))
}

// entry returns the entry at a position of a posting, which must be longer than that.
func (w *Writer) entry(p posting, pos uint32) uint32 {
	if !p.list() {
		return p.ref()
	}
	return half(w.w[p.ref()+1+pos/2].Load(), pos)
}

// setEntry stores e at a position of a posting with a list.
func (w *Writer) setEntry(p posting, pos, e uint32) {
	word := &w.w[p.ref()+1+pos/2]
	shift := 32 * (pos & 1)
	word.Store(word.Load()&^(0xffffffff<<shift) | uint64(e)<<shift)
}

// listLen returns the words of a list with room for n entries.
func listLen(n uint32) uint64 { return 1 + (uint64(n)+1)/2 }

// listCap returns the number of entries for which the list of p has room.
func (w *Writer) listCap(p posting) uint32 { return uint32(w.w[p.ref()].Load()) }

// drop frees the list of p.
func (w *Writer) drop(p posting) { w.space.put(uint64(p.ref()), listLen(w.listCap(p))) }

// grow makes a posting n entries long. New entries are 0.
func (w *Writer) grow(p posting, n uint32) (posting, bool) {
	if n <= p.len() {
		return p, true
	}
	if p.list() && n <= w.listCap(p) {
		for k := p.len(); k < n; k++ {
			w.setEntry(p, k, 0)
		}
		return makePosting(p.ref(), n, true), true
	}
	room := uint32(2)
	for room < n {
		room = 2*room + 2 // with the word before the entries, the list has a power of two of words
	}
	return w.list(p, n, room)
}

// list copies the first n entries of a posting to a new list with room for room entries, and frees
// the old list.
func (w *Writer) list(p posting, n, room uint32) (posting, bool) {
	at, ok := w.zeroed(listLen(room))
	if !ok {
		return p, false
	}
	w.w[at].Store(uint64(room))
	to := makePosting(uint32(at), n, true)
	keep := min(n, p.len())
	if p.list() {
		words := 8 * (listLen(keep) - 1)
		copy(w.mem[8*(at+1):], w.mem[8*(uint64(p.ref())+1):][:words])
		if keep%2 != 0 {
			w.setEntry(to, keep, 0)
		}
		w.drop(p)
	} else if keep == 1 {
		w.setEntry(to, 0, p.ref())
	}
	return to, true
}

// shrink makes a list n entries long, which is fewer than before.
func (w *Writer) shrink(p posting, n uint32) posting {
	if n == 1 {
		one := makePosting(w.entry(p, 0), 1, false)
		w.drop(p)
		return one
	}
	p = makePosting(p.ref(), n, true)
	if room := w.listCap(p); room > 64 && n < room/4 {
		if q, ok := w.list(p, n, room/2); ok {
			return q
		}
	}
	return p
}

// table returns the place and the mask of a part's table.
func (w *Writer) table(part uint64) (at, mask uint64) {
	t := w.w[part+1].Load()
	if t == 0 {
		return 0, 0
	}
	return t >> 32, 1<<(t&0xff) - 1
}

// find returns the place of the slot with h, 0 if there is none.
func (w *Writer) find(part, h uint64) uint64 {
	at, mask := w.table(part)
	if at == 0 {
		return 0
	}
	for i := slotOf(h) & mask; ; i = (i + 1) & mask {
		switch w.w[at+2*i].Load() {
		case h:
			return at + 2*i
		case 0:
			return 0
		}
	}
}

// slot returns the place of the slot with h, and makes the slot if necessary.
func (w *Writer) slot(part, h uint64) (uint64, bool) {
	if at := w.find(part, h); at != 0 {
		return at, true
	}
	used := &w.used[(part-atParts)/2]
	at, mask := w.table(part)
	if at == 0 || (*used+1)*4 > (mask+1)*3 {
		log := uint64(3)
		if at != 0 {
			log = w.w[part+1].Load()&0xff + 1
		}
		to, ok := w.zeroed(2 << log)
		if !ok {
			return 0, false
		}
		newMask := uint64(1)<<log - 1
		for i := uint64(0); at != 0 && i <= mask; i++ {
			if e := w.w[at+2*i].Load(); e != 0 {
				j := to + 2*w.vacant(to, newMask, e)
				w.w[j].Store(e)
				w.w[j+1].Store(w.w[at+2*i+1].Load())
			}
		}
		w.w[part+1].Store(to<<32 | log)
		if at != 0 {
			w.space.put(at, 2*(mask+1))
		}
		at, mask = to, newMask
	}
	*used++
	s := at + 2*w.vacant(at, mask, h)
	w.w[s+1].Store(0)
	w.w[s].Store(h)
	return s, true
}

// vacant returns the number of the first empty slot for h.
func (w *Writer) vacant(at, mask, h uint64) uint64 {
	i := slotOf(h) & mask
	for w.w[at+2*i].Load() != 0 {
		i = (i + 1) & mask
	}
	return i
}

// remove empties the slot at a place.
func (w *Writer) remove(part, slot uint64) {
	at, mask := w.table(part)
	w.used[(part-atParts)/2]--
	i := (slot - at) / 2
	for j := i; ; {
		j = (j + 1) & mask
		e := w.w[at+2*j].Load()
		if e == 0 {
			break
		}
		// An entry that was placed behind i because i was taken may move to i.
		if home := slotOf(e) & mask; (j-home)&mask >= (j-i)&mask {
			w.w[at+2*i].Store(e)
			w.w[at+2*i+1].Store(w.w[at+2*j+1].Load())
			i = j
		}
	}
	w.w[at+2*i].Store(0)
	w.w[at+2*i+1].Store(0)
}
