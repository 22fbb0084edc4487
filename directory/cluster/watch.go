// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/resource"
)

// syncTime is how long a watch waits at most, before it says Synced, for what
// the members have that were there when it began.
const syncTime = 3 * time.Second

// watches are those of this node's contexts, and one link to each member as
// long as there are any: all of them share it.
//
// Where a member dies its link does: what it had is gone. Where only the
// connection breaks, because the member's directory is being replaced or the
// network does not let us through, what it had stays until we know better.
type watches struct {
	mu     sync.Mutex
	closed bool
	last   uint64
	all    map[uint64]*watching
	links  map[resource.NodeID]*link
}

// watching is one watch.
type watching struct {
	pattern resource.List
	to      *database.Watch
	of      map[resource.NodeID]*view
	waits   map[resource.NodeID]bool // for their first Synced
	late    *time.Timer              // ends the waiting; nil when it is over
}

// nobody is no member's number. It is waited for until the first members have
// been met: a directory that is being replaced is about to.
const nobody resource.NodeID = 0

// view is what a watch knows of a member.
type view struct {
	directory.View
	grace *time.Timer // runs while some are missing; replaced, not used again
}

// link is the way to a member's server.
type link struct {
	node resource.NodeID
	life context.Context
	end  context.CancelFunc
	up   bool    // there is a connection
	todo []order // for it
	some chan struct{}
}

// order is what a member is to be told of a watch.
type order struct {
	id    uint64
	watch *watching // nil: stop
}

// order has the member told. Whoever connects orders everything anew.
func (l *link) order(o order) {
	if !l.up {
		return
	}
	l.todo = append(l.todo, o)
	select {
	case l.some <- struct{}{}:
	default:
	}
}

// Watch tells to what the other members hold that matches: see directory.Remote.
func (c *Cluster) Watch(pattern *resource.List, to *database.Watch) (end func()) {
	ws := &c.watches
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return func() {}
	}
	ws.last++
	id := ws.last
	w := &watching{pattern: pattern.Clone(), to: to, of: map[resource.NodeID]*view{}, waits: map[resource.NodeID]bool{}}
	to.Hold()
	w.late = time.AfterFunc(syncTime, func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if w.late != nil {
			c.log.Warn("cluster: a watch goes on without what some members have", "members", fmt.Sprintf("%012x", w.awaited()))
			w.synced()
		}
	})
	if c.joined.Err() == nil {
		w.waits[nobody] = true
	}
	ws.all[id] = w
	c.meetAll()
	for _, l := range ws.links {
		w.on(l.node)
		l.order(order{id, w})
	}
	if len(w.waits) == 0 {
		w.synced()
	}
	return func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if ws.all[id] != w {
			return
		}
		delete(ws.all, id)
		w.stop()
		for _, l := range ws.links {
			l.order(order{id, nil})
			if len(ws.all) == 0 {
				ws.unlink(l)
			}
		}
	}
}

// on makes a member one that is watched.
func (w *watching) on(m resource.NodeID) {
	if w.of[m] == nil {
		w.of[m] = &view{}
	}
	if w.late != nil {
		w.waits[m] = true
	}
}

// heard says that a member is not to be waited for any more.
func (w *watching) heard(m resource.NodeID) {
	delete(w.waits, m)
	if len(w.waits) == 0 {
		w.synced()
	}
}

// awaited are the members waited for.
func (w *watching) awaited() (who []resource.NodeID) {
	for m := range w.waits {
		who = append(who, m)
	}
	slices.Sort(who)
	return who
}

// synced says that there is nothing to be waited for any more.
func (w *watching) synced() {
	if w.late != nil {
		w.late.Stop()
		w.late = nil
		clear(w.waits)
		w.to.Release()
	}
}

// stop ends what would tell w something later.
func (w *watching) stop() {
	w.synced() // as far as we are concerned
	for _, v := range w.of {
		v.patient()
	}
}

// off says that a member is none any more: what it had is gone.
func (w *watching) off(m resource.NodeID) {
	if v := w.of[m]; v != nil {
		delete(w.of, m)
		v.patient()
		w.tell(v.End())
	}
	w.heard(m)
}

// patient ends a grace.
func (v *view) patient() {
	if v.grace != nil {
		v.grace.Stop()
		v.grace = nil
	}
}

func (w *watching) tell(events []directory.Event) {
	for _, ev := range events {
		if ev.Kind == directory.Gone {
			w.to.Untell(ev.ID)
		} else {
			w.to.Tell(database.Record(ev.Answer))
		}
	}
}

// keepLinks follows the membership.
func (c *Cluster) keepLinks() {
	defer c.busy.Done()
	joined := c.joined.Done()
	for {
		news := c.news()
		c.watches.mu.Lock()
		c.meetAll()
		if joined == nil {
			for _, w := range c.watches.all {
				w.heard(nobody)
			}
		}
		c.watches.mu.Unlock()
		select {
		case <-news:
		case <-joined:
			joined = nil
		case <-c.life.Done():
			c.watches.close()
			return
		}
	}
}

