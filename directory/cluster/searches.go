// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/resource"
)

// searches drives a search.Node: it hands it packets, questions and the time, and sends the
// datagrams that it wants sent.
type searches struct {
	*core
	members   *memberTable
	summaries *summaries
	exchanges *exchanges
	answers   *answers
	waiters   sync.Pool // of *waiter

	// mu guards the following fields, setting the timer, the tallies of waiters and
	// answers.packet. It is taken before summaries.mu and cursors.mu.
	mu     sync.Mutex
	node   *search.Node
	timer  *time.Timer
	due    time.Time // when timer fires; zero: not set
	out    []mux.Out // datagrams that node wants sent; they are sent without mu
	spare  []mux.Out // an empty slice to be used as out again, with the buffers of its payloads
	casts  [][]byte
	silent []resource.NodeID // members that did not answer, for which exchangeWith is called without mu
}

func newSearches(c *core, members *memberTable, s *summaries, x *exchanges, a *answers) *searches {
	d := &searches{core: c, members: members, summaries: s, exchanges: x, answers: a}
	d.waiters.New = func() any { return &waiter{woken: make(chan struct{}, 1)} }
	d.timer = time.AfterFunc(time.Hour, d.tick)
	cfg := search.Config{
		Self: c.cfg.Node, Strategy: c.cfg.Strategy, Fan: c.cfg.Fan, Hop: c.cfg.Hop,
		Members: members.list, Local: a.packetLocked, May: d.candidatesLocked, Send: d.queueLocked,
		Silent: func(m resource.NodeID) { d.silent = append(d.silent, m) },
	}
	if c.cfg.Group != "" {
		cfg.MaxCast, cfg.Cast = mux.MaxPayload, d.castLocked
	}
	d.node = search.NewNode(cfg)
	return d
}

// candidatesLocked returns members whose summary has all attributes that the question of a search
// names.
func (d *searches) candidatesLocked(search uint64, q []byte) []resource.NodeID {
	if q[0] != kindFind {
		return nil
	}
	pattern, err := resource.View(patternIn(q))
	if err != nil {
		return nil
	}
	members := d.summaries.candidates(&pattern)
	if t := d.tallyLocked(search); t != nil {
		t.may = members
	}
	return members
}

// queueLocked queues a packet to a member.
func (d *searches) queueLocked(to resource.NodeID, p *search.Packet) {
	d.countPacketLocked(to, p)
	if p.Covered > 0 {
		p.Known = d.members.roll.Load().sum
	}
	var buf []byte
	if n := len(d.out); n < cap(d.out) {
		buf = d.out[:n+1][n].Payload[:0]
	}
	d.out = append(d.out, mux.Out{To: to, Payload: p.AppendTo(slices.Grow(buf, p.Size()), d.cfg.Node, to)})
}

// castLocked queues a packet to all members.
func (d *searches) castLocked(p *search.Packet) {
	d.countCastLocked(p)
	d.casts = append(d.casts, p.Append(nil))
}

// receive handles a packet of another member. at is where the sender awaits an answer; nil means at
// its port.
func (d *searches) receive(from resource.NodeID, at *net.UDPAddr, p *search.Packet) {
	out := d.advance(nil, func() {
		var now time.Time
		if !d.node.Timeless(p) {
			now = time.Now()
		}
		d.countAnswerLocked(from, p)
		d.node.Receive(now, from, p)
	})
	for i := range out {
		if out[i].To == from {
			out[i].At = at
		}
	}
	d.send(out)
}

// tick lets the node handle what was not answered in time. The timer calls it in a goroutine of its
// own.
func (d *searches) tick() {
	d.send(d.advance(nil, func() {
		d.due = time.Time{}
		d.node.Tick(time.Now())
	}))
}

// send sends the datagrams that advance returned, and keeps the slice to be used again.
func (d *searches) send(out []mux.Out) {
	if len(out) == 0 {
		return
	}
	d.mux.Send(out...)
	out = forReuse(out)
	d.mu.Lock()
	if cap(d.spare) < cap(out) {
		d.spare = out
	}
	d.mu.Unlock()
}

// forReuse returns out without its datagrams, but with the buffers of their payloads, except those
// larger than is often needed.
func forReuse(out []mux.Out) []mux.Out {
	if cap(out) > 64 {
		return nil
	}
	for i := range out {
		buf := out[i].Payload[:0]
		if cap(buf) > mux.MaxPayload {
			buf = nil
		}
		out[i] = mux.Out{Payload: buf}
	}
	return out[:0]
}

// advance calls f with mu held, and returns the datagrams that the node wants sent: see send. The
// result uses out's array if out is not nil.
func (d *searches) advance(out []mux.Out, f func()) []mux.Out {
	d.mu.Lock()
	if d.out = out; out == nil {
		d.out, d.spare = d.spare, nil
	}
	f()
	out, casts, silent := d.out, d.casts, d.silent
	d.out, d.casts, d.silent = nil, nil, nil
	d.armLocked()
	d.mu.Unlock()
	d.count.sent.Add(uint64(len(out) + len(casts)))
	for _, b := range casts {
		d.mux.Cast(b)
	}
	if len(silent) > 0 {
		d.exchanges.exchangeWith(silent...)
	}
	return out
}

