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

// ErrImaged says that the database has an image already.
var ErrImaged = errors.New("database: there is an image")

// imageBatch is how many records are copied to a new image at a time, which is
// for how long changes wait.
const imageBatch = 256

// Image makes an image of the database, which follows all changes from then on,
// until [DB.DropImage], or until it cannot: see [DB.ImageErr]. It may grow to
// size bytes. While it is filled the database is at work as ever; ctx bounds
// that.
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

// fill copies up to n records to im, unless it is not ours any more.
func (d *DB) fill(im *image.Writer, n int) (done bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for range n {
		if d.image != im {
			return false, fmt.Errorf("database: filling the image: %w", cmp.Or(d.imageErr, image.ErrEnded))
		}
		if d.imaged == d.made {
			d.imaged = math.MaxUint32 // and all that come
			im.Live()
			return true, nil
		}
		i := d.imaged
		d.imaged++
		r := d.rec(i)
		if r.owner == 0 {
			continue
		}
		wire, places := d.wire(r), d.placesOf(r)
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

// imageOf is the image, if record i is in it or about to be.
func (d *DB) imageOf(i uint32) *image.Writer {
	if i >= d.imaged {
		return nil
	}
	return d.image
}

// imagePut writes record i, whose attributes are indexed, to the image.
func (d *DB) imagePut(i uint32) {
	r := d.record(i)
	d.image.Put(i, r.ID, r.Owner, r.Revision, d.rec(i).system, &r.Attrs)
}

// imageDone ends a change of the image, if there is one.
func (d *DB) imageDone() {
	if d.image == nil {
		return
	}
	d.image.Commit()
	if err := d.image.Err(); err != nil {
		d.dropImage(err)
	}
}

func (d *DB) dropImage(why error) {
	if d.image != nil {
		d.image.Close()
		d.image, d.imaged, d.imageErr = nil, 0, why
	}
}

// DropImage ends the image, if there is one. Its readers see that it has.
func (d *DB) DropImage() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropImage(image.ErrEnded)
}

// ImageErr is why the last image ended; nil if there is one, or there was none.
func (d *DB) ImageErr() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.imageErr
}

// ImageAlone says whether what is not in the image is nowhere.
func (d *DB) ImageAlone(alone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.image != nil {
		d.image.SetAlone(alone)
	}
}

// ImageFile is what readers open: a descriptor, the caller's to close, and its
// size.
func (d *DB) ImageFile() (fd, size int, err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.image == nil || d.imaged != math.MaxUint32 {
		return -1, 0, fmt.Errorf("database: handing over the image: %w", cmp.Or(d.imageErr, image.ErrEnded))
	}
	return d.image.File()
}
