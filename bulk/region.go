// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl"
)

// A Segment is a piece of memory of a region: see [Bytes] and [Buffer].
type Segment struct {
	mem []byte
	buf *rocl.Buffer // nil for plain memory
	bad error
}

// Bytes returns a segment of plain memory, of any length. The region keeps the memory alive.
func Bytes(p []byte) Segment { return Segment{mem: p} }

// Buffer returns a segment of a buffer's memory, which is registered: other processes of the node
// read it where it lies. The region keeps a reference of its own to b.
func Buffer(b *rocl.Buffer) Segment {
	if b == nil {
		return Segment{bad: fmt.Errorf("%w: the buffer is nil", ErrRange)}
	}
	return Segment{mem: b.Bytes(), buf: b}
}

// Order of locks. Region.mu is locked before Endpoint.mu, and is held while buffers are released.
// No other locks of this package are nested, and none is held while a goroutine waits. sharing.mu
// is held while rocl.Context.Routes is called.

// A Region is memory of this process that other processes pull from and push to. Its methods may be
// called concurrently.
type Region struct {
	ep     *Endpoint
	number uint64
	rights Rights
	mem    memory
	bufs   []*rocl.Buffer // the region's own references by segment, nil for plain memory; nil if all segments are plain

	mu        sync.Mutex     // locked before Endpoint.mu
	locators  []*rocl.Buffer // the region's own references to locators that targets may have
	users     int            // transfers that read or write the memory
	isRevoked bool
	isFree    bool          // the references to buffers are released
	idle      chan struct{} // closed when isRevoked is set and users is 0
	exports   exports
}

// Expose makes a region of segments, which targets access as one sequence of bytes. Segments may be
// empty, overlap, and be in several regions.
//
// Expose fails with ErrRange if no segment is given, and with ErrRights if the rights are invalid.
// It fails with rocl.ErrReadOnly if targets might write to a buffer that is ReadOnly, and with
// rocl.ErrClosed if the endpoint is closed.
//
// The program may go on using the memory. The bytes of a pull while the program writes are
// undefined.
func (ep *Endpoint) Expose(rights Rights, segments ...Segment) (*Region, error) {
	r := &Region{ep: ep, rights: rights, idle: make(chan struct{})}
	err := r.add(segments)
	if err == nil && !ep.add(r) {
		r.free()
		err = rocl.ErrClosed
	}
	if err != nil {
		return nil, fmt.Errorf("bulk: expose memory: %w", err)
	}
	return r, nil
}

// add numbers a region, and admits requests for it. It reports false if the endpoint is closed.
func (ep *Endpoint) add(r *Region) bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if ep.isClosed {
		return false
	}
	ep.last++
	r.number = ep.last
	ep.regions[r.number] = r
	return true
}

// An exposeError says what is wrong with the arguments of Expose. It matches kind, whose text is
// about handles.
type exposeError struct {
	text string
	kind error
}

func (e *exposeError) Error() string { return e.text }
func (e *exposeError) Unwrap() error { return e.kind }

func (r *Region) add(segments []Segment) error {
	if !r.rights.isValid() {
		return &exposeError{fmt.Sprintf("there are no such rights: %v", r.rights), ErrRights}
	}
	if len(segments) == 0 {
		return &exposeError{"no segment is given", ErrRange}
	}
	parts := make([][]byte, len(segments))
	for i, s := range segments {
		switch {
		case s.bad != nil:
			return fmt.Errorf("segment %d: %w", i, s.bad)
		case s.buf != nil && s.buf.ReadOnly() && r.rights&WriteOnly != 0:
			return fmt.Errorf("segment %d: %w", i, rocl.ErrReadOnly)
		}
		parts[i] = s.mem
	}
	var ok bool
	if r.mem, ok = newMemory(parts); !ok {
		return &exposeError{"the segments have too many bytes together", ErrRange}
	}
	for i, s := range segments {
		if s.buf != nil {
			if r.bufs == nil {
				r.bufs = make([]*rocl.Buffer, len(segments))
			}
			r.bufs[i] = s.buf.Slice(0, len(s.mem))
		}
	}
	return nil
}

// Len returns the size of the region in bytes.
func (r *Region) Len() int64 { return r.mem.size() }

