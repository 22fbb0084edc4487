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

// syncTime limits how long a watch waits, before it says Synced, for what the members have that
// existed when it began.
const syncTime = 3 * time.Second

// watches holds the watches of this node's contexts and, as long as there are any, one link to each
// other member, which all watches share.
//
// When a member dies, its link ends and its resources are gone. When only the connection breaks,
// because the member's directory is being replaced or the network fails, the resources stay until
// more is known.
type watches struct {
	mu     sync.Mutex
	closed bool
	last   uint64
	all    map[uint64]*watching
	links  map[resource.NodeID]*link
}

// A watching is one watch. watches.mu guards it.
type watching struct {
	pattern resource.List
	to      *database.Watch
	of      map[resource.NodeID]*view
	waits   map[resource.NodeID]bool // for their first Synced
	late    *time.Timer              // ends the waiting; nil when the waiting is over
}

// nobody is no member's number. A watch waits for it until the first members have been met: a
// directory that replaces another one is about to meet them.
const nobody resource.NodeID = 0

// A view is what a watch knows of one member.
type view struct {
	directory.View
	grace *time.Timer // runs while some resources are missing; replaced, not used again
}

// A link is the relation to one member's server, over one connection after another. watches.mu
// guards its fields up and todo.
type link struct {
	node resource.NodeID
	life context.Context
	end  context.CancelFunc
	up   bool    // there is a connection
	todo []order // for the connection's writer
	some chan struct{}
}

// An order tells a member to begin or to end a watch.
type order struct {
	id    uint64
	watch *watching // nil: end it
}

// order queues o for the member. Without a connection it does nothing: the next connection orders
// every watch anew. watches.mu must be held.
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

// Watch keeps the given watch informed of what the other members have that matches: see
// directory.Remote.
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
	if c.joiner.joined.Err() == nil {
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

// on adds a member to those that are watched. watches.mu must be held.
func (w *watching) on(m resource.NodeID) {
	if w.of[m] == nil {
		w.of[m] = &view{}
	}
	if w.late != nil {
		w.waits[m] = true
	}
}

// heard ends the wait for a member. watches.mu must be held.
func (w *watching) heard(m resource.NodeID) {
	delete(w.waits, m)
	if len(w.waits) == 0 {
		w.synced()
	}
}

// awaited returns the sorted members that are waited for. watches.mu must be held.
func (w *watching) awaited() (who []resource.NodeID) {
	for m := range w.waits {
		who = append(who, m)
	}
	slices.Sort(who)
	return who
}

// synced ends all waiting, and lets the watch say Synced. watches.mu must be held.
func (w *watching) synced() {
	if w.late != nil {
		w.late.Stop()
		w.late = nil
		clear(w.waits)
		w.to.Release()
	}
}

// stop ends the timers of w. watches.mu must be held.
func (w *watching) stop() {
	w.synced() // as far as the cluster is concerned
	for _, v := range w.of {
		v.patient()
	}
}

// off removes a node that is no member any more: its resources are gone. watches.mu must be held.
func (w *watching) off(m resource.NodeID) {
	if v := w.of[m]; v != nil {
		delete(w.of, m)
		v.patient()
		w.tell(v.End())
	}
	w.heard(m)
}

// patient stops the grace of missing resources. watches.mu must be held.
func (v *view) patient() {
	if v.grace != nil {
		v.grace.Stop()
		v.grace = nil
	}
}

// tell passes events on to the watch. watches.mu must be held.
func (w *watching) tell(events []directory.Event) {
	for _, ev := range events {
		if ev.Kind == directory.Gone {
			w.to.Drop(ev.ID)
		} else {
			w.to.Put(ev.Record)
		}
	}
}

// keepLinks makes and ends links as the membership changes, until the cluster ends.
func (c *Cluster) keepLinks() {
	joined := c.joiner.joined.Done()
	for {
		news := c.members.news()
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

// meetAll makes links to the members, if there are watches, and ends the links to other nodes.
// watches.mu must be held when the list of members is loaded: with an older list, a member that has
// come meanwhile would be taken for gone.
func (c *Cluster) meetAll() {
	ws, members := &c.watches, c.members.list()
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
		c.life.begin(func() { c.follow(l) })
	}
}

// unlink ends a link. watches.mu must be held.
func (ws *watches) unlink(l *link) {
	delete(ws.links, l.node)
	l.end()
}

// close ends all watches: a node that is no member sees no other member's resources.
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

// follow keeps a link connected until the link ends. It has a goroutine to itself.
func (c *Cluster) follow(l *link) {
	const least, most = 10 * time.Millisecond, time.Second
	wait := least
	for {
		news := c.members.news() // a change may bring what connect lacks
		begun := time.Now()
		err := c.connect(l)
		if l.life.Err() != nil {
			return
		}
		if time.Since(begun) > most {
			wait = least
		}
		c.exchanges.mend(l.node)
		c.log.Debug("cluster: watching", "node", fmt.Sprintf("%012x", uint64(l.node)), "err", err)
		t := time.NewTimer(wait)
		wait = min(2*wait, most)
		select {
		case <-t.C:
		case <-news:
			wait = least
			t.Reset(least) // membership may be changing fast
			select {
			case <-t.C:
			case <-l.life.Done():
			}
		case <-l.life.Done():
		}
		t.Stop()
	}
}

// connect follows a member over one connection, until that ends.
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

// begin orders every watch anew on a new connection.
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

// ended notes that the connection has ended.
func (ws *watches) ended(l *link) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	l.up, l.todo = false, nil
}

// write sends a member the orders, and beats that show that this member is alive. It has a
// goroutine to itself, and ends when done is closed or a write fails.
func (ws *watches) write(l *link, p *directory.Peer, done <-chan struct{}) {
	defer p.Close() // ends the reading in connect too
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

// event handles an event of a member about the watch id.
func (ws *watches) event(l *link, id uint64, ev directory.Event) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.all[id]
	if w == nil || ws.links[l.node] != l {
		return // the watch or the link has ended
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
		return // a member speaks for its own resources alone
	}
	if ev, ok := v.Take(ev); ok {
		w.tell([]directory.Event{ev})
	}
}
