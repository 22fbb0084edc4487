// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/resource"
)

// syncTime limits how long a watch waits, before it says Synced, for what the members have that
// existed when it began.
const syncTime = 3 * time.Second

// watches holds the watches of this node's contexts and, as long as there are any, one feed to each
// other member, which all watches share.
//
// When a member dies, its feed ends and its resources are gone. When only the connection breaks,
// because the member's directory is being replaced or the network fails, the resources stay until
// more is known.
type watches struct {
	*core
	members   *memberTable
	joiner    *joiner
	streams   *streams
	exchanges *exchanges

	mu     sync.Mutex // guards the following fields, and those of watches and feeds
	closed bool
	last   uint64
	all    map[uint64]*watching
	feeds  map[resource.NodeID]*feed
}

// A watching is one watch. watches.mu guards it.
type watching struct {
	pattern resource.List
	to      *database.Watch
	of      map[resource.NodeID]*directory.View
	waits   map[resource.NodeID]bool // for their first Synced
	late    *time.Timer              // ends the waiting; nil when the waiting is over
}

// firstMembers stands in watching.waits for the first members, which have no numbers yet. It is no
// member's number. A watch that begins before joiner.joined is done waits for it until then: a
// directory that replaces another one is about to meet its members.
const firstMembers resource.NodeID = 0

// watch implements Cluster.Watch.
func (ws *watches) watch(pattern *resource.List, to *database.Watch) (end func()) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.closed {
		return func() {}
	}
	ws.last++
	id := ws.last
	w := &watching{pattern: pattern.Clone(), to: to, of: map[resource.NodeID]*directory.View{}, waits: map[resource.NodeID]bool{}}
	to.Hold()
	w.late = time.AfterFunc(syncTime, func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if w.late != nil {
			// Cause: these members did not answer in 3 s. Remedy: see whether they live.
			ws.log.Warn("cluster: a watch goes on without what some members have", "members", fmt.Sprintf("%012x", w.awaitedLocked()))
			w.endWaitingLocked()
		}
	})
	if ws.joiner.joined.Err() == nil {
		w.waits[firstMembers] = true
	}
	ws.all[id] = w
	ws.updateFeedsLocked()
	for _, f := range ws.feeds {
		w.addLocked(f.node)
		f.orderLocked(order{id, w})
	}
	if len(w.waits) == 0 {
		w.endWaitingLocked()
	}
	return func() {
		ws.mu.Lock()
		defer ws.mu.Unlock()
		if ws.all[id] != w {
			return
		}
		delete(ws.all, id)
		w.endWaitingLocked()
		for _, f := range ws.feeds {
			f.orderLocked(order{id, nil})
			if len(ws.all) == 0 {
				ws.endFeedLocked(f)
			}
		}
	}
}

// addLocked adds a member to those that are watched.
func (w *watching) addLocked(m resource.NodeID) {
	if w.of[m] == nil {
		w.of[m] = &directory.View{}
	}
	if w.late != nil {
		w.waits[m] = true
	}
}

// heardLocked ends the wait for a member.
func (w *watching) heardLocked(m resource.NodeID) {
	delete(w.waits, m)
	if len(w.waits) == 0 {
		w.endWaitingLocked()
	}
}

// awaitedLocked returns the sorted members that are waited for.
func (w *watching) awaitedLocked() (members []resource.NodeID) {
	for m := range w.waits {
		members = append(members, m)
	}
	slices.Sort(members)
	return members
}

// endWaitingLocked ends all waiting, and lets the watch say Synced.
func (w *watching) endWaitingLocked() {
	if w.late != nil {
		w.late.Stop()
		w.late = nil
		clear(w.waits)
		w.to.Release()
	}
}

// dropLocked removes a node that is no member any more: its resources are gone.
func (w *watching) dropLocked(m resource.NodeID) {
	if v := w.of[m]; v != nil {
		delete(w.of, m)
		w.tellLocked(v.End())
	}
	w.heardLocked(m)
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

// maintainFeeds makes and ends feeds as the membership changes, until the cluster ends.
func (ws *watches) maintainFeeds() {
	joined := ws.joiner.joined.Done()
	for {
		news := ws.members.news()
		ws.mu.Lock()
		ws.updateFeedsLocked()
		if joined == nil {
			for _, w := range ws.all {
				w.heardLocked(firstMembers)
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

// close ends all watches: a node that is no member sees no other member's resources.
func (ws *watches) close() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.closed = true
	for m, f := range ws.feeds {
		ws.endFeedLocked(f)
		for _, w := range ws.all {
			w.dropLocked(m)
		}
	}
	for id, w := range ws.all {
		delete(ws.all, id)
		w.endWaitingLocked()
	}
}