// meetAll makes links to those who are members, if anything is watched, and
// ends those to others. ws.mu is held: with a list of members from before it was,
// who has come meanwhile would be taken for gone.
func (c *Cluster) meetAll() {
	ws, members := &c.watches, *c.members.Load()
	for m, l := range ws.links {
		if _, member := slices.BinarySearch(members, m); !member {
			ws.unlink(l)
			for _, w := range ws.all {
				w.off(m)
			}
		}
	}
	if len(ws.all) == 0 || ws.closed {
		return
	}
	for _, m := range members {
		if m == c.cfg.Node || ws.links[m] != nil {
			continue
		}
		l := &link{node: m, some: make(chan struct{}, 1)}
		l.life, l.end = context.WithCancel(c.life)
		ws.links[m] = l
		for _, w := range ws.all {
			w.on(m)
		}
		c.busy.Add(1)
		go c.follow(l)
	}
}

// unlink ends a link.
func (ws *watches) unlink(l *link) {
	delete(ws.links, l.node)
	l.end()
}

// close ends all watches: for who is no member, nobody holds anything.
func (ws *watches) close() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.closed = true
	for m, l := range ws.links {
		ws.unlink(l)
		for _, w := range ws.all {
			w.off(m)
		}
	}
	for id, w := range ws.all {
		delete(ws.all, id)
		w.stop()
	}
}

// follow keeps a link connected.
func (c *Cluster) follow(l *link) {
	defer c.busy.Done()
	const least, most = 10 * time.Millisecond, time.Second
	wait := least
	for {
		news := c.news() // it may be what we lack
		begun := time.Now()
		err := c.connect(l)
		if l.life.Err() != nil {
			return
		}
		if time.Since(begun) > most {
			wait = least
		}
		c.log.Debug("cluster: watching", "node", fmt.Sprintf("%012x", uint64(l.node)), "err", err)
		t := time.NewTimer(wait)
		wait = min(2*wait, most)
		select {
		case <-t.C:
		case <-news:
			wait = least
			t.Reset(least) // membership may be in a storm
			select {
			case <-t.C:
			case <-l.life.Done():
			}
		case <-l.life.Done():
		}
		t.Stop()
	}
}

// connect follows a member over one connection, to its end.
func (c *Cluster) connect(l *link) error {
	nc, err := c.dial(l.life, directoryByte, l.node)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(l.life, func() { nc.Close() })
	defer stop()
	p, err := directory.NewPeer(nc)
	if err != nil {
		nc.Close()
		return err
	}
	c.watches.begin(l)
	wrote := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(wrote)
		c.watches.write(l, p, done)
	}()
	for err == nil {
		var id uint64
		var ev directory.Event
		var refused error
		if id, ev, refused, err = p.Next(); err != nil {
			break
		}
		if refused != nil {
			c.log.Warn("cluster: a member refuses a watch", "node", fmt.Sprintf("%012x", uint64(l.node)), "err", refused)
			ev = directory.Event{Kind: directory.Synced}
		}
		c.watches.event(l, id, ev)
	}
	p.Close()
	close(done)
	<-wrote
	c.watches.ended(l)
	return err
}

// begin orders everything anew.
func (ws *watches) begin(l *link) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	l.up, l.todo = true, nil
	for id, w := range ws.all {
		if v := w.of[l.node]; v != nil {
			v.patient()
			v.Begin()
			l.order(order{id, w})
		}
	}
}

// ended says that the connection has.
func (ws *watches) ended(l *link) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	l.up, l.todo = false, nil
}

// write tells a member what is ordered, and that we are there.
func (ws *watches) write(l *link, p *directory.Peer, done <-chan struct{}) {
	defer p.Close() // whoever reads stops
	t := time.NewTicker(directory.BeatTime)
	defer t.Stop()
	for {
		ws.mu.Lock()
		todo := l.todo
		l.todo = nil
		ws.mu.Unlock()
		for _, o := range todo {
			var err error
			if o.watch != nil {
				err = p.Watch(o.id, &o.watch.pattern)
			} else {
				err = p.Stop(o.id)
			}
			if err != nil {
				return
			}
		}
		select {
		case <-l.some:
		case <-t.C:
			if p.Beat() != nil {
				return
			}
		case <-done:
			return
		}
	}
}

// event works on what a member tells.
func (ws *watches) event(l *link, id uint64, ev directory.Event) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.all[id]
	if w == nil || ws.links[l.node] != l {
		return // it ended
	}
	v := w.of[l.node]
	if ev.Kind == directory.Synced {
		if v.Missing() > 0 {
			var grace *time.Timer
			grace = time.AfterFunc(directory.GoneGrace, func() {
				ws.mu.Lock()
				defer ws.mu.Unlock()
				if v.grace == grace {
					v.grace = nil
					w.tell(v.Expire())
				}
			})
			v.grace = grace
		}
		w.heard(l.node)
		return
	}
	if ev.ID.Node() != l.node {
		return // a member speaks for itself alone
	}
	if ev, ok := v.Take(ev); ok {
		w.tell([]directory.Event{ev})
	}
}
