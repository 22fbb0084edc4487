// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// Small messages come many at a time, in one block of memory. A mailbox stores those of one sending
// context as a run: one element of its list, which has only the first as a Message. The next one
// becomes a Message when the first is taken. So a message that is received in order costs little
// until it is received.
//
// Everything but a receive that takes the first message needs all messages in the list. It calls
// expandLocked first.

const (
	runMost  = 64 // messages of a run
	runLeast = 8  // messages of a short run, and the fewest messages that come over a link and become one
)

// A run has messages of one sending context that came together.
type run struct {
	d     *Dispatcher
	in    *inflow
	from  resource.GID    // the sending context
	buf   *buffers.Buffer // the block that payloads lie in; nil: none
	items []item
	msgs  []Message // made of the items when they are received
	_     [64]byte

	claims atomic.Uint64 // of receives without a lock: see claims
	left   atomic.Int32  // messages that are not released yet, and other users of the run
	_      [64]byte      // a receiver writes left while a sender writes n

	n     atomic.Int32        // how many messages the run has; grows while it is in a local queue
	after atomic.Pointer[run] // the next run of the local queue; a run that has one does not grow
}

// An item is a message of a run.
type item struct {
	data        []byte
	buf         *buffers.Buffer // the buffer that data lies in; nil: the block
	tag         uint64
	src         uint32 // the serial of the sending resource
	isForgotten bool
}

// run returns an empty run for up to n messages, or a few more, with a block, which it owns.
func (d *Dispatcher) run(in *inflow, block *buffers.Buffer, n int) *run {
	pool, size := &d.runs, runMost
	if n <= runLeast {
		pool, size = &d.shortRuns, runLeast
	}
	r, _ := pool.Get().(*run)
	if r == nil {
		r = &run{items: make([]item, size), msgs: make([]Message, size)}
	}
	r.d, r.in, r.buf, r.from = d, in, block, in.from.context()
	r.n.Store(0)
	r.after.Store(nil)
	return r
}

// runOf makes a run of the frames fs, at most runMost, whose payloads lie in one buffer.
func (d *Dispatcher) runOf(in *inflow, fs []subsys.Frame) *run {
	r := d.run(in, fs[0].Buf.Retain(), len(fs))
	for i := range fs {
		f := &fs[i]
		it := &r.items[i]
		it.data, it.buf, it.tag, it.src, it.isForgotten = f.Data, nil, f.Tag, f.Src, f.Flags&wire.FlagForget != 0
	}
	r.left.Store(int32(len(fs)))
	r.n.Store(int32(len(fs)))
	return r
}

// message makes the message number i of the run.
func (r *run) message(i int) *Message {
	it, m := &r.items[i], &r.msgs[i]
	m.data, m.tag, m.in, m.isForgotten = it.data, it.tag, r.in, it.isForgotten
	m.from = r.from.WithSerial(it.src)
	m.buf, m.run = r.buf, r
	if it.buf != nil {
		m.buf, m.isSent = it.buf, true
	}
	return m
}

// drop counts n users less. The last one gives the block back.
func (r *run) drop(n int) {
	if r.left.Add(int32(-n)) == 0 {
		if r.buf != nil {
			r.buf.Release()
		}
		r.buf, r.in = nil, nil
		if len(r.items) == runMost {
			r.d.runs.Put(r)
		} else {
			r.d.shortRuns.Put(r)
		}
	}
}

// A rest is the part of a run behind a message in a mailbox's list.
type rest struct {
	of     *run
	at, to int32 // the messages at, at+1, … to-1
}

// first makes the first message of r, which is not empty, with the others behind it.
func (r rest) first() *Message {
	msg := r.of.message(int(r.at))
	if r.at++; r.at < r.to {
		msg.rest = r
	}
	return msg
}

// togetherMost returns how many of the frames fs, at least one, may become one run.
func togetherMost(fs []subsys.Frame) int {
	n := 1
	for b := fs[0].Buf; n < len(fs) && n < runMost && fs[n].Buf == b && b != nil; {
		n++
	}
	if n < runLeast {
		return 1
	}
	return n
}

// storesRunsLocked reports whether a run may be stored as one: no goroutine waits for a message,
// and receives take messages in order. mu must be held.
func (m *Mailbox) storesRunsLocked() bool { return m.waiters.First() == nil && m.matcher == nil }

// storeRunLocked stores the messages of r from i up to n. mu must be held.
func (m *Mailbox) storeRunLocked(r *run, i, n int) {
	if last := m.messages.Last(); last != nil && last.rest.of == r && last.rest.to == int32(i) {
		last.rest.to = int32(n)
		m.count += n - i
		return
	}
	m.count += n - i - 1
	m.storeLocked(rest{r, int32(i), int32(n)}.first())
}

// takeRest makes the next message of msg's rest, which gets what remains of it.
func (msg *Message) takeRest() *Message {
	next := msg.rest.first()
	msg.rest = rest{}
	return next
}

// expandLocked puts all messages of stored runs into the list. mu must be held.
func (m *Mailbox) expandLocked() {
	for msg := m.messages.First(); msg != nil; msg = msg.place.Next() {
		r := msg.rest
		if r.of == nil {
			continue
		}
		msg.rest = rest{}
		for msg = m.dense(msg); r.at < r.to; r.at++ {
			next := r.of.message(int(r.at))
			m.messages.InsertBehind(&msg.place, next, &next.place)
			msg = m.dense(next)
		}
	}
}

// dense returns msg, or a message in its place whose payload has memory of its own, if the payload
// needs less than half of the block that it lies in: a block comes back when its last message is
// released. So stored messages keep at most about twice the memory that they are charged. Without
// memory the payload stays in the block: the pool bounds what is kept.
func (m *Mailbox) dense(msg *Message) *Message {
	if msg.buf == nil || msg.isSent || msg.buf.Footprint(msg.buf.Pool()) <= int(2*credit.Charge(len(msg.data))) {
		return msg
	}
	b, err := m.d.cfg.Pool.GetReserved(len(msg.data))
	if err != nil {
		return msg
	}
	copy(b.Bytes(), msg.data)
	m.d.CountCopy(len(msg.data))
	if msg.run == nil {
		msg.moveTo(b)
		return msg
	}
	own := m.d.message()
	own.buf, own.data, own.from, own.tag, own.in, own.isForgotten = b, b.Bytes(), msg.from, msg.tag, msg.in, msg.isForgotten
	if msg.place.IsListed() {
		m.messages.Replace(&msg.place, own, &own.place)
	}
	msg.Release()
	return own
}

// keepDense is Mailbox.dense for all messages of a run that nothing has been taken from.
func (r *run) keepDense() {
	n := int(r.n.Load())
	kept := r.buf.Footprint(r.d.cfg.Pool) - 2*credit.Overhead*n
	if kept <= 0 {
		return
	}
	bytes := 0
	for i := range n {
		bytes += len(r.items[i].data)
	}
	if kept <= 2*bytes {
		return
	}
	b, err := r.d.cfg.Pool.GetReserved(bytes)
	if err != nil {
		return
	}
	r.d.CountCopy(bytes)
	mem := b.Bytes()
	for i := range n {
		it := &r.items[i]
		k := copy(mem, it.data)
		it.data, mem = mem[:k:k], mem[k:]
	}
	r.buf.Release()
	r.buf = b
}