// Handle returns the handle of the whole region, with all its rights.
func (r *Region) Handle() Handle {
	h := Handle{origin: r.ep.ID(), region: r.number}
	h.steps[0] = step{0, uint64(r.Len()), r.rights}
	h.key = firstKey(&r.ep.secret, r.number, h.steps[0])
	return h
}

// begin counts a transfer. It reports false if the region is revoked.
func (r *Region) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isRevoked {
		return false
	}
	r.users++
	return true
}

// end counts the end of a transfer.
func (r *Region) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users--; r.users == 0 && r.isRevoked {
		close(r.idle)
	}
}

// Release is [Region.Revoke] for memory that the program does not use again. It does not wait.
// Later transfers fail with ErrRevoked, and the region's references to buffers are released when
// the transfers in progress have ended. The garbage collector frees plain memory after that.
//
// A later Revoke does not wait for views of buffers, which have references of their own.
func (r *Region) Release() {
	r.revoke()
	over := r.recall()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users == 0 && !r.areLocatorsOutLocked() && !r.isExported() {
		r.freeLocked()
		return
	}
	go func() {
		<-r.idle
		<-over
		_ = await(context.Background(), func() bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return !r.areLocatorsOutLocked()
		})
		r.free()
	}()
}

// revoke refuses later transfers.
func (r *Region) revoke() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isRevoked {
		return
	}
	r.isRevoked = true
	r.ep.retireLocked(r)
	if r.users == 0 {
		close(r.idle)
	}
}

// retireLocked admits no more requests for a region, and keeps the region until its memory is not
// used any more. The region's mu must be held.
func (ep *Endpoint) retireLocked(r *Region) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	delete(ep.regions, r.number)
	ep.retired[r.number] = r
}

// Revoke ends the region: later transfers fail with ErrRevoked. It waits for the transfers in
// progress, and until every [Endpoint.View] of registered memory is released. When it returns nil,
// nothing reads or writes the memory any more, and the region's references to buffers are released.
//
// If ctx ends first, Revoke returns its cause. The region is revoked then, but its memory may be in
// use until another Revoke returns nil. Only ctx ends the wait for a target that keeps a view. A
// target whose process ends returns all that it held, and so does one that rocl gives up as
// unreachable.
func (r *Region) Revoke(ctx context.Context) error {
	r.revoke()
	r.recall()
	select {
	case <-r.idle:
	case <-ctx.Done():
		return fmt.Errorf("bulk: revoke region %d: transfers are under way: %w", r.number, context.Cause(ctx))
	}
	if err := r.awaitRecall(ctx); err != nil {
		return fmt.Errorf("bulk: revoke region %d: a target accesses it directly: %w", r.number, err)
	}
	if err := await(ctx, func() bool { return !r.isLent() }); err != nil {
		return fmt.Errorf("bulk: revoke region %d: a target has a view, or reads: %w", r.number, err)
	}
	r.free()
	return nil
}

// Close is Revoke without a deadline. It implements io.Closer.
func (r *Region) Close() error { return r.Revoke(context.Background()) }

// The pauses between two checks whether lent memory has been returned.
const (
	lookFirst = 50 * time.Microsecond
	lookMost  = 5 * time.Millisecond
)

// await waits until is reports that other processes have returned registered memory and locators.
// It polls, because a buffer only has a count of its references.
func await(ctx context.Context, is func() bool) error {
	for pause := lookFirst; !is(); pause = min(2*pause, lookMost) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// isLent reports whether a target may still read the memory where it lies.
func (r *Region) isLent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isFree {
		return false
	}
	return r.areLocatorsOutLocked() || slices.ContainsFunc(r.bufs, func(b *rocl.Buffer) bool { return b != nil && b.Refs() > 1 })
}

// free releases the region's references to buffers, once.
func (r *Region) free() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.freeLocked()
}

// freeLocked is free with r.mu held.
func (r *Region) freeLocked() {
	if r.isFree {
		return
	}
	r.isFree = true
	for _, b := range r.bufs {
		if b != nil {
			b.Release()
		}
	}
	r.ep.forget(r)
}

// forget removes a region whose memory is not used any more.
func (ep *Endpoint) forget(r *Region) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	delete(ep.retired, r.number)
}
