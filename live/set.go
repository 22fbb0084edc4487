// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl"
)

// ErrNone is returned by [Set.Pick] if the set has no member, or none that the caller leaves in.
var ErrNone = errors.New("live: no member")

// pause is how long a member stays out of the set that a request has given up as out of reach. It
// may live, and nothing reports that it is in reach again.
const pause = 10 * time.Second

// A Set has the current members of a pattern. Its methods may be called concurrently.
//
// One goroutine, follow, reads the watch and changes the set. Picks read the view and, for Hash and
// Least, the table and the boards.
type Set struct {
	c      *rocl.Context
	cancel context.CancelCauseFunc
	view   atomic.Pointer[view]
	turns  atomic.Uint64            // picks by Turn and Nearest
	table  atomic.Pointer[table]    // nil until the first pick by Hash
	boards atomic.Pointer[[]*board] // nil until the first pick by Least
	synced chan struct{}            // closed when the members of the beginning are known
	done   chan struct{}            // closed when follow has returned

	mu      sync.Mutex         // guards what follows, and changes of the view, the table and the boards
	slots   map[rocl.GID]*slot // also those that are out
	clock   uint64             // picks by Least
	changed chan struct{}      // closed at the next change; nil: no goroutine waits for it
	err     error              // why the set has ended; nil: it has not
}

// A view is the membership at one moment. It is not changed.
type view struct {
	slots []*slot // by distance, then by identifier
	ends  [3]int  // how many slots are as near as each distance, or nearer
	err   error   // of a pick if there is no slot
}

// A slot is a member, from its appearance until it is gone.
type slot struct {
	set      *Set
	id       rocl.GID
	distance int
	hash     uint64 // of the identifier
	now      atomic.Pointer[Member]
	inFlight atomic.Int64

	// The set's mu guards these.
	entries []*entry // one on each board; none while the slot is out
	out     bool     // not in the view: its end is known here
}

// A Member is a member with its attributes at one moment. It is not changed, and stays valid after
// the member has ended.
type Member struct {
	rocl.Found
	slot *slot
}

// Follow returns the set of the resources that match the pattern a, once it has those that match
// now. That takes some seconds if a node does not answer and is not known to be dead. The options
// are those of [rocl.Context.Watch]. A member whose numbers leave the pattern ([rocl.At],
// [rocl.Parse]) leaves the set. With [rocl.Want], the attributes of [Least] must be among those
// that are wanted.
//
// The set is kept up to date until ctx ends, the context c is closed, or [Set.Close]. From then on
// it is empty, and [Set.Pick] fails with the reason. Follow fails as Watch does.
func Follow(ctx context.Context, c *rocl.Context, a rocl.Attributes, opts ...rocl.FindOption) (*Set, error) {
	if c == nil {
		return nil, fmt.Errorf("live: follow: %w: the context is nil", fs.ErrInvalid)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &Set{c: c, cancel: cancel, synced: make(chan struct{}), done: make(chan struct{}), slots: map[rocl.GID]*slot{}}
	s.view.Store(&view{err: ErrNone})
	go s.follow(c.Watch(ctx, a, opts...))
	select {
	case <-s.synced:
		return s, nil
	case <-s.done:
		cancel(nil)
		return nil, s.err
	}
}

// follow applies the events of a watch until it ends. Only follow adds and removes slots.
func (s *Set) follow(events iter.Seq2[rocl.Event, error]) {
	defer close(s.done)
	for ev, err := range events {
		if err != nil { // the last event
			s.end(fmt.Errorf("live: follow: %w", err))
			return
		}
		s.mu.Lock()
		s.apply(ev)
		s.mu.Unlock()
	}
}

// end empties the set for ever.
func (s *Set) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	clear(s.slots)
	s.boards.Store(nil)
	s.table.Store(nil)
	s.publish(&view{err: err})
}

// apply applies an event. mu must be held.
func (s *Set) apply(ev rocl.Event) {
	old := s.slots[ev.ID]
	switch {
	case ev.Kind == rocl.Synced:
		s.begin()
		close(s.synced)
	case ev.Kind == rocl.Gone:
		if delete(s.slots, ev.ID); old != nil {
			s.drop(old)
		}
	case old != nil:
		old.now.Store(&Member{ev.Found, old})
		for _, e := range old.entries {
			e.number = e.board.numberOf(old)
		}
		old.rescore()
		s.announce()
	default:
		n := &slot{set: s, id: ev.ID, hash: hashOf(ev.ID), distance: distance(s.c, &ev.Found), out: true}
		n.now.Store(&Member{ev.Found, n})
		s.slots[ev.ID] = n
		select {
		case <-s.synced:
			s.add(n)
		default: // begin will do so for all
		}
	}
}

