// SPDX-License-Identifier: Apache-2.0

package database

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rocl-go/rocl/directory/internal/index"
	"github.com/rocl-go/rocl/resource"
)

// Errors of this package. Package directory exports them and says what each means.
var (
	// Cause: nothing matches: it is not registered, has ended, or is in another directory. `rocl`
	// prints `no resource matches`. Remedy: compare `rocl find --contexts` in both environments;
	// wait with `Context.Await`.
	ErrNotFound = errors.New("rocl: no such resource")
	// Cause: `CompareAndSet`: another change came first. Remedy: read again, and repeat.
	ErrRevision = errors.New("rocl: the attributes have changed")
	// Cause: another context owns the resource. Remedy: let that one change it.
	ErrNotOwner = errors.New("rocl: not the owner")
	// Cause: `Unique`: another resource has these attributes. Remedy: use that one.
	ErrExists = errors.New("rocl: resource exists")
	// Cause: an attribute to register, or one of `Unique`, has no value. Remedy: give it one.
	ErrIncomplete = errors.New("rocl: an attribute has no value")
)

// A Record is one resource. In records of this package Attrs is a view that stays valid for ever;
// it must not be changed.
type Record = resource.Record

// record is a Record in the form in which the database stores it: 56 bytes.
type record struct {
	id         resource.GID
	revision   uint64
	owner      uint32 // index in DB.owners plus one; 0: the record is not in use
	next, prev uint32 // records of the same owner, number plus one; 0: none
	chunk      uint32
	off, size  uint32 // of the attributes; their positions in postings, 4 bytes each, lie before them
	positions  uint16 // number of positions
	system     bool   // an attribute of the library's makes it one of the library's own resources
}

// owner is a context that has resources.
type owner struct {
	id    resource.GID
	first uint32 // the first of its records, number plus one
	n     int    // number of records
}

// chunkSize is the size of a chunk of attributes, unless one list needs more.
const chunkSize = 1 << 20

// A DB is the database of one node's resources. It is safe for concurrent use.
type DB struct {
	seed maphash.Seed
	turn atomic.Uint32 // the start of a search among equal records, which rotates

	mu      sync.RWMutex // guards all below
	byID    postings     // from identifiers to records
	pages   [][]record   // of pageLen each; they never move
	made    uint32       // records in pages, in use or vacant
	vacant  []uint32     // records not in use
	owners  []owner
	ownerOf map[resource.GID]uint32
	noOwner []uint32 // owners not in use
	post    postings // from attributes to records

	chunks  [][]byte
	live    int    // bytes of chunks in use
	dead    int    // bytes of chunks not in use
	scanned uint64 // attributes that were looked at to note moves in postings; tests read it
	watches map[*Watch]struct{}

	index    *index.Writer // nil if there is no index
	inIndex  uint32        // records with a lower number are in the index
	indexErr error         // why the last index ended
}

// New makes an empty database.
func New() *DB {
	return &DB{
		seed: maphash.MakeSeed(), ownerOf: map[resource.GID]uint32{},
		byID: newPostings(), post: newPostings(), watches: map[*Watch]struct{}{},
	}
}

// hash returns the hash of an encoded attribute or identifier. It has a seed, so no program can
// choose attributes that collide.
func (d *DB) hash(encoded []byte) uint64 { return maphash.Bytes(d.seed, encoded) }

// idHash returns the hash of an identifier.
func (d *DB) idHash(id resource.GID) uint64 {
	var b [16]byte
	resource.PutGID(b[:], id)
	return d.hash(b[:])
}

// idGet returns the record of id. It reports false if there is none.
func (d *DB) idGet(id resource.GID) (rec uint32, ok bool) {
	var one [1]uint32
	for _, i := range d.byID.get(d.idHash(id), &one) {
		if d.recLocked(i).id == id {
			return i, true
		}
	}
	return 0, false
}

// idDelete removes the identifier of record i from those that are known.
func (d *DB) idDelete(i uint32) {
	var one [1]uint32
	h := d.idHash(d.recLocked(i).id)
	d.byID.drop(h, uint32(slices.Index(d.byID.get(h, &one), i)))
}

