// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

// A feed is the relation to one member's server, over one connection after another. watches.mu
// guards its fields up and todo.
type feed struct {
	node resource.NodeID
	life context.Context
	end  context.CancelFunc
	up   bool          // there is a connection
	todo []order       // for the connection's writer
	wake chan struct{} // has a value when todo has orders
}

// An order tells a member to begin or to end a watch.
type order struct {
	id    uint64
	watch *watching // nil: end it
}

// orderLocked queues o for the member. Without a connection it does nothing: the next connection
// orders every watch anew.
func (f *feed) orderLocked(o order) {
	if !f.up {
		return
	}
	f.todo = append(f.todo, o)
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// updateFeedsLocked makes feeds to the members, if there are watches, and ends the feeds to other
// nodes. A member that refuses this one keeps its feed, and so its resources in the watches. It
// loads the list of members itself: by an older list, a member that has come meanwhile would be
// taken for gone.
func (ws *watches) updateFeedsLocked() {
	members := ws.members.list()
	for m, f := range ws.feeds {
		if _, member := slices.BinarySearch(members, m); !member && !ws.members.mayLive(m) {
			ws.endFeedLocked(f)
			for _, w := range ws.all {
				w.dropLocked(m)
			}
		}
	}
	if len(ws.all) == 0 || ws.closed {
		return
	}
	for _, m := range members {
		if m == ws.cfg.Node || ws.feeds[m] != nil {
			continue
		}
		f := &feed{node: m, wake: make(chan struct{}, 1)}
		f.life, f.end = context.WithCancel(ws.life)
		ws.feeds[m] = f
		for _, w := range ws.all {
			w.addLocked(m)
		}
		ws.life.begin(func() { ws.runFeed(f) })
	}
}

// endFeedLocked ends a feed.
func (ws *watches) endFeedLocked(f *feed) {
	delete(ws.feeds, f.node)
	f.end()
}

// runFeed keeps a feed connected until the feed ends. It has a goroutine to itself.
func (ws *watches) runFeed(f *feed) {
	const least, most = 10 * time.Millisecond, time.Second
	wait := least
	for {
		news := ws.members.news() // a change may bring what connect lacks
		begun := time.Now()
		err := ws.connect(f)
		if f.life.Err() != nil {
			return
		}
		if time.Since(begun) > most {
			wait = least
		}
		ws.exchanges.exchangeWith(f.node)
		ws.log.Debug("cluster: watching", "node", fmt.Sprintf("%012x", uint64(f.node)), "err", err)
		select {
		case <-time.After(wait):
			wait = min(2*wait, most)
		case <-news:
			wait = least
			select {
			case <-time.After(least): // membership may be changing fast
			case <-f.life.Done():
			}
		case <-f.life.Done():
		}
	}
}

// connect follows a member over one connection, until that ends.
func (ws *watches) connect(f *feed) error {
	nc, err := ws.streams.dial(f.life, directoryByte, f.node)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(f.life, func() { nc.Close() })
	defer stop()
	p, err := directory.NewPeer(nc)
	if err != nil {
		nc.Close()
		return err
	}
	ws.begin(f)
	wrote := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(wrote)
		ws.write(f, p, done)
	}()
	for err == nil {
		var id uint64
		var ev directory.Event
		var refused error
		if id, ev, refused, err = p.Next(); err != nil {
			break
		}
		if refused != nil {
			// Cause: it has too many watches of this node. Remedy: use fewer.
			ws.log.Warn("cluster: a member refuses a watch", "node", fmt.Sprintf("%012x", uint64(f.node)), "err", refused)
			ev = directory.Event{Kind: directory.Synced}
		}
		ws.event(f, id, ev)
	}
	p.Close()
	close(done)
	<-wrote
	ws.ended(f)
	return err
}

// begin orders every watch anew on a new connection.
func (ws *watches) begin(f *feed) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	f.up, f.todo = true, nil
	for id, w := range ws.all {
		if v := w.of[f.node]; v != nil {
			v.Begin()
			f.orderLocked(order{id, w})
		}
	}
}

// ended notes that the connection has ended.
func (ws *watches) ended(f *feed) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	f.up, f.todo = false, nil
}

// write sends a member the orders, and beats that show that this member is alive. It has a
// goroutine to itself, and ends when done is closed or a write fails.
func (ws *watches) write(f *feed, p *directory.Peer, done <-chan struct{}) {
	defer p.Close() // ends the reading in connect too
	t := time.NewTicker(directory.BeatTime)
	defer t.Stop()
	for {
		ws.mu.Lock()
		todo := f.todo
		f.todo = nil
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
		case <-f.wake:
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
func (ws *watches) event(f *feed, id uint64, ev directory.Event) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.all[id]
	if w == nil || ws.feeds[f.node] != f {
		return // the watch or the feed has ended
	}
	v := w.of[f.node]
	if ev.Kind == directory.Synced {
		w.tellLocked(v.Expire()) // the member has heard of every living context of its node
		w.heardLocked(f.node)
		return
	}
	if ev.ID.Node() != f.node {
		return // a member speaks for its own resources alone
	}
	if ev, ok := v.Take(ev); ok {
		w.tellLocked([]directory.Event{ev})
	}
}
