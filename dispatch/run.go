// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/subsys"
)

// Small messages come many at a time, in one block of memory. A mailbox stores those of one sending
// context as a run: one element of its list, which has only the first as a Message. The next one
// becomes a Message when the first is taken. So a message that is received in order costs little
// until it is received.
//
// Everything but a receive that takes the first message needs all messages in the list. It calls
// expandLocked first.

// runMost is the most messages of a run.
const runMost = 64

// A run has messages of one sending context that came together. They share one reference to the
// block that they lie in.
type run struct {
	d     *Dispatcher
	in    *inflow
	buf   *buffers.Buffer
	left  atomic.Int32 // messages that are not released yet
	next  int          // the first message that is not taken yet
	n     int
	items [runMost]item
}

// An item is a message of a run.
type item struct {
	data        []byte
	tag         uint64
	src         uint32 // the serial of the sending resource
	isForgotten bool
}

// runOf makes a run of the frames fs, at most runMost, whose payloads lie in one buffer.
func (d *Dispatcher) runOf(in *inflow, fs []subsys.Frame) *run {
	r, _ := d.runs.Get().(*run)
	if r == nil {
		r = new(run)
	}
	r.d, r.in, r.buf, r.next, r.n = d, in, fs[0].Buf.Retain(), 0, len(fs)
	r.left.Store(int32(len(fs)))
	for i := range fs {
		f := &fs[i]
		r.items[i] = item{f.Data, f.Tag, f.Src, f.Flags&wire.FlagForget != 0}
	}
	return r
}

// take takes the next message of the run.
func (r *run) take() *Message {
	it := &r.items[r.next]
	r.next++
	m := r.d.unused()
	m.data, m.tag, m.in, m.isForgotten = it.data, it.tag, r.in, it.isForgotten
	m.from = r.in.from.context().WithSerial(it.src)
	m.buf, m.run = r.buf, r
	return m
}

// hasMore reports whether a message of the run is not taken yet.
func (r *run) hasMore() bool { return r.next < r.n }

// drop counts the release of one message. The last one gives the block back.
func (r *run) drop() {
	if r.left.Add(-1) == 0 {
		r.buf.Release()
		r.buf, r.in = nil, nil
		r.d.runs.Put(r)
	}
}

// togetherMost returns how many of the frames fs, at least one, may become one run.
func togetherMost(fs []subsys.Frame) int {
	n := 1
	for b := fs[0].Buf; n < len(fs) && n < runMost && fs[n].Buf == b && b != nil; {
		n++
	}
	return n
}

// storesRunsLocked reports whether a run may be stored as one: no goroutine waits for a message,
// and receives take messages in order. mu must be held.
func (m *Mailbox) storesRunsLocked() bool { return m.waiters.First() == nil && m.matcher == nil }

// storeRunLocked stores the messages of r. mu must be held.
func (m *Mailbox) storeRunLocked(r *run) {
	r.keepDense()
	msg := r.take()
	if r.hasMore() {
		msg.rest = r
	}
	m.count += r.n - r.next
	m.storeLocked(msg)
}

// expandLocked puts all messages of stored runs into the list. mu must be held.
func (m *Mailbox) expandLocked() {
	for msg := m.messages.First(); msg != nil; msg = msg.place.Next() {
		r := msg.rest
		if r == nil {
			continue
		}
		msg.rest = nil
		m.keepDenseLocked(msg)
		for at := msg; r.hasMore(); {
			next := r.take()
			m.messages.InsertBehind(&at.place, next, &next.place)
			m.keepDenseLocked(next)
			at, msg = next, next
		}
	}
}

// unlinkRunLocked takes a stored message that has a rest from the list. The next message of the run
// comes into its place. mu must be held.
func (m *Mailbox) unlinkRunLocked(msg *Message) {
	r := msg.rest
	msg.rest = nil
	next := r.take()
	if r.hasMore() {
		next.rest = r
	}
	m.messages.Replace(&msg.place, next, &next.place)
}

// keepDenseLocked gives the payload of msg, which is stored, memory of its own, if it needs less
// than half of the block that it lies in: a block comes back when its last message is released. So
// stored messages keep at most about twice the memory that they are charged. Without memory the
// payload stays in the block: the pool bounds what is kept. mu must be held.
func (m *Mailbox) keepDenseLocked(msg *Message) {
	if msg.buf == nil || msg.isSent || msg.buf.Footprint(m.d.cfg.Pool) <= int(2*charge(len(msg.data))) {
		return
	}
	b, err := m.d.cfg.Pool.GetReserved(len(msg.data))
	if err != nil {
		return
	}
	copy(b.Bytes(), msg.data)
	m.d.CountCopy(len(msg.data))
	msg.moveTo(b)
	if msg.run != nil {
		msg.run.drop()
		msg.run, msg.d = nil, m.d
	}
}

// keepDense is keepDenseLocked for all messages of a run that nothing has been taken from.
func (r *run) keepDense() {
	bytes := 0
	for i := range r.n {
		bytes += len(r.items[i].data)
	}
	if r.buf.Footprint(r.d.cfg.Pool) <= 2*(bytes+overhead*r.n) {
		return
	}
	b, err := r.d.cfg.Pool.GetReserved(bytes)
	if err != nil {
		return
	}
	r.d.CountCopy(bytes)
	mem := b.Bytes()
	for i := range r.n {
		it := &r.items[i]
		n := copy(mem, it.data)
		it.data, mem = mem[:n:n], mem[n:]
	}
	r.buf.Release()
	r.buf = b
}