// armLocked sets the timer to the time at which the node wants to be called.
func (d *searches) armLocked() {
	if at := d.node.Next(); !at.IsZero() && (d.due.IsZero() || at.Before(d.due)) && d.life.Err() == nil {
		// A timer that fires too early does no harm. To move it each time would cost more than a
		// question.
		d.due = at
		d.timer.Reset(max(time.Until(at), 0))
	}
}

// close stops the timer. armLocked does not set it after the end of d.life.
func (d *searches) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timer.Stop()
}

// A beginning begins a search on a node, and returns its number.
type beginning func(n *search.Node, now time.Time, by search.Asker) uint64

// among returns the beginning of a search for the answer to q among the members in targets or, if
// that is nil, among all members. rec may be nil.
func among(targets []resource.NodeID, round int, q []byte, rec *search.Recorder) beginning {
	return func(n *search.Node, now time.Time, by search.Asker) uint64 {
		if targets == nil {
			return n.SearchTraced(now, q, rec, by)
		}
		return n.SearchAmong(now, targets, round, q, rec, by)
	}
}

// run begins a search and waits for its end. When run returns, the search has ended or is
// forgotten.
func (d *searches) run(ctx context.Context, begin beginning) (search.Result, error) {
	w := d.waiters.Get().(*waiter)
	defer d.release(w)
	return d.runWith(ctx, w, true, begin)
}

// runWith is run with a waiter that the caller has to itself. If timely is not set, begin is called
// with a zero time.
func (d *searches) runWith(ctx context.Context, w *waiter, timely bool, begin beginning) (search.Result, error) {
	if d.life.Err() != nil {
		return search.Result{}, context.Cause(d.life)
	}
	if ctx.Err() != nil { // otherwise the answer might come before the first look at ctx
		return search.Result{}, context.Cause(ctx)
	}
	w.state.Store(waiterPolls)
	w.out = d.advance(w.out[:0], func() {
		var now time.Time
		if timely {
			now = time.Now()
		}
		w.id = begin(d.node, now, w)
	})
	if w.tally.begun == 0 {
		w.tally.begun = time.Since(d.born)
	}
	if d.cfg.Poll > 0 && len(w.out) > 0 {
		d.mux.Ask(d.cfg.Poll, func() bool { return w.ended() || ctx.Err() != nil }, func() { d.startClock(w) }, w.out...)
	} else {
		if len(w.out) > 0 {
			d.mux.Send(w.out...)
		}
		d.startClock(w)
	}
	var err error
	if !w.state.CompareAndSwap(waiterPolls, waiterSleeps) {
		return w.result, nil
	}
	select {
	case <-w.woken:
		return w.result, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-d.life.Done():
		err = context.Cause(d.life)
	}
	d.send(d.advance(nil, func() { d.node.Cancel(w.id) }))
	select { // the search does not call w.Ended any more
	case <-w.woken:
	default:
	}
	return search.Result{}, err
}

// startClock sets the time-out after the packets are sent: the usual quick answer pays for no
// clock.
func (d *searches) startClock(w *waiter) {
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.node.Begun(now, w.id)
	d.armLocked()
}

// A waiter waits for the end of one search after another. While the waiting goroutine polls, Ended
// does not wake it: a wakeup would cost more than the rest of an answer. A waiter keeps the buffers
// that a search needs, so that a search makes no garbage.
type waiter struct {
	state    atomic.Uint32 // waiterPolls, waiterSleeps or waiterEnded
	result   search.Result // read after the end
	woken    chan struct{}
	id       uint64 // of the search
	question []byte
	out      []mux.Out // with the buffers of its payloads
	tally    tally
	counts   bool // the search is counted in tally
	round    int  // how often members were asked before in vain
}

// States of a waiter: the goroutine looks for the end of the search, it sleeps until woken, or the
// search has ended.
const (
	waiterPolls = iota
	waiterSleeps
	waiterEnded
)

// ended reports whether the search has ended.
func (w *waiter) ended() bool { return w.state.Load() == waiterEnded }

// Ended implements search.Asker.
func (w *waiter) Ended(r search.Result) {
	w.result = r
	if w.state.Swap(waiterEnded) == waiterSleeps {
		w.woken <- struct{}{}
	}
}

// release gives the waiter back to the pool, without the result.
func (d *searches) release(w *waiter) {
	w.result, w.tally, w.counts = search.Result{}, tally{}, false
	if cap(w.question) > mostPacked {
		w.question = nil
	}
	w.out = forReuse(w.out)
	d.waiters.Put(w)
}
