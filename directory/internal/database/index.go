// SPDX-License-Identifier: Apache-2.0

package database

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/rocl-go/rocl/directory/internal/index"
	"github.com/rocl-go/rocl/resource"
)

// ErrHasIndex is returned by MakeIndex if the database has an index already.
var ErrHasIndex = errors.New("database: there is an index")

// fillAtOnce is the number of records that are copied to a new index at a time. Changes wait that
// long.
const fillAtOnce = 256

// MakeIndex makes an index of the database, which may grow to size bytes; 0 stands for
// [index.DefaultSize]. MakeIndex returns when the index is filled; ctx limits that. The database
// answers and changes meanwhile. The index follows all changes until [DB.DropIndex], or until it
// cannot go on: then [DB.IndexFile] says why.
func (d *DB) MakeIndex(ctx context.Context, size int) error {
	im, err := d.beginIndex(cmp.Or(size, index.DefaultSize))
	for done := false; err == nil && !done; {
		if ctx.Err() != nil {
			d.DropIndex()
			return fmt.Errorf("database: filling the index: %w", context.Cause(ctx))
		}
		done, err = d.fill(im, fillAtOnce)
	}
	return err
}

// beginIndex makes an empty index and attaches it. ErrHasIndex says that there is one.
func (d *DB) beginIndex(size int) (*index.Writer, error) {
	im, err := index.New(size)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.index != nil {
		im.Close()
		return nil, ErrHasIndex
	}
	d.index, d.inIndex, d.indexErr = im, 0, nil
	return im, nil
}

// fill copies up to n records to im. done reports whether all are copied. It is an error if im is
// no longer the database's index.
func (d *DB) fill(im *index.Writer, n int) (done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for range n {
		if d.index != im {
			return false, fmt.Errorf("database: filling the index: %w", cmp.Or(d.indexErr, index.ErrEnded))
		}
		if d.inIndex == d.made {
			d.inIndex = math.MaxUint32 // all records, and all that are added later
			im.Live()
			return true, nil
		}
		i := d.inIndex
		d.inIndex++
		r := d.recLocked(i)
		if r.owner == 0 {
			continue
		}
		wire, positions := d.wire(r), d.positionsOf(r)
		for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
			if pos := binary.LittleEndian.Uint32(positions); pos != noPos {
				im.AddPosting(a, i, pos)
			}
			positions = positions[4:]
		}
		d.putInIndex(i)
		d.commitIndex()
	}
	return false, nil
}

// indexWith returns the index if record i is in it or about to be, else nil.
func (d *DB) indexWith(i uint32) *index.Writer {
	if i >= d.inIndex {
		return nil
	}
	return d.index
}

// putInIndex writes record i to the index. Its postings must be there.
func (d *DB) putInIndex(i uint32) {
	r := d.recordLocked(i)
	d.index.Put(i, r.ID, r.Owner, r.Revision, d.recLocked(i).system, &r.Attrs)
}

// commitIndex ends a change of the index, if there is one, and drops an index that cannot go on.
func (d *DB) commitIndex() {
	if d.index == nil {
		return
	}
	d.index.Commit()
	if err := d.index.Err(); err != nil {
		d.dropIndexLocked(err)
	}
}

// dropIndexLocked ends the index, if there is one, and records why. mu must be held.
func (d *DB) dropIndexLocked(why error) {
	if d.index != nil {
		d.index.Close()
		d.index, d.inIndex, d.indexErr = nil, 0, why
	}
}

// DropIndex ends the index, if there is one. Readers of the index see that it has ended.
func (d *DB) DropIndex() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropIndexLocked(index.ErrEnded)
}

// SetIndexAlone tells the index's readers whether the node is alone: then a resource that is not in
// the index does not exist, and no other node needs to be asked.
func (d *DB) SetIndexAlone(alone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.index != nil {
		d.index.SetAlone(alone)
	}
}

// IndexFile returns a descriptor of the index for readers to map, and the size of the file. The
// caller closes the descriptor. It is an error if there is no index or if the index is not filled
// yet. The error wraps the reason why the last index ended.
func (d *DB) IndexFile() (fd, size int, err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.index == nil || d.inIndex != math.MaxUint32 {
		return -1, 0, fmt.Errorf("database: handing over the index: %w", cmp.Or(d.indexErr, index.ErrEnded))
	}
	return d.index.File()
}