// Put adds a resource with a copy of its attributes and returns its revision, 1. It returns
// ErrExists if the identifier is taken, ErrNotOwner if another context has taken it, and
// ErrIncomplete if an attribute has no value.
func (d *DB) Put(id, owner resource.GID, attrs *resource.List) (rev uint64, err error) {
	return 1, d.offer(id, owner, 1, attrs, true)
}

// Offer is Put with a revision, for an owner that repeats what an earlier server knew. If the
// database has the resource at an earlier revision, Offer replaces it. At the same or a later
// revision it changes nothing and returns nil.
func (d *DB) Offer(id, owner resource.GID, rev uint64, attrs *resource.List) error {
	return d.offer(id, owner, max(rev, 1), attrs, false)
}

// offer is Put if fresh is true, else Offer.
func (d *DB) offer(id, owner resource.GID, rev uint64, attrs *resource.List, fresh bool) error {
	if !attrs.Complete() {
		return fmt.Errorf("%w: %v", ErrIncomplete, attrs)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if i, ok := d.idGet(id); ok {
		r := d.recLocked(i)
		switch {
		case d.owners[r.owner-1].id != owner:
			return fmt.Errorf("%w: %v", ErrNotOwner, id)
		case fresh:
			return fmt.Errorf("%w: %v", ErrExists, id)
		case rev <= r.revision:
			return nil
		}
		d.replace(i, rev, attrs)
		return nil
	}
	i := d.vacantRecord()
	r := d.recLocked(i)
	*r = record{id: id, revision: rev, system: resource.IsSystem(attrs)}
	d.byID.add(d.idHash(id), i)
	d.enlist(i, owner)
	d.store(i, attrs)
	d.notifyLocked(i, false)
	return nil
}

// pageLen is the number of records of a page.
const pageLen = 1 << 12

// recLocked returns record i. mu must be held.
func (d *DB) recLocked(i uint32) *record { return &d.pages[i/pageLen][i%pageLen] }

// vacantRecord returns the number of an unused record.
func (d *DB) vacantRecord() uint32 {
	if n := len(d.vacant); n > 0 {
		i := d.vacant[n-1]
		d.vacant = d.vacant[:n-1]
		return i
	}
	if d.made&(pageLen-1) == 0 {
		d.pages = append(d.pages, make([]record, pageLen))
	}
	d.made++
	return d.made - 1
}

// enlist adds record i to those of the owner id.
func (d *DB) enlist(i uint32, id resource.GID) {
	o, ok := d.ownerOf[id]
	if !ok {
		if n := len(d.noOwner); n > 0 {
			o, d.noOwner = d.noOwner[n-1], d.noOwner[:n-1]
		} else {
			o = uint32(len(d.owners))
			d.owners = append(d.owners, owner{})
		}
		d.owners[o] = owner{id: id}
		d.ownerOf[id] = o
	}
	ow, r := &d.owners[o], d.recLocked(i)
	r.owner, r.next, r.prev = o+1, ow.first, 0
	if ow.first != 0 {
		d.recLocked(ow.first - 1).prev = i + 1
	}
	ow.first = i + 1
	ow.n++
}

// delist removes record i from those of its owner, and the owner with its last record.
func (d *DB) delist(i uint32) {
	r := d.recLocked(i)
	ow := &d.owners[r.owner-1]
	if r.prev != 0 {
		d.recLocked(r.prev - 1).next = r.next
	} else {
		ow.first = r.next
	}
	if r.next != 0 {
		d.recLocked(r.next - 1).prev = r.prev
	}
	if ow.n--; ow.n == 0 {
		delete(d.ownerOf, ow.id)
		d.noOwner = append(d.noOwner, r.owner-1)
	}
}

// room returns the chunk, and the place in it, for the next size bytes of attributes.
func (d *DB) room(size int) (c, at int) {
	if c = len(d.chunks) - 1; c < 0 || cap(d.chunks[c])-len(d.chunks[c]) < size {
		d.chunks = append(d.chunks, make([]byte, 0, max(size, chunkSize)))
		c++
	}
	return c, len(d.chunks[c])
}

// store writes the attributes of record i to a chunk, adds their postings, and updates the index.
func (d *DB) store(i uint32, attrs *resource.List) {
	wire := attrs.Wire()
	n := attrs.Len()
	size := 4*n + len(wire)
	c, at := d.room(size)
	off := at + 4*n
	chunk := append(d.chunks[c][:off], wire...)
	d.chunks[c] = chunk
	d.live += size
	r := d.recLocked(i)
	r.chunk, r.off, r.size, r.positions = uint32(c), uint32(off), uint32(len(wire)), uint16(n)
	im := d.indexWith(i)
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		pos := d.post.add(d.hash(a), i)
		binary.LittleEndian.PutUint32(chunk[at:], pos)
		at += 4
		if im != nil && pos != noPos {
			im.AddPosting(a, i, pos)
		}
	}
	if im != nil {
		d.putInIndex(i)
	}
	d.commitIndex()
}

