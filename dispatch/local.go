// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"maps"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/progress"
	"github.com/rocl-go/rocl/internal/lock"
)

// A local queue lets the senders of a context put messages into a mailbox of the process without
// the mailbox's lock, while no receiver waits there. The receiver, which has to take that lock,
// stores all that the queue has as runs:
//
//	senders, with localQueue.mu          receiver, with Mailbox.mu
//	---------------------------          -------------------------
//	take credit: sent ≤ limit            storeQueuesLocked: the queues in news, in order
//	add an item to the run tail  ──────►   storeQueueLocked: what has come to head, and the runs behind it
//	list the queue in news, if it is not   a message is handed to a receiver that waits,
//	                                       or stored, with those behind it as its rest
//	take Mailbox.mu and store the queues,
//	if a receiver waits now
//
// A sender adds first, and then looks whether a receiver waits. A receiver notes that it waits, and
// then looks for queues in news. So one of the two sees the other.
//
// The queue is closed while senders wait for credit, which they get in order, and for a mailbox
// that is bounded or handles replies. Then senders take the mailbox's lock for each message.
//
// Messages of one context to one resource keep their order. Messages of different contexts have no
// order.

const (
	blockLeast = 512      // bytes of the first block of a queue
	blockMost  = 16 << 10 // bytes of its largest blocks
	blockPart  = 4        // a payload of more than this part of a block gets a buffer of its own
	yieldAfter = 4        // runs, after which a sender makes way for a receiver that it has woken
)

// A localQueue has the messages that a context has sent to a mailbox of its process, and that the
// mailbox has not stored yet.
type localQueue struct {
	f *Flow
	_ [64]byte // senders write what follows, and the receiver writes what stands behind the next gap

	mu    lock.Mutex[levelLocalQueue] // guards the following fields
	sent  uint64                      // charged bytes for which senders have taken credit, in all; while the queue is closed, Mailbox.mu guards it
	tail  *run                        // the run that messages are added to; nil: the next message begins one
	room  []byte                      // unused memory of the block of tail
	block int                         // the size of that block
	ahead int                         // runs that were begun while the mailbox has stored nothing
	woke  bool                        // the last message that took the mailbox's lock has woken a receiver; guarded as sent
	next  *localQueue                 // in Mailbox.news, the queue that was added before
	_     [64]byte

	isOpen atomic.Bool         // senders may add messages; changes with Mailbox.mu and mu held
	isNews atomic.Bool         // the queue is in Mailbox.news
	limit  atomic.Uint64       // charged bytes that the context may send, in all
	first  atomic.Pointer[run] // the run that a sender has begun while there was none
	_      [64]byte

	// Guarded by Mailbox.mu.
	head   *run // the first run that is not stored wholly; nil: that is first
	stored int  // messages of head that are stored
}

// An arrivals is what senders of the process and the receivers of a mailbox tell each other. It
// shares no cache line with what either of them writes for each message.
type arrivals struct {
	_             [64]byte
	news          atomic.Pointer[localQueue] // local queues that have messages, the latest first
	isWaiting     atomic.Bool                // a receiver waits: what comes is not to wait in a queue
	handlesAtOnce atomic.Bool                // there is a handler, and no goroutine runs serve
	endsSpin      atomic.Bool                // the receivers that poll are to look at the list
	_             [64]byte
}

// mayOpenLocked reports whether senders need the mailbox's lock for credit only. The mailbox's mu
// must be held.
func (q *localQueue) mayOpenLocked() bool {
	m, in := q.f.mb, q.f.in
	return !m.closed && !in.IsClosed() && in.IsOpen() && in.waiters.First() == nil && m.serial&Bounded == 0 && m.calls == nil
}

// openLocked lets senders add messages, if they may. The mailbox's mu must be held.
func (q *localQueue) openLocked() {
	if q.mayOpenLocked() {
		q.mu.Lock()
		q.isOpen.Store(true)
		q.mu.Unlock()
	}
}

// closeLocked makes senders take the mailbox's lock, and stores what they have added. The mailbox's
// mu must be held.
func (q *localQueue) closeLocked() {
	q.mu.Lock()
	q.isOpen.Store(false)
	q.mu.Unlock()
	q.f.mb.storeQueueLocked(q)
	q.endLocked()
}

// endLocked gives up the run that messages are added to, if all of them are stored: an idle queue
// keeps no memory. The mailbox's mu must be held.
func (q *localQueue) endLocked() {
	q.mu.Lock()
	defer q.mu.Unlock()
	r := q.tail
	if r == nil || r != q.head || q.stored < int(r.n.Load()) {
		return
	}
	q.head, q.tail, q.room, q.block = nil, nil, nil, 0
	r.drop(1 + len(r.items) - q.stored)
}

