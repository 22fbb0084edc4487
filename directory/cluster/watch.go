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
	*core
	members   *memberTable
	joiner    *joiner
	streams   *streams
	exchanges *exchanges

	mu     sync.Mutex // guards the following fields, and those of watches and links
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

// orderLocked queues o for the member. Without a connection it does nothing: the next connection
// orders every watch anew.
func (l *link) orderLocked(o order) {
	if !l.up {
		return
	}
	l.todo = append(l.todo, o)
	select {
	case l.some <- struct{}{}:
	default:
	}
}

func newWatches(c *core, members *memberTable, j *joiner, s *streams, x *exchanges) *watches {
	return &watches{core: c, members: members, joiner: j, streams: s, exchanges: x, all: map[uint64]*watching{}, links: map[resource.NodeID]*link{}}
}

// watch keeps the given watch informed of what the other members have that matches: see
// directory.Remote.
func (ws *watches) watch(pattern *resource.List, to *database.Watch) (end func()) {
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
			ws.log.Warn("cluster: a watch goes on without what some members have", "members", fmt.Sprintf("%012x", w.awaitedLocked()))
			w.syncedLocked()
		}
	})
	if ws.joiner.joined.Err() == nil {
		w.waits[nobody] = true
	}
	ws.all[id] = w
	ws.meetAllLocked()
	for _, l := range ws.links {
		w.addLocked(l.node)
		l.orderLocked(order{id, w})
	}
	if len(w.waits) == 0 {
		w.syncedLocked()
	}
	return func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if ws.all[id] != w {
			return
		}
		delete(ws.all, id)
		w.stopLocked()
		for _, l := range ws.links {
			l.orderLocked(order{id, nil})
			if len(ws.all) == 0 {
				ws.unlinkLocked(l)
			}
		}
	}
}

// addLocked adds a member to those that are watched.
func (w *watching) addLocked(m resource.NodeID) {
	if w.of[m] == nil {
		w.of[m] = &view{}
	}
	if w.late != nil {
		w.waits[m] = true
	}
}

// heardLocked ends the wait for a member.
func (w *watching) heardLocked(m resource.NodeID) {
	delete(w.waits, m)
	if len(w.waits) == 0 {
		w.syncedLocked()
	}
}

// awaitedLocked returns the sorted members that are waited for.
func (w *watching) awaitedLocked() (who []resource.NodeID) {
	for m := range w.waits {
		who = append(who, m)
	}
	slices.Sort(who)
	return who
}

// syncedLocked ends all waiting, and lets the watch say Synced.
func (w *watching) syncedLocked() {
	if w.late != nil {
		w.late.Stop()
		w.late = nil
		clear(w.waits)
		w.to.Release()
	}
}

// stopLocked ends the timers of w.
func (w *watching) stopLocked() {
	w.syncedLocked() // as far as the cluster is concerned
	for _, v := range w.of {
		v.stopGraceLocked()
	}
}

// dropLocked removes a node that is no member any more: its resources are gone.
func (w *watching) dropLocked(m resource.NodeID) {
	if v := w.of[m]; v != nil {
		delete(w.of, m)
		v.stopGraceLocked()
		w.tellLocked(v.End())
	}
	w.heardLocked(m)
}

// stopGraceLocked stops the grace of missing resources.
func (v *view) stopGraceLocked() {
	if v.grace != nil {
		v.grace.Stop()
		v.grace = nil
	}
}

// tellLocked passes events on to the watch.
func (w *watching) tellLocked(events []directory.Event) {
	for _, ev := range events {
		if ev.Kind == directory.Gone {
			w.to.Drop(ev.ID)
		} else {
			w.to.Put(ev.Record)
		}
	}
}

// keep makes and ends links as the membership changes, until the cluster ends.
func (ws *watches) keep() {
	joined := ws.joiner.joined.Done()
	for {
		news := ws.members.news()
		ws.mu.Lock()
		ws.meetAllLocked()
		if joined == nil {
			for _, w := range ws.all {
				w.heardLocked(nobody)
			}
		}
		ws.mu.Unlock()
		select {
		case <-news:
		case <-joined:
			joined = nil
		case <-ws.life.Done():
			ws.close()
			return
		}
	}
}

// meetAllLocked makes links to the members, if there are watches, and ends the links to other
// nodes. It loads the list of members itself: by an older list, a member that has come meanwhile
// would be taken for gone.
func (ws *watches) meetAllLocked() {
	members := ws.members.list()
	for m, l := range ws.links {
		if _, member := slices.BinarySearch(members, m); !member {
			ws.unlinkLocked(l)
			for _, w := range ws.all {
				w.dropLocked(m)
			}
		}
	}
	if len(ws.all) == 0 || ws.closed {
		return
	}
	for _, m := range members {
		if m == ws.cfg.Node || ws.links[m] != nil {
			continue
		}
		l := &link{node: m, some: make(chan struct{}, 1)}
		l.life, l.end = context.WithCancel(ws.life)
		ws.links[m] = l
		for _, w := range ws.all {
			w.addLocked(m)
		}
		ws.life.begin(func() { ws.follow(l) })
	}
}

// unlinkLocked ends a link.
func (ws *watches) unlinkLocked(l *link) {
	delete(ws.links, l.node)
	l.end()
}

// close ends all watches: a node that is no member sees no other member's resources.
func (ws *watches) close() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.closed = true
	for m, l := range ws.links {
		ws.unlinkLocked(l)
		for _, w := range ws.all {
			w.dropLocked(m)
		}
	}
	for id, w := range ws.all {
		delete(ws.all, id)
		w.stopLocked()
	}
}

// follow keeps a link connected until the link ends. It has a goroutine to itself.
func (ws *watches) follow(l *link) {
	const least, most = 10 * time.Millisecond, time.Second
	wait := least
	for {
		news := ws.members.news() // a change may bring what connect lacks
		begun := time.Now()
		err := ws.connect(l)
		if l.life.Err() != nil {
			return
		}
		if time.Since(begun) > most {
			wait = least
		}
		ws.exchanges.mend(l.node)
		ws.log.Debug("cluster: watching", "node", fmt.Sprintf("%012x", uint64(l.node)), "err", err)
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
func (ws *watches) connect(l *link) error {
	nc, err := ws.streams.dial(l.life, directoryByte, l.node)
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
	ws.begin(l)
	wrote := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(wrote)
		ws.write(l, p, done)
	}()
	for err == nil {
		var id uint64
		var ev directory.Event
		var refused error
		if id, ev, refused, err = p.Next(); err != nil {
			break
		}
		if refused != nil {
			ws.log.Warn("cluster: a member refuses a watch", "node", fmt.Sprintf("%012x", uint64(l.node)), "err", refused)
			ev = directory.Event{Kind: directory.Synced}
		}
		ws.event(l, id, ev)
	}
	p.Close()
	close(done)
	<-wrote
	ws.ended(l)
	return err
}

// begin orders every watch anew on a new connection.
func (ws *watches) begin(l *link) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	l.up, l.todo = true, nil
	for id, w := range ws.all {
		if v := w.of[l.node]; v != nil {
			v.stopGraceLocked()
			v.Begin()
			l.orderLocked(order{id, w})
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
					w.tellLocked(v.Expire())
				}
			})
			v.grace = grace
		}
		w.heardLocked(l.node)
		return
	}
	if ev.ID.Node() != l.node {
		return // a member speaks for its own resources alone
	}
	if ev, ok := v.Take(ev); ok {
		w.tellLocked([]directory.Event{ev})
	}
}
