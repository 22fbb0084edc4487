// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/internal/wire"
	"github.com/rocl-go/rocl/directory/mux"
	"github.com/rocl-go/rocl/directory/search"
	"github.com/rocl-go/rocl/resource"
)

// Kinds of questions.
const (
	kindFind = 1 + iota
	kindLookup
	kindNext // the next answer of several; the identifier's bytes hold place and step
	kindRoll // the members that are known; no identifier, no pattern: see roll.go
)

// local answers a question of another node by a packet. The question has been parsed. The answer is
// valid until the next call. mu must be held.
func (c *Cluster) local(q []byte) ([]byte, bool) {
	a, ok := c.answer(c.said[:0], q, mostPacked)
	if ok {
		c.said = a
	}
	return a, ok
}

// answer appends the answer to the question q to b, or an identifier alone if the answer has more
// than most bytes. It reports false for a no.
func (c *Cluster) answer(b, q []byte, most int) ([]byte, bool) {
	pattern, err := resource.View(patternIn(q))
	if err != nil {
		return nil, false
	}
	var r database.Record
	var ok bool
	switch q[0] {
	case kindFind:
		r, ok = c.cfg.DB.Find(&pattern)
	case kindLookup:
		r, ok = c.cfg.DB.Get(resource.GetGID(q[1:]))
	case kindRoll:
		roll := c.members.roll.Load().brief
		return append(b, roll...), len(roll) <= most
	case kindNext:
		var lost bool
		if r, ok, lost = c.places.next(c.cfg.DB, binary.BigEndian.Uint64(q[1:]), binary.BigEndian.Uint64(q[9:]), &pattern, time.Now()); lost {
			return b, true
		}
	}
	if !ok {
		c.count.denied.Add(1)
		return nil, false
	}
	c.count.answered.Add(1)
	if sizeOf(&r, &pattern) > most {
		var id [stubLen]byte
		resource.PutGID(id[:], r.ID)
		return append(b, id[:]...), true
	}
	return wire.AppendRecord(b, &r, &pattern), true
}

// may returns members whose summary has all attributes that the question names. The search calls
// it; mu is held.
func (c *Cluster) may(search uint64, q []byte) []resource.NodeID {
	if q[0] != kindFind {
		return nil
	}
	pattern, err := resource.View(patternIn(q))
	if err != nil {
		return nil
	}
	who := c.summaries.candidates(&pattern)
	if t := c.tallyBy(search); t != nil {
		t.may = who
	}
	return who
}

// question returns a new question: see appendQuestion.
func question(kind byte, id resource.GID, pattern *resource.List) []byte {
	return appendQuestion(nil, kind, id, pattern)
}

// appendQuestion appends a question to b: its kind, the identifier unless it is a find, and the
// pattern.
func appendQuestion(b []byte, kind byte, id resource.GID, pattern *resource.List) []byte {
	b = append(slices.Grow(b, 17+len(pattern.Wire())), kind)
	if kind != kindFind {
		var of [16]byte
		resource.PutGID(of[:], id)
		b = append(b, of[:]...)
	}
	return append(b, pattern.Wire()...)
}

// patternIn returns the pattern of the question q, which is its end.
func patternIn(q []byte) []byte {
	switch {
	case len(q) > 0 && q[0] == kindFind:
		return q[1:]
	case len(q) > 17:
		return q[17:]
	}
	return nil
}

// parseQuestion returns the pattern of the question q, and reports whether q is a question that
// appendQuestion makes.
func parseQuestion(q []byte) (pattern resource.List, ok bool) {
	if len(q) == 0 || q[0] < kindFind || q[0] > kindRoll {
		return pattern, false
	}
	pattern, err := resource.ParsePattern(patternIn(q))
	return pattern, err == nil
}

// parseAnswer reads an answer. It returns errForgotten for an empty one, and the identifier alone
// for a stub.
func parseAnswer(b []byte) (database.Record, error) {
	if len(b) == 0 {
		return database.Record{}, errForgotten
	}
	if len(b) == stubLen { // enough for a trace; other callers ask again by a stream
		return database.Record{ID: resource.GetGID(b)}, nil
	}
	a, err := wire.ViewRecord(b)
	if err != nil {
		err = fmt.Errorf("%w: %w", search.ErrMalformed, err)
	}
	return a, err
}

