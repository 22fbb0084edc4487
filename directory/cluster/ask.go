// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/search"
	"github.com/rocl-go/rocl/internal/planted"
	"github.com/rocl-go/rocl/resource"
)

// An asker puts the questions of this node to other members, again if need be, until the answer is
// definite or its patience is over.
type asker struct {
	*core
	members   *memberTable
	joiner    *joiner
	searches  *searches
	streams   *streams
	exchanges *exchanges

	mu     sync.Mutex                    // guards agreed
	agreed map[resource.NodeID]agreement // with members that know other members than this one: see learnRolls
}

// find asks all other members for a resource that matches.
func (a *asker) find(ctx context.Context, pattern *resource.List) (database.Record, error) {
	w := a.searches.waiters.Get().(*waiter)
	defer a.searches.release(w)
	w.question = appendQuestion(w.question[:0], kindFind, resource.GID{}, pattern)
	return a.askWith(ctx, w, w.question, nil)
}

// ask puts a question to the members in targets, or to all other members if targets is nil.
func (a *asker) ask(ctx context.Context, q []byte, targets []resource.NodeID) (database.Record, error) {
	w := a.searches.waiters.Get().(*waiter)
	defer a.searches.release(w)
	return a.askWith(ctx, w, q, targets)
}

// askWith is ask with a waiter that the caller has to itself.
func (a *asker) askWith(ctx context.Context, w *waiter, q []byte, targets []resource.NodeID) (found database.Record, err error) {
	w.tally = newTally(len(a.members.list())-1, targets)
	defer func() { a.count.search(&w.tally, err, a.born) }()
	if err := a.joiner.await(ctx); err != nil {
		return database.Record{}, err
	}
	patient := ctx    // ends when the patience is over
	var partial error // not nil if some members could not be asked
	covered := 0
	asked := a.members.roll.Load()
	w.round = 0
	for wait := 25 * time.Millisecond; ; {
		news, unknown := a.members.news(), a.joiner.incomplete()
		r, err := a.round(patient, w, q, targets)
		switch {
		case err != nil && patient.Err() != nil && ctx.Err() == nil && a.life.Err() == nil:
			return database.Record{}, cmp.Or(partial, directory.ErrPartial)
		case err != nil:
			return database.Record{}, err
		}
		if r.Found {
			return parseAnswer(r.Answer)
		}
		if partial = nil; !r.Definite() {
			covered += r.Covered
			partial = fmt.Errorf("%w: %d of %d nodes: %012x", directory.ErrPartial, len(r.Failed), len(r.Failed)+covered, r.Failed)
			if patient == ctx {
				var end context.CancelFunc
				patient, end = context.WithTimeout(ctx, a.cfg.Patience)
				defer end()
			}
		}
		// The members that answered have said no. Of the failed ones, some may be dead by now.
		if targets = slices.DeleteFunc(slices.Clone(r.Failed), func(m resource.NodeID) bool { return planted.Is(planted.SilentDenied) || !a.members.has(m) }); len(targets) > 0 {
			if err := a.pause(ctx, patient, wait, news, partial); err != nil {
				return database.Record{}, err
			}
			wait = min(2*wait, 200*time.Millisecond)
			w.round++
			continue
		}
		if q[0] == kindFind {
			targets = a.members.newcomers(&asked)
		}
		if len(targets) == 0 {
			if unknown == nil {
				unknown = a.joiner.incomplete()
			}
			return database.Record{}, denial(q, unknown, partial)
		}
	}
}

// round puts a question once. Members that know other members than this one count as failed if it
// could not learn of those.
func (a *asker) round(ctx context.Context, w *waiter, q []byte, targets []resource.NodeID) (search.Result, error) {
	w.tally.differ = nil
	r, err := a.once(ctx, w, q, targets)
	if err != nil || r.Found || len(w.tally.differ) == 0 || q[0] == kindLookup {
		return r, err
	}
	apart, err := a.learnRolls(ctx, w.tally.differ)
	if err != nil {
		return r, err
	}
	apart = slices.DeleteFunc(apart, func(m resource.NodeID) bool {
		return slices.Contains(r.Failed, m) // it answered late
	})
	r.Covered -= len(apart)
	r.Failed = append(r.Failed, apart...)
	return r, nil
}

// atOnce calls f for each member, for at most most of them at a time, and waits for all calls.
func atOnce(members []resource.NodeID, most int, f func(i int, m resource.NodeID)) {
	var busy sync.WaitGroup
	slots := make(chan struct{}, most)
	for i, m := range members {
		slots <- struct{}{}
		busy.Go(func() {
			defer func() { <-slots }()
			f(i, m)
		})
	}
	busy.Wait()
}

// pause waits for the time d, or for news, before a question is asked again. It returns the error
// with which the question ends: partial when the patience is over, which is when patient ends.
func (a *asker) pause(ctx, patient context.Context, d time.Duration, news <-chan struct{}, partial error) error {
	select {
	case <-time.After(d):
	case <-news:
	case <-patient.Done():
		if ctx.Err() == nil {
			return partial
		}
		return fmt.Errorf("%w: %w", partial, context.Cause(ctx))
	case <-a.life.Done():
		return context.Cause(a.life)
	}
	return nil
}

// denial returns the error for a question that no member is left to answer. unknown is not nil if
// this member did not know all members: then it cannot deny what an unknown one may have. partial
// is not nil if the members that could not be asked are no members any more.
func denial(q []byte, unknown, partial error) error {
	switch {
	case q[0] == kindLookup && partial != nil:
		return partial // the identifier's node is no member that could deny it
	case q[0] == kindNext && partial != nil:
		return errDied
	case q[0] == kindFind && unknown != nil:
		return unknown
	}
	return directory.ErrNotFound
}

// once puts a question once, by packets or, if it is too large, by streams.
func (a *asker) once(ctx context.Context, w *waiter, q []byte, targets []resource.NodeID) (r search.Result, err error) {
	if t := &w.tally; len(q) > mostPacked {
		if targets == nil {
			targets = a.members.otherMembers()
		}
		if t.begun == 0 {
			t.begun = time.Since(a.born)
		}
		t.method, t.messages = max(t.method, methodUnicast), t.messages+uint64(len(targets)) // no search counts in t now
		return a.askEach(ctx, targets, q)
	}
	w.counts = true
	r, err = a.searches.runWith(ctx, w, targets != nil, among(targets, w.round, q, nil))
	if err != nil || !r.Found || len(r.Answer) != stubLen {
		return r, err
	}
	whole, err := a.askEach(ctx, []resource.NodeID{r.From}, q)
	if err != nil || whole.Found {
		return whole, err
	}
	// The resource is gone meanwhile, or its member cannot be reached. What the other members have
	// is not known yet.
	if targets == nil {
		targets = a.members.otherMembers()
	}
	return search.Result{Failed: targets}, nil
}