// begin publishes the members of the beginning. mu must be held.
func (s *Set) begin() {
	v := view{slots: slices.SortedFunc(maps.Values(s.slots), (*slot).compare), err: ErrNone}
	for _, n := range v.slots {
		n.out = false
		for d := n.distance; d < len(v.ends); d++ {
			v.ends[d]++
		}
	}
	s.publish(&v)
}

// Distances of a member.
const (
	inContext = iota
	onNode
	elsewhere
)

func distance(c *rocl.Context, f *rocl.Found) int {
	switch {
	case f.Context == c.ID():
		return inContext
	case f.ID.Node() == c.ID().Node():
		return onNode
	}
	return elsewhere
}

// compare is the order of the slots of a view.
func (x *slot) compare(y *slot) int {
	return cmp.Or(cmp.Compare(x.distance, y.distance), x.id.Compare(y.id))
}

// add puts a slot into the view, the table and the boards. mu must be held.
func (s *Set) add(n *slot) {
	n.out = false
	if t := s.table.Load(); t != nil {
		t.add(n)
	}
	for _, b := range s.each() {
		b.add(n)
	}
	v := *s.view.Load()
	at, _ := slices.BinarySearchFunc(v.slots, n, (*slot).compare)
	v.slots = slices.Insert(slices.Clip(v.slots), at, n)
	for d := n.distance; d < len(v.ends); d++ {
		v.ends[d]++
	}
	s.publish(&v)
}

// drop takes a slot out of the view, the table and the boards. mu must be held.
func (s *Set) drop(o *slot) {
	if o.out {
		return
	}
	o.out = true
	if t := s.table.Load(); t != nil {
		t.remove(o)
	}
	for _, e := range o.entries {
		e.board.remove(e)
	}
	o.entries = nil
	v := *s.view.Load()
	at, _ := slices.BinarySearchFunc(v.slots, o, (*slot).compare)
	v.slots = slices.Concat(v.slots[:at], v.slots[at+1:])
	for d := o.distance; d < len(v.ends); d++ {
		v.ends[d]--
	}
	s.publish(&v)
}

// publish shows a view to picks. mu must be held.
func (s *Set) publish(v *view) {
	s.view.Store(v)
	s.announce()
}

// announce wakes those that wait for a change. mu must be held.
func (s *Set) announce() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Ended tells the set that the error err is about the member id: that of a request, or of a monitor
// ([rocl.Message.GoneErr]). If err is an end, as [rocl.IsEnd] reports, the member leaves the set at
// once. It does not come back, unless err says that it may live (rocl.ErrNodeDead or
// rocl.ErrUnreachable): then it is back when the directory reports it again, or after ten seconds
// if the directory has not reported its end meanwhile.
func (s *Set) Ended(id rocl.GID, err error) {
	if !rocl.IsEnd(err) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.slots[id]; o != nil {
		s.lose(o, err)
	}
}

// lose drops a slot because of err, which is an end. mu must be held.
func (s *Set) lose(o *slot, err error) {
	if o.out || s.err != nil {
		return
	}
	s.drop(o)
	if !errors.Is(err, rocl.ErrNodeDead) && !errors.Is(err, rocl.ErrUnreachable) {
		return
	}
	time.AfterFunc(pause, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.slots[o.id] == o {
			s.add(o)
		}
	})
}

// All yields the members, those of this context first, then those of this node. The loop sees the
// set as it was at one moment.
func (s *Set) All() iter.Seq[rocl.Found] {
	return func(yield func(rocl.Found) bool) {
		s.mu.Lock()
		all := make([]*Member, 0, s.Len())
		for _, o := range s.view.Load().slots {
			all = append(all, o.now.Load())
		}
		s.mu.Unlock()
		for _, m := range all {
			if !yield(m.Found) {
				return
			}
		}
	}
}

// Len returns the number of members.
func (s *Set) Len() int { return len(s.view.Load().slots) }

// Changed returns a channel that is closed at the next change of the set: when a member comes or
// goes, when its attributes change, or when the set ends. A loop that misses no change gets the
// channel before it looks at the set.
func (s *Set) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.done
	}
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// Err returns why the set has ended, and nil while it is kept up to date. After [Set.Close] the
// error matches rocl.ErrClosed.
func (s *Set) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the set. It waits until nothing of the set runs, and returns nil.
func (s *Set) Close() error {
	s.cancel(rocl.ErrClosed)
	<-s.done
	return nil
}