// wire returns the attributes of r in their wire form, a view of a chunk.
func (d *DB) wire(r *record) []byte {
	c := d.chunks[r.chunk]
	return c[r.off : r.off+r.size : r.off+r.size]
}

// positionsOf returns the positions of r's attributes in their postings, 4 bytes each.
func (d *DB) positionsOf(r *record) []byte {
	return d.chunks[r.chunk][int(r.off)-4*int(r.positions) : r.off]
}

// removePostings takes record i out of the postings. The last record of a posting moves to the
// position that becomes free. For such a record removePostings updates the position that is stored
// with its attribute.
func (d *DB) removePostings(i uint32) {
	r := d.recLocked(i)
	wire, positions := d.wire(r), d.positionsOf(r)
	var moves []move
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		pos := binary.LittleEndian.Uint32(positions)
		if positions = positions[4:]; pos == noPos {
			continue
		}
		h := d.hash(a)
		from := d.post.slots[h].n - 1
		if d.index != nil { // also if i is not in the index yet: the record that moves may be in it
			d.index.RemovePosting(a, pos, from)
		}
		if moved, ok := d.post.drop(h, pos); ok {
			m := move{moved, from, pos, h}
			if r.positions <= few {
				d.moved(m)
			} else {
				moves = append(moves, m)
			}
		}
	}
	d.movedMany(moves)
	d.live -= int(r.size) + 4*int(r.positions)
	d.dead += int(r.size) + 4*int(r.positions)
}

// A move says that record rec went from one position to another in the posting of a hash.
type move struct {
	rec, from, to uint32
	hash          uint64
}

// few is the number of attributes up to which moves are noted one by one. The moves that a longer
// record causes are noted together for each record that moved. So the cost grows with the number of
// attributes and not with its square.
const few = 16

// movedMany notes moves of any records.
func (d *DB) movedMany(moves []move) {
	slices.SortFunc(moves, func(a, b move) int { return cmp.Compare(a.rec, b.rec) })
	for len(moves) > 0 {
		n := 1
		for n < len(moves) && moves[n].rec == moves[0].rec {
			n++
		}
		if n <= few {
			for _, m := range moves[:n] {
				d.moved(m)
			}
		} else {
			d.movedOf(moves[:n])
		}
		moves = moves[n:]
	}
}

// movedOf notes several moves of one record, in one pass over its attributes.
func (d *DB) movedOf(moves []move) {
	to := make(map[uint64]move, len(moves))
	for _, m := range moves {
		to[m.hash] = m
	}
	r := d.recLocked(moves[0].rec)
	wire, positions := d.wire(r), d.positionsOf(r)
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		d.scanned++
		h := d.hash(a)
		if m, ok := to[h]; ok && binary.LittleEndian.Uint32(positions) == m.from {
			binary.LittleEndian.PutUint32(positions, m.to)
			delete(to, h)
		}
		positions = positions[4:]
	}
}

// moved notes one move.
func (d *DB) moved(m move) {
	r := d.recLocked(m.rec)
	wire, positions := d.wire(r), d.positionsOf(r)
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		d.scanned++
		if binary.LittleEndian.Uint32(positions) == m.from && d.hash(a) == m.hash {
			binary.LittleEndian.PutUint32(positions, m.to)
			return
		}
		positions = positions[4:]
	}
}

// compact copies the attributes in use to new chunks once half the memory is not in use. Views of
// the old chunks stay valid, because the garbage collector keeps them.
func (d *DB) compact() {
	if d.dead < 4*chunkSize || d.dead < d.live {
		return
	}
	old := d.chunks
	d.chunks = nil
	for i := range d.made {
		r := d.recLocked(i)
		if r.owner == 0 {
			continue
		}
		from := int(r.off) - 4*int(r.positions)
		b := old[r.chunk][from : r.off+r.size]
		c, at := d.room(len(b))
		d.chunks[c] = append(d.chunks[c], b...)
		r.chunk, r.off = uint32(c), uint32(at+4*int(r.positions))
	}
	d.dead = 0
}