// Find asks the other members for a resource that matches. It waits for members that cannot be
// asked and are not known to be dead, until ctx ends or the patience is over. ErrNotFound is
// definite. ErrPartial names the members that could not be asked.
func (c *Cluster) Find(ctx context.Context, pattern *resource.List) (database.Record, error) {
	w := waiters.Get().(*waiter)
	defer w.rest()
	w.question = appendQuestion(w.question[:0], kindFind, resource.GID{}, pattern)
	return c.askBy(ctx, w, w.question, nil)
}

// Lookup asks the node on which the identifier was minted, and no other node.
func (c *Cluster) Lookup(ctx context.Context, id resource.GID, pattern *resource.List) (database.Record, error) {
	return c.ask(ctx, question(kindLookup, id, pattern), []resource.NodeID{id.Node()})
}

// ask puts a question to the members in who, or to all other members if who is nil.
func (c *Cluster) ask(ctx context.Context, q []byte, who []resource.NodeID) (database.Record, error) {
	w := waiters.Get().(*waiter)
	defer w.rest()
	return c.askBy(ctx, w, q, who)
}

// askBy is ask with a waiter that the caller has to itself.
func (c *Cluster) askBy(ctx context.Context, w *waiter, q []byte, who []resource.NodeID) (found database.Record, err error) {
	t := &w.tally
	c.begin(t, who)
	defer func() { c.counted(t, err) }()
	if err := c.joiner.await(ctx); err != nil {
		return database.Record{}, err
	}
	var late <-chan time.Time // fires when the patience is over
	covered := 0
	list := c.members.current.Load() // the members that are asked
	for pause := 25 * time.Millisecond; ; {
		news, unknown := c.members.news(), c.joiner.incomplete()
		t.differ = nil
		r, err := c.once(ctx, w, q, who)
		if err != nil {
			return database.Record{}, err
		}
		if r.Found {
			return parseAnswer(r.Answer)
		}
		if len(t.differ) > 0 && q[0] != kindLookup {
			apart, err := c.agree(ctx, t.differ)
			if err != nil {
				return database.Record{}, err
			}
			apart = slices.DeleteFunc(apart, func(m resource.NodeID) bool {
				return slices.Contains(r.Failed, m) // it answered late
			})
			r.Covered -= len(apart)
			r.Failed = append(r.Failed, apart...)
		}
		if r.Definite() {
			if q[0] == kindFind {
				if who = c.members.newcomers(&list); len(who) > 0 {
					continue
				}
			}
			return database.Record{}, denial(q, unknown)
		}
		covered += r.Covered
		partial := fmt.Errorf("%w: %d of %d nodes: %012x", directory.ErrPartial, len(r.Failed), len(r.Failed)+covered, r.Failed)
		if late == nil {
			t := time.NewTimer(c.cfg.Patience)
			defer t.Stop()
			late = t.C
		}
		// The members that answered have said no. Of the failed ones, some may be dead by now.
		known := c.members.list()
		who = slices.DeleteFunc(slices.Clone(r.Failed), func(m resource.NodeID) bool {
			_, member := slices.BinarySearch(known, m)
			return !member
		})
		if len(who) == 0 {
			if q[0] == kindFind {
				if who = c.members.newcomers(&list); len(who) > 0 {
					continue
				}
			}
			switch q[0] {
			case kindLookup:
				return database.Record{}, partial // the identifier's node is no member that could deny it
			case kindNext:
				return database.Record{}, errDied
			}
			return database.Record{}, denial(q, unknown)
		}
		again := time.NewTimer(pause)
		pause = min(2*pause, 200*time.Millisecond)
		select {
		case <-again.C:
		case <-news:
		case <-late:
			return database.Record{}, partial
		case <-ctx.Done():
			return database.Record{}, fmt.Errorf("%w: %w", partial, context.Cause(ctx))
		case <-c.life.Done():
			return database.Record{}, directory.ErrClosed
		}
		again.Stop()
	}
}

// denial returns the error for a question that all members asked have denied. unknown is not nil if
// this member did not know all members: then it cannot deny what an unknown one may have.
func denial(q []byte, unknown error) error {
	if q[0] == kindFind && unknown != nil {
		return unknown
	}
	return directory.ErrNotFound
}

