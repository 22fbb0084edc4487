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

	"github.com/rocl-go/rocl/directory/image"
	"github.com/rocl-go/rocl/resource"
)

// Errors of this package.
var (
	ErrExists     = errors.New("database: resource exists")
	ErrNotFound   = errors.New("database: no such resource")
	ErrRevision   = errors.New("database: resource has another revision")
	ErrIncomplete = errors.New("database: an attribute has no value")
	ErrNotOwner   = errors.New("database: resource is another context's")
)

// A Record is one resource. Attrs is a view that stays valid for ever; it must
// not be changed.
type Record struct {
	ID, Owner resource.GID
	Revision  uint64
	Attrs     resource.List
}

// record is a Record as it is stored: 56 bytes.
type record struct {
	id         resource.GID
	revision   uint64
	owner      uint32 // index of owners, plus one; 0: not in use
	next, prev uint32 // of the same owner, index plus one
	chunk      uint32
	off, size  uint32 // of the attributes; their places in postings lie before
	places     uint16 // how many
	system     bool
}

type owner struct {
	id    resource.GID
	first uint32 // index of a record plus one
	n     int
}

const chunkSize = 1 << 20

// A DB is one node's resources. It is safe for concurrent use.
type DB struct {
	seed maphash.Seed
	turn atomic.Uint32 // rotates among equals

	mu      sync.RWMutex
	byID    ids
	pages   [][]record // of pageLen each: growing moves nothing
	made    uint32     // records in pages
	vacant  []uint32
	owners  []owner
	ownerOf map[resource.GID]uint32
	noOwner []uint32
	post    postings

	chunks  [][]byte
	live    int // bytes of chunks in use
	dead    int // and not
	watches map[*Watch]struct{}

	image    *image.Writer // nil if there is none
	imaged   uint32        // records before this one are in it
	imageErr error         // why the last one ended
}

// New makes an empty database.
func New() *DB {
	return &DB{
		seed: maphash.MakeSeed(), ownerOf: map[resource.GID]uint32{},
		watches: map[*Watch]struct{}{},
	}
}

// hash of an encoded attribute; never 0. Seeded, so that nobody can choose
// attributes that collide.
func (d *DB) hash(encoded []byte) uint64 { return maphash.Bytes(d.seed, encoded) | 1<<63 }

// Put adds a resource, copying its attributes, and returns revision 1.
// ErrExists if the identifier is taken, ErrIncomplete if a value is absent.
func (d *DB) Put(id, owner resource.GID, attrs *resource.List) (rev uint64, err error) {
	return 1, d.offer(id, owner, 1, attrs, true)
}

// Offer is Put with a revision: the owner repeats what an earlier server knew.
// Offering what is there already, at the same or a later revision, is no error.
func (d *DB) Offer(id, owner resource.GID, rev uint64, attrs *resource.List) error {
	return d.offer(id, owner, max(rev, 1), attrs, false)
}

