// SPDX-License-Identifier: Apache-2.0

package database

import (
	"hash/maphash"

	"github.com/rocl-go/rocl/resource"
)

// ids is a hash table from identifiers to records, with open addressing, linear probing, and
// deletion by moving entries back. An identifier is compared in its record, and only if 32 bits of
// the hash agree. The table takes half the time and memory of a map.
type ids struct {
	tab  []idSlot
	used int
}

// idSlot is an entry of ids.
type idSlot struct {
	hash uint32
	rec  uint32 // number of the record plus one; 0: empty
}

// idHash returns the part of an identifier's hash that the table uses.
func (d *DB) idHash(id resource.GID) uint32 {
	var b [16]byte
	resource.PutGID(b[:], id)
	return uint32(maphash.Bytes(d.seed, b[:]))
}

// idAt returns the slot of id, or -1 if id is not in the table.
func (d *DB) idAt(id resource.GID) int {
	if len(d.byID.tab) == 0 {
		return -1
	}
	h, mask := d.idHash(id), len(d.byID.tab)-1
	for i := int(h) & mask; ; i = (i + 1) & mask {
		switch s := d.byID.tab[i]; {
		case s.rec == 0:
			return -1
		case s.hash == h && d.recLocked(s.rec-1).id == id:
			return i
		}
	}
}

// idGet returns the record of id. It reports false if there is none.
func (d *DB) idGet(id resource.GID) (rec uint32, ok bool) {
	i := d.idAt(id)
	if i < 0 {
		return 0, false
	}
	return d.byID.tab[i].rec - 1, true
}

// idPut adds id, which must not be in the table.
func (d *DB) idPut(id resource.GID, rec uint32) {
	t := &d.byID
	if t.used*4 >= len(t.tab)*3 {
		old := t.tab
		t.tab = make([]idSlot, max(16, 2*len(old)))
		for _, s := range old {
			if s.rec != 0 {
				t.insert(s)
			}
		}
	}
	t.insert(idSlot{d.idHash(id), rec + 1})
	t.used++
}

// insert puts s into the first empty slot from its hash on.
func (t *ids) insert(s idSlot) {
	mask := len(t.tab) - 1
	i := int(s.hash) & mask
	for t.tab[i].rec != 0 {
		i = (i + 1) & mask
	}
	t.tab[i] = s
}

// idDelete removes id, whose record must still have it.
func (d *DB) idDelete(id resource.GID) {
	i := d.idAt(id)
	if i < 0 {
		return
	}
	t := &d.byID
	mask := len(t.tab) - 1
	for j := i; ; {
		j = (j + 1) & mask
		if t.tab[j].rec == 0 {
			break
		}
		// An entry that was placed behind i because i was taken may move to i.
		if home := int(t.tab[j].hash) & mask; (j-home)&mask >= (j-i)&mask {
			t.tab[i] = t.tab[j]
			i = j
		}
	}
	t.tab[i] = idSlot{}
	t.used--
}