// replace gives record i a revision and attributes, and notifies the watches.
func (d *DB) replace(i uint32, rev uint64, attrs *resource.List) {
	d.removePostings(i)
	d.recLocked(i).revision = rev
	d.recLocked(i).system = resource.IsSystem(attrs)
	d.store(i, attrs)
	d.compact()
	d.notifyLocked(i, false)
}

// Update replaces the attributes of a resource if it has the expected revision (0: any) and returns
// the new revision. It returns ErrNotFound if there is no such resource, ErrRevision with the
// present revision if that is another one, and ErrIncomplete if an attribute has no value.
func (d *DB) Update(id resource.GID, expect uint64, attrs *resource.List) (rev uint64, err error) {
	if !attrs.Complete() {
		return 0, fmt.Errorf("%w: %v", ErrIncomplete, attrs)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	i, ok := d.idGet(id)
	if !ok {
		return 0, fmt.Errorf("%w: %v", ErrNotFound, id)
	}
	r := d.recLocked(i)
	if expect != 0 && expect != r.revision {
		return r.revision, fmt.Errorf("%w: it is at %d, not %d", ErrRevision, r.revision, expect)
	}
	rev = r.revision + 1
	d.replace(i, rev, attrs)
	return rev, nil
}

// Delete removes a resource. It returns ErrNotFound if there is none.
func (d *DB) Delete(id resource.GID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, ok := d.idGet(id)
	if !ok {
		return fmt.Errorf("%w: %v", ErrNotFound, id)
	}
	d.removeLocked(i)
	d.compact()
	return nil
}

// removeLocked deletes record i, from the index first, and notifies the watches. mu must be held.
func (d *DB) removeLocked(i uint32) {
	if im := d.indexWith(i); im != nil {
		im.Remove(i) // before a watch reports that the resource is gone
	}
	d.notifyLocked(i, true)
	d.removePostings(i)
	d.commitIndex()
	d.delist(i)
	d.idDelete(i)
	*d.recLocked(i) = record{}
	d.vacant = append(d.vacant, i)
}

// DeleteOwner removes all resources of a context and returns how many there were.
func (d *DB) DeleteOwner(id resource.GID) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o, ok := d.ownerOf[id]
	if !ok {
		return 0
	}
	for n = 0; d.owners[o].first != 0; n++ {
		d.removeLocked(d.owners[o].first - 1)
	}
	d.compact()
	return n
}

// recordLocked returns record i with a view of its attributes. mu must be held.
func (d *DB) recordLocked(i uint32) Record {
	r := d.recLocked(i)
	l, _ := resource.View(d.wire(r))
	return Record{ID: r.id, Owner: d.owners[r.owner-1].id, Revision: r.revision, Attrs: l}
}

// Get returns the resource with an identifier. It reports false if there is none.
func (d *DB) Get(id resource.GID) (Record, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	i, ok := d.idGet(id)
	if !ok {
		return Record{}, false
	}
	return d.recordLocked(i), true
}

// lenLocked returns the number of resources. mu must be held.
func (d *DB) lenLocked() int { return int(d.made) - len(d.vacant) }

// Len returns the number of resources.
func (d *DB) Len() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.lenLocked()
}

// Stats are figures of a database.
type Stats struct {
	Resources, Owners, Watches int
	Watched                    int // entries of all watches, one for each resource and watch
	AttributeBytes, DeadBytes  int // of chunks, in use and not
	IndexBytes                 int // 0 if there is no index
}

// Stats returns the present figures of the database.
func (d *DB) Stats() Stats {
	d.mu.RLock()
	defer d.mu.RUnlock()
	s := Stats{Resources: d.lenLocked(), Owners: len(d.ownerOf), Watches: len(d.watches), AttributeBytes: d.live, DeadBytes: d.dead}
	for w := range d.watches {
		w.mu.Lock()
		s.Watched += len(w.items)
		w.mu.Unlock()
	}
	if d.index != nil {
		s.IndexBytes = d.index.Bytes()
	}
	return s
}