func (d *DB) offer(id, owner resource.GID, rev uint64, attrs *resource.List, fresh bool) error {
	if !attrs.Complete() {
		return fmt.Errorf("%w: %v", ErrIncomplete, attrs)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if i, ok := d.idGet(id); ok {
		r := d.rec(i)
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
	i := d.place()
	r := d.rec(i)
	*r = record{id: id, revision: rev, system: resource.IsSystem(attrs)}
	d.idPut(id, i)
	d.enlist(i, owner)
	d.store(i, attrs)
	d.notify(i, false)
	return nil
}

const pageLen = 1 << 12

func (d *DB) rec(i uint32) *record { return &d.pages[i/pageLen][i%pageLen] }

// place finds a free record.
func (d *DB) place() uint32 {
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
	ow, r := &d.owners[o], d.rec(i)
	r.owner, r.next, r.prev = o+1, ow.first, 0
	if ow.first != 0 {
		d.rec(ow.first - 1).prev = i + 1
	}
	ow.first = i + 1
	ow.n++
}

func (d *DB) delist(i uint32) {
	r := d.rec(i)
	ow := &d.owners[r.owner-1]
	if r.prev != 0 {
		d.rec(r.prev - 1).next = r.next
	} else {
		ow.first = r.next
	}
	if r.next != 0 {
		d.rec(r.next - 1).prev = r.prev
	}
	if ow.n--; ow.n == 0 {
		delete(d.ownerOf, ow.id)
		d.noOwner = append(d.noOwner, r.owner-1)
	}
}

// store writes the attributes of record i and indexes them.
func (d *DB) store(i uint32, attrs *resource.List) {
	wire := attrs.Wire()
	n := attrs.Len()
	size := 4*n + len(wire)
	c := len(d.chunks) - 1
	if c < 0 || cap(d.chunks[c])-len(d.chunks[c]) < size {
		d.chunks = append(d.chunks, make([]byte, 0, max(size, chunkSize)))
		c++
	}
	chunk := d.chunks[c]
	off := len(chunk) + 4*n
	chunk = append(chunk[:off], wire...)
	d.chunks[c] = chunk
	d.live += size
	r := d.rec(i)
	r.chunk, r.off, r.size, r.places = uint32(c), uint32(off), uint32(len(wire)), uint16(n)
	at := off - 4*n
	im := d.imageOf(i)
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		place := d.post.add(d.hash(a), i)
		binary.LittleEndian.PutUint32(chunk[at:], place)
		at += 4
		if im != nil && place != nowhere {
			im.Index(a, i, place)
		}
	}
	if im != nil {
		d.imagePut(i)
	}
	d.imageDone()
}

func (d *DB) wire(r *record) []byte {
	c := d.chunks[r.chunk]
	return c[r.off : r.off+r.size : r.off+r.size]
}

func (d *DB) placesOf(r *record) []byte {
	return d.chunks[r.chunk][int(r.off)-4*int(r.places) : r.off]
}

// unindex takes record i out of the postings. A record that moves within a
// posting notes its new place; which of its places that is, its own attributes
// tell.
func (d *DB) unindex(i uint32) {
	r := d.rec(i)
	wire, places := d.wire(r), d.placesOf(r)
	var moves []move
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		place := binary.LittleEndian.Uint32(places)
		if places = places[4:]; place == nowhere {
			continue
		}
		h := d.hash(a)
		from := d.post.part(h).find(h).n - 1
		if d.image != nil { // also where i is not in it yet: what moves may be
			d.image.Unindex(a, place, from)
		}
		if moved, ok := d.post.drop(h, place); ok {
			m := move{moved, from, place, h}
			if r.places <= few {
				d.moved(m)
			} else {
				moves = append(moves, m)
			}
		}
	}
	d.movedMany(moves)
	d.live -= int(r.size) + 4*int(r.places)
	d.dead += int(r.size) + 4*int(r.places)
}

// A move says that a record went from one place of the posting of a hash to another.
type move struct {
	rec, from, to uint32
	hash          uint64
}

// few is how many attributes a record has whose moves are noted one by one. Those of a
// longer one are noted together for each record that moved, so that the cost grows with
// the number of attributes and not with its square.
const few = 16

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

// movedOf notes the moves of one record.
func (d *DB) movedOf(moves []move) {
	to := make(map[uint64]move, len(moves))
	for _, m := range moves {
		to[m.hash] = m
	}
	r := d.rec(moves[0].rec)
	wire, places := d.wire(r), d.placesOf(r)
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		h := d.hash(a)
		if m, ok := to[h]; ok && binary.LittleEndian.Uint32(places) == m.from {
			binary.LittleEndian.PutUint32(places, m.to)
			delete(to, h)
		}
		places = places[4:]
	}
}

// moved notes a move.
func (d *DB) moved(m move) {
	r := d.rec(m.rec)
	wire, places := d.wire(r), d.placesOf(r)
	for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
		if binary.LittleEndian.Uint32(places) == m.from && d.hash(a) == m.hash {
			binary.LittleEndian.PutUint32(places, m.to)
			return
		}
		places = places[4:]
	}
}