// takeCreditLocked takes the credit for a message charged c. It reports false if the context has
// less. The mailbox's mu must be held.
func (q *localQueue) takeCreditLocked(c uint64) bool {
	if q.isOpen.Load() {
		q.mu.Lock()
		defer q.mu.Unlock()
	}
	if q.sent+c > q.limit.Load() {
		return false
	}
	q.sent += c
	q.woke = q.f.mb.isWaiting.Load()
	return true
}

// add adds a message with the payload p, which is that of b, or which add copies if b is nil. It
// reports false if the caller has to take the mailbox's lock.
func (q *localQueue) add(src uint32, tag uint64, p []byte, b *buffers.Buffer, isForgotten bool) bool {
	m := q.f.mb
	if m.isAwaited() || !q.isOpen.Load() {
		return false
	}
	c := credit.Charge(len(p))
	q.mu.Lock()
	if !q.isOpen.Load() || q.sent+c > q.limit.Load() {
		q.mu.Unlock()
		return false
	}
	r, makesWay := q.tail, false
	if r == nil || int(r.n.Load()) == len(r.items) || b == nil && len(p) > len(q.room) {
		if r = q.beginLocked(b == nil, len(p)); r == nil {
			q.mu.Unlock()
			return false
		}
		makesWay = q.makesWayLocked()
	}
	n := r.n.Load()
	it := &r.items[n]
	it.tag, it.src, it.isForgotten, it.buf = tag, src, isForgotten, b
	if b == nil {
		it.data = q.room[:len(p):len(p)]
		copy(it.data, p)
		q.room = q.room[len(p):]
	} else {
		it.data = p
		b.SetDelivered()
	}
	q.sent += c
	r.n.Store(n + 1)
	if !q.isNews.Load() {
		q.listLocked()
	}
	q.mu.Unlock()
	if m.isAwaited() {
		m.mu.Lock()
		m.storeQueuesLocked()
		m.mu.Unlock()
	} else if makesWay {
		runtime.Gosched()
	}
	return true
}

// listLocked puts the queue into the mailbox's news. The next sender finds it there: what that one
// sends by the mailbox's lock comes behind what is in the queue. mu must be held.
func (q *localQueue) listLocked() {
	q.isNews.Store(true)
	news := &q.f.mb.news
	q.next = news.Load()
	for !news.CompareAndSwap(q.next, q) {
		q.next = news.Load()
	}
}

// makesWayLocked reports whether the sender that has begun a run is to let other goroutines run: it
// has woken a receiver, which has taken nothing of the last runs, and so may wait for the sender's
// processor. What the receiver then takes is still in that processor's caches. mu must be held.
func (q *localQueue) makesWayLocked() bool {
	switch {
	case q.tail == q.first.Load(): // the mailbox has stored what came before
		q.ahead = 0
	case !q.isNews.Load(): // the receiver runs
		q.ahead, q.woke = 0, false
	default:
		q.ahead++
	}
	isFar := q.woke && q.ahead >= yieldAfter
	if isFar {
		q.ahead = 0
	}
	return isFar
}

// beginLocked begins a run, which gets a block if copies says that payloads are copied, the first
// of size bytes. It returns nil if there is no memory, or if the payload is too large for a block.
// mu must be held.
func (q *localQueue) beginLocked(copies bool, size int) *run {
	if size > blockMost/blockPart && copies {
		return nil
	}
	var block *buffers.Buffer
	room, next := []byte(nil), q.block
	if copies {
		next = max(blockLeast, min(2*next, blockMost), size*blockPart)
		b, err := q.f.dispatcher().cfg.Pool.Get(next)
		if err != nil {
			return nil
		}
		block, room = b, b.Bytes()
	}
	n := runMost
	if q.tail == nil || next == blockLeast { // the mailbox has stored what came before
		n = runLeast
	}
	r := q.f.mb.d.run(q.f.in, block, n)
	r.left.Store(int32(n + 1)) // the queue has one more
	old := q.tail
	q.tail, q.room, q.block = r, room, next
	if old == nil {
		q.first.Store(r)
		return r
	}
	unused := len(old.items) - int(old.n.Load())
	old.after.Store(r)
	if unused > 0 { // otherwise the mailbox may have given the run back
		old.drop(unused)
	}
	return r
}

