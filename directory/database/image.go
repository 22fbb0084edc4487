// SPDX-License-Identifier: Apache-2.0

package database

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/rocl-go/rocl/directory/image"
	"github.com/rocl-go/rocl/resource"
)

// ErrImaged is returned by Image if the database has an image already.
var ErrImaged = errors.New("database: there is an image")

// imageBatch is the number of records that are copied to a new image at a time. Changes wait that
// long.
const imageBatch = 256

// Image makes an image of the database, which may grow to size bytes. Image returns when the image
// is filled; ctx limits that. The database answers and changes meanwhile. The image follows all
// changes until [DB.DropImage], or until it cannot go on: see [DB.ImageErr].
func (d *DB) Image(ctx context.Context, size int) error {
	im, err := d.beginImage(size)
	for done := false; err == nil && !done; {
		if ctx.Err() != nil {
			d.DropImage()
			return fmt.Errorf("database: filling the image: %w", context.Cause(ctx))
		}
		done, err = d.fill(im, imageBatch)
	}
	return err
}

// beginImage makes an empty image and attaches it. ErrImaged says that there is one.
func (d *DB) beginImage(size int) (*image.Writer, error) {
	im, err := image.New(size)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.image != nil {
		im.Close()
		return nil, ErrImaged
	}
	d.image, d.imaged, d.imageErr = im, 0, nil
	return im, nil
}

// fill copies up to n records to im. done reports whether all are copied. It is an error if im is
// no longer the database's image.
func (d *DB) fill(im *image.Writer, n int) (done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for range n {
		if d.image != im {
			return false, fmt.Errorf("database: filling the image: %w", cmp.Or(d.imageErr, image.ErrEnded))
		}
		if d.imaged == d.made {
			d.imaged = math.MaxUint32 // all records, and all that are added later
			im.Live()
			return true, nil
		}
		i := d.imaged
		d.imaged++
		r := d.rec(i)
		if r.owner == 0 {
			continue
		}
		wire, places := d.wire(r), d.positionsOf(r)
		for a, next := resource.KnownAt(wire, 0); a != nil; a, next = resource.KnownAt(wire, next) {
			if place := binary.LittleEndian.Uint32(places); place != nowhere {
				im.Index(a, i, place)
			}
			places = places[4:]
		}
		d.imagePut(i)
		d.imageDone()
	}
	return false, nil
}

// imageOf returns the image if record i is in it or about to be, else nil.
func (d *DB) imageOf(i uint32) *image.Writer {
	if i >= d.imaged {
		return nil
	}
	return d.image
}

// imagePut writes record i to the image. The record's attributes must be indexed there.
func (d *DB) imagePut(i uint32) {
	r := d.record(i)
	d.image.Put(i, r.ID, r.Owner, r.Revision, d.rec(i).system, &r.Attrs)
}

// imageDone ends a change of the image, if there is one, and drops an image that cannot go on.
func (d *DB) imageDone() {
	if d.image == nil {
		return
	}
	d.image.Commit()
	if err := d.image.Err(); err != nil {
		d.dropImage(err)
	}
}

// dropImage ends the image, if there is one, and records why. mu must be held.
func (d *DB) dropImage(why error) {
	if d.image != nil {
		d.image.Close()
		d.image, d.imaged, d.imageErr = nil, 0, why
	}
}

// DropImage ends the image, if there is one. Readers of the image see that it has ended.
func (d *DB) DropImage() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropImage(image.ErrEnded)
}

// ImageErr returns the reason why the last image ended. It returns nil while there is an image, and
// if there never was one.
func (d *DB) ImageErr() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.imageErr
}

// ImageAlone tells the image's readers whether the node is alone: then a resource that is not in
// the image does not exist, and no other node needs to be asked.
func (d *DB) ImageAlone(alone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.image != nil {
		d.image.SetAlone(alone)
	}
}

// ImageFile returns a descriptor of the image for readers to map, and the size of the file. The
// caller closes the descriptor. It is an error if there is no image or if the image is not filled
// yet.
func (d *DB) ImageFile() (fd, size int, err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.image == nil || d.imaged != math.MaxUint32 {
		return -1, 0, fmt.Errorf("database: handing over the image: %w", cmp.Or(d.imageErr, image.ErrEnded))
	}
	return d.image.File()
}