// once puts a question once, by packets or, if it is too large, by streams.
func (c *Cluster) once(ctx context.Context, w *waiter, q []byte, who []resource.NodeID) (r search.Result, err error) {
	if t := &w.tally; len(q) > mostPacked {
		if who == nil {
			who = c.members.others()
		}
		if t.begun == 0 {
			t.begun = time.Since(c.born)
		}
		c.mu.Lock()
		t.way, t.messages = max(t.way, wayEach), t.messages+uint64(len(who))
		c.mu.Unlock()
		return c.askEach(ctx, who, q)
	}
	w.counts = true
	r, err = c.awaitBy(ctx, w, who != nil, func(now time.Time, by search.Asker) uint64 {
		if who != nil {
			return c.search.SearchAmong(now, who, q, nil, by)
		}
		return c.search.Search(now, q, by)
	})
	if err != nil || !r.Found || len(r.Answer) != stubLen {
		return r, err
	}
	whole, err := c.askEach(ctx, []resource.NodeID{r.From}, q)
	if err != nil || whole.Found {
		return whole, err
	}
	// The resource is gone meanwhile, or its member cannot be reached. What the other members have
	// is not known yet.
	if who == nil {
		who = c.members.others()
	}
	return search.Result{Failed: who}, nil
}

// await begins a search and waits for its end. When await returns, the search has ended or is
// forgotten.
func (c *Cluster) await(ctx context.Context, begin func(now time.Time, by search.Asker) uint64) (search.Result, error) {
	w := waiters.Get().(*waiter)
	defer w.rest()
	return c.awaitBy(ctx, w, true, begin)
}

// awaitBy is await with a waiter that the caller has to itself. If timely is not set, begin is
// called with a zero time.
func (c *Cluster) awaitBy(ctx context.Context, w *waiter, timely bool, begin func(now time.Time, by search.Asker) uint64) (search.Result, error) {
	if c.life.Err() != nil {
		return search.Result{}, directory.ErrClosed
	}
	if ctx.Err() != nil { // otherwise the answer might come before the first look at ctx
		return search.Result{}, context.Cause(ctx)
	}
	w.state.Store(0)
	w.out = c.advanced(w.out[:0], func() bool { return timely }, func(now time.Time) { w.id = begin(now, w) })
	if w.tally.begun == 0 {
		w.tally.begun = time.Since(c.born)
	}
	if c.cfg.Poll > 0 && len(w.out) > 0 {
		c.mux.Ask(c.cfg.Poll, func() bool { return w.over() || ctx.Err() != nil }, func() { c.waits(w) }, w.out...)
	} else {
		if len(w.out) > 0 {
			c.mux.Send(w.out...)
		}
		c.waits(w)
	}
	var err error
	if !w.state.CompareAndSwap(0, sleeping) {
		return w.r, nil
	}
	select {
	case <-w.woken:
		return w.r, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-c.life.Done():
		err = directory.ErrClosed
	}
	c.step(func(time.Time) { c.search.Cancel(w.id) })
	select { // the search does not call w.Over any more
	case <-w.woken:
	default:
	}
	return search.Result{}, err
}

// waits starts the clock of the search, so that it goes on if no answer comes. Mostly the answer
// comes before.
func (c *Cluster) waits(w *waiter) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.search.Begun(now, w.id)
	c.arm()
}

// A waiter waits for the end of one search after another. While the waiting goroutine polls, Over
// does not wake it: a wakeup would cost more than the rest of an answer. A waiter keeps the buffers
// that a search needs, so that a search makes no garbage.
type waiter struct {
	state    atomic.Uint32
	r        search.Result
	woken    chan struct{}
	id       uint64 // of the search
	question []byte
	out      []mux.Out // with the buffers of its payloads
	tally    tally
	counts   bool // the search is counted in tally
}

const (
	ended = 1 + iota
	sleeping
)

var waiters = sync.Pool{New: func() any { return &waiter{woken: make(chan struct{}, 1)} }}

// over reports whether the search has ended.
func (w *waiter) over() bool { return w.state.Load() == ended }

// Over implements search.Asker.
func (w *waiter) Over(r search.Result) {
	w.r = r
	if w.state.Swap(ended) == sleeping {
		w.woken <- struct{}{}
	}
}

// rest gives the waiter back to the pool, without the answer.
func (w *waiter) rest() {
	w.r, w.tally, w.counts = search.Result{}, tally{}, false
	if cap(w.question) > mostPacked {
		w.question = nil
	}
	w.out = emptied(w.out)
	waiters.Put(w)
}