// isAwaited reports whether a message is to be handed over at once, to a receiver or a handler.
func (m *Mailbox) isAwaited() bool { return m.isWaiting.Load() || m.handlesAtOnce.Load() }

// storeQueuesLocked stores what the local queues have. mu must be held.
func (m *Mailbox) storeQueuesLocked() {
	if m.news.Load() == nil {
		return
	}
	var q *localQueue // the queue that was listed first
	for o := m.news.Swap(nil); o != nil; {
		next := o.next
		o.next, q, o = q, o, next
	}
	for q != nil {
		next := q.next
		q.next = nil
		q.isNews.Store(false) // before storeQueueLocked: what comes later lists the queue again
		m.storeQueueLocked(q)
		q = next
	}
}

// storeQueueLocked stores what a local queue has. mu must be held.
func (m *Mailbox) storeQueueLocked(q *localQueue) {
	if q.head == nil {
		if q.head, q.stored = q.first.Swap(nil), 0; q.head == nil {
			return
		}
		m.filled = append(m.filled, q)
	}
	for {
		r := q.head
		after := r.after.Load() // before n: a run that another one follows does not grow
		if n := int(r.n.Load()); n > q.stored {
			m.storePartLocked(q, r, q.stored, n)
			q.stored = n
		}
		if after == nil {
			return
		}
		q.head, q.stored = after, 0
		r.drop(1)
	}
}

// countLocal counts the messages that lie in local queues, to and from this context: they are
// counted when they are stored.
func (d *Dispatcher) countLocal() {
	d.mu.RLock()
	boxes := slices.AppendSeq(slices.Collect(maps.Values(d.boxes)), maps.Keys(d.passages.flows))
	d.mu.RUnlock()
	for _, m := range boxes {
		m.mu.Lock()
		m.storeQueuesLocked()
		m.mu.Unlock()
	}
}

// storePartLocked stores the messages i up to n of a run. mu must be held.
func (m *Mailbox) storePartLocked(q *localQueue, r *run, i, n int) {
	bytes := 0
	for j := i; j < n; j++ {
		bytes += len(r.items[j].data)
	}
	m.credit.ArriveTaken(&r.in.Account, uint64(bytes+credit.Overhead*(n-i)))
	if r.buf != nil {
		q.f.dispatcher().countCopies(n-i, bytes)
	}
	if e := q.f.passage; e != nil {
		e.messages.Add(uint64(n - i))
		e.bytes.Add(uint64(bytes))
	}
	for ; i < n; i++ {
		if m.storesRunsLocked() {
			m.storeRunLocked(r, i, n)
			break
		}
		m.putLocked(r.message(i))
	}
	m.arrivedLocked(r.in)
}

// endQueuesLocked makes the queues that have been stored give up their memory: the receiver has
// caught up with its senders, and waits. mu must be held.
func (m *Mailbox) endQueuesLocked() {
	for i, q := range m.filled {
		q.endLocked()
		m.filled[i] = nil
	}
	m.filled = m.filled[:0]
}

const (
	newsPolls   = 32 // looks for news between two looks at the clock
	streamLeast = 16 // messages received without waiting, after which a receiver polls
)

// spinLocked polls for a message from within the process, and reports whether it has polled. It
// does so if the polling policy says so, and if many messages have come since a receiver waited
// last: the senders of a stream run on another processor. After a single message the goroutine that
// is to answer it often needs this one. While it polls, senders need not hand their messages over.
// mu must be held; spinLocked releases it while it polls.
func (m *Mailbox) spinLocked(done <-chan struct{}) bool {
	taken := m.taken
	m.taken = 0
	if taken < streamLeast || m.closed {
		return false
	}
	turn, begins := m.d.progress.BeginLocal()
	if !begins {
		return false
	}
	m.spinners++
	m.endsSpin.Store(false)
	m.mu.Unlock()
	turn.End(m.pollNews(done, &turn))
	m.mu.Lock()
	m.spinners--
	return true
}

// pollNews polls for news for as long as turn goes on, and reports whether there is some.
func (m *Mailbox) pollNews(done <-chan struct{}, turn *progress.LocalTurn) bool {
	for i := 1; m.news.Load() == nil && !m.endsSpin.Load(); i++ {
		if i%newsPolls == 0 && !turn.GoesOn(done) {
			return false
		}
	}
	return true
}

// endSpinLocked makes a receiver that polls look at the list. mu must be held.
func (m *Mailbox) endSpinLocked() {
	if m.spinners > 0 {
		m.endsSpin.Store(true)
	}
}
