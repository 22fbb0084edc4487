// SPDX-License-Identifier: Apache-2.0

package election_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rocl-go/rocl"
	"github.com/rocl-go/rocl/election"
	"github.com/rocl-go/rocl/rocltest"
)

var (
	seeds = flag.Uint64("seeds", 30, "the number of seeds of TestFaults")
	first = flag.Uint64("seed", 0, "the first seed of TestFaults")
)

// met is how long two processes may take themselves for the holder after the end of the fault that
// has divided them, as the package says.
const met = 5 * time.Second

// Contenders on one to four nodes hold a name, for a while each, with the faults of a seed:
// machines that stand still or crash, networks that are cut, directories and processes that are
// killed. Their clocks seem to differ by years.
//
// Promise (Package election): If the network, a machine or a directory fails, two processes may
// hold a name. The newer one is told within 5 s after the fault, and the older one's number grows.
// See also TestCut, TestHeldNameCut.
//
// The number of a holder is above that of each holder whose term it has waited for, also where the
// clocks of machines differ.
func TestFaults(t *testing.T) {
	for i := range *seeds {
		t.Run(fmt.Sprint(*first+i), func(t *testing.T) {
			t.Parallel()
			rocltest.Simulate(t, *first+i, contend)
		})
	}
}

// A spell is a time in which a process took itself for the holder, since the world began.
type spell struct {
	process             string
	node                int
	called, begin, end  time.Duration // of Hold, and of its term
	number, last        uint64        // as the term began and ended
	hasEnded, wasKilled bool
	isLost              bool // to an older claim
	term                *election.Term
}

// A ledger has the spells of all processes.
type ledger struct {
	w     *rocltest.World
	begun time.Time
	nodes int
	fault []rocltest.Fault
	calm  chan struct{} // closed when holders keep the name

	mu     sync.Mutex
	spells []*spell
	last   *election.Term // of the holder in the end
}

// contend is the function of Simulate.
func contend(w *rocltest.World) {
	l := &ledger{w: w, begun: time.Now(), nodes: 1 + w.Rand().IntN(4), calm: make(chan struct{})}
	w.AddNodes(l.nodes)
	for i := range 4 {
		node, rnd, ahead := w.Rand().IntN(l.nodes), rand.New(rand.NewPCG(w.Rand().Uint64(), 0)), election.Above(uint64(i)<<60)
		w.Start(node, fmt.Sprint("contender", i), func(p *rocltest.Process) {
			for p.Context().Err() == nil {
				called := time.Since(l.begun)
				term, err := election.Hold(p.Context(), p.Rocl(), rocl.Attrs{"role": "leader"}, ahead)
				if err != nil {
					if p.Context().Err() == nil {
						w.Errorf("%s: %v", p.Name(), err)
					}
					return
				}
				l.hold(p, term, &spell{process: p.Name(), node: node, called: called}, time.Duration(rnd.IntN(1000))*time.Millisecond)
				if err := term.Close(); err != nil && p.Context().Err() == nil {
					w.Errorf("%s: closing: %v", p.Name(), err)
				}
			}
		})
	}
	const faulty = 8 * time.Second
	time.AfterFunc(faulty+3*time.Second, func() { close(l.calm) })
	l.fault = w.Run(faulty)
	l.check()
}

// hold keeps a term for as long as d, or until the world's end when it is calm.
func (l *ledger) hold(p *rocltest.Process, term *election.Term, s *spell, d time.Duration) {
	s.begin, s.number, s.term = time.Since(l.begun), term.Number(), term
	l.mu.Lock()
	l.spells = append(l.spells, s)
	l.mu.Unlock()
	l.w.Log(p.Name(), " begins a term, number ", s.number)
	select {
	case <-time.After(d):
	case <-l.calm:
		d = 0
	case <-term.Done():
	case <-p.Context().Done():
	}
	if d == 0 {
		select {
		case <-term.Done():
		case <-p.Context().Done():
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.end, s.last, s.hasEnded, s.wasKilled = time.Since(l.begun), term.Number(), true, p.IsKilled()
	s.isLost = errors.Is(term.Err(), election.ErrLost) && !s.wasKilled
	l.w.Log(p.Name(), " ends a term, killed: ", s.wasKilled, ", ", term.Err())
}

// check checks all spells, when the world is calm.
func (l *ledger) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	holders := 0
	for _, s := range l.spells {
		if !s.hasEnded {
			holders++
			s.end, s.last = time.Since(l.begun), s.term.Number()
			l.last = s.term
		}
	}
	if holders != 1 {
		l.w.Errorf("%d processes hold the name in the end", holders)
		return
	}
	forgets := slices.ContainsFunc(l.fault, func(f rocltest.Fault) bool { // all that know a number may be killed
		return f.Kind == rocltest.KillProcess || f.Kind == rocltest.CrashNode
	})
	for _, s := range l.spells { // a storage that has seen their numbers accepts the last holder's
		if s.isLost && !forgets && s.last >= l.last.Number() {
			l.w.Errorf("the last holder's number is %d, below that of %+v", l.last.Number(), *s)
		}
	}
	slices.SortFunc(l.spells, func(a, b *spell) int { return cmp.Compare(a.begin, b.begin) })
	for i, b := range l.spells {
		for _, a := range l.spells[:i] {
			if at, ok := l.unexcused(a, b, b.begin, min(a.end, b.end)); ok {
				l.w.Errorf("two hold the name at %v: %+v and %+v", at, *a, *b)
			}
			// The claim of b was there while a held the name.
			if b.called < a.end && !l.isExcused(a, b, b.called, b.begin) && b.number <= a.last {
				l.w.Errorf("the number does not grow: %+v and %+v", *a, *b)
			}
		}
	}
}

// excuses returns the times of faults that may divide the nodes of two spells.
func (l *ledger) excuses(a, b *spell) (all [][2]time.Duration) {
	for _, f := range l.fault {
		x, y, met := f.A%l.nodes, f.B%l.nodes, met
		is := false
		switch f.Kind {
		case rocltest.BreakConnections: // with the own directory, at any time from then on
			is, met = x == y && (x == a.node || x == b.node), time.Hour
		case rocltest.SlowNetwork, rocltest.LoseDatagrams:
			is = true
		case rocltest.CutPath, rocltest.CutPaths:
			is = x == a.node || x == b.node || y == a.node || y == b.node
		case rocltest.StopNode, rocltest.CrashNode, rocltest.KillDirectory:
			is = x == a.node || x == b.node
		}
		if is {
			all = append(all, [2]time.Duration{f.At, f.At + f.For + met})
		}
	}
	return all
}

// unexcused returns the first time between from and to that no fault excuses.
func (l *ledger) unexcused(a, b *spell, from, to time.Duration) (at time.Duration, ok bool) {
	for _, e := range l.excuses(a, b) { // in order of their beginnings
		if e[0] <= from && from < e[1] {
			from = e[1]
		}
	}
	return from, from < to
}

// isExcused reports whether a fault excuses some time between from and to.
func (l *ledger) isExcused(a, b *spell, from, to time.Duration) bool {
	return slices.ContainsFunc(l.excuses(a, b), func(e [2]time.Duration) bool { return e[0] <= to && from < e[1] })
}