// compact copies the living attributes to new chunks once half the memory is
// dead. Views of the old chunks stay valid: the collector keeps them.
func (d *DB) compact() {
	if d.dead < 4*chunkSize || d.dead < d.live {
		return
	}
	old := d.chunks
	d.chunks = nil
	for i := range d.made {
		r := d.rec(i)
		if r.owner == 0 {
			continue
		}
		from := int(r.off) - 4*int(r.places)
		b := old[r.chunk][from : r.off+r.size]
		c := len(d.chunks) - 1
		if c < 0 || cap(d.chunks[c])-len(d.chunks[c]) < len(b) {
			d.chunks = append(d.chunks, make([]byte, 0, max(len(b), chunkSize)))
			c++
		}
		at := len(d.chunks[c])
		d.chunks[c] = append(d.chunks[c], b...)
		r.chunk, r.off = uint32(c), uint32(at+4*int(r.places))
	}
	d.dead = 0
}

func (d *DB) replace(i uint32, rev uint64, attrs *resource.List) {
	d.unindex(i)
	d.rec(i).revision = rev
	d.rec(i).system = resource.IsSystem(attrs)
	d.store(i, attrs)
	d.compact()
	d.notify(i, false)
}

// Update replaces the attributes of a resource if it has the expected revision
// (0: any) and returns the new one. ErrNotFound, ErrRevision, ErrIncomplete.
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
	r := d.rec(i)
	if expect != 0 && expect != r.revision {
		return r.revision, fmt.Errorf("%w: %v is at %d, not %d", ErrRevision, id, r.revision, expect)
	}
	rev = r.revision + 1
	d.replace(i, rev, attrs)
	return rev, nil
}

// Delete removes a resource, or returns ErrNotFound.
func (d *DB) Delete(id resource.GID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	i, ok := d.idGet(id)
	if !ok {
		return fmt.Errorf("%w: %v", ErrNotFound, id)
	}
	d.remove(i)
	d.compact()
	return nil
}

func (d *DB) remove(i uint32) {
	if im := d.imageOf(i); im != nil {
		im.Remove(i) // before anybody hears of it
	}
	d.notify(i, true)
	d.unindex(i)
	d.imageDone()
	d.delist(i)
	d.idDelete(d.rec(i).id)
	*d.rec(i) = record{}
	d.vacant = append(d.vacant, i)
}

// DeleteOwner removes everything a context owns and returns how much that was.
func (d *DB) DeleteOwner(id resource.GID) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o, ok := d.ownerOf[id]
	if !ok {
		return 0
	}
	for n = 0; d.owners[o].first != 0; n++ {
		d.remove(d.owners[o].first - 1)
	}
	d.compact()
	return n
}

func (d *DB) record(i uint32) Record {
	r := d.rec(i)
	l, _ := resource.View(d.wire(r))
	return Record{ID: r.id, Owner: d.owners[r.owner-1].id, Revision: r.revision, Attrs: l}
}

// Get returns the resource with an identifier.
func (d *DB) Get(id resource.GID) (Record, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	i, ok := d.idGet(id)
	if !ok {
		return Record{}, false
	}
	return d.record(i), true
}

// Len is the number of resources.
func (d *DB) Len() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.byID.used
}

// Stats describe a database.
type Stats struct {
	Resources, Owners, Watches int
	Watched                    int // entries that watches keep, one for each resource and watch
	AttributeBytes, DeadBytes  int
	ImageBytes                 int // 0 if there is none
}

// Stats returns the present figures.
func (d *DB) Stats() Stats {
	d.mu.RLock()
	defer d.mu.RUnlock()
	s := Stats{Resources: d.byID.used, Owners: len(d.ownerOf), Watches: len(d.watches), AttributeBytes: d.live, DeadBytes: d.dead}
	for w := range d.watches {
		w.mu.Lock()
		s.Watched += len(w.items)
		w.mu.Unlock()
	}
	if d.image != nil {
		s.ImageBytes = d.image.Bytes()
	}
	return s
}
