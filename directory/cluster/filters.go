// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"iter"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/mux"
	"github.com/rocl-go/rocl/directory/search"
	"github.com/rocl-go/rocl/resource"
)

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
	who := c.filters.May(&pattern)
	if t := c.tallyBy(search); t != nil {
		t.may = who
	}
	return who
}

// keepSummary keeps this member's summary and tells the other members of it, in batches. A resource
// that is too new for the summary is found by asking all members.
func (c *Cluster) keepSummary() {
	defer c.busy.Done()
	var everything resource.List
	w := c.cfg.DB.Watch(&everything)
	defer w.Close()
	c.renew()
	interval := func() time.Duration { return search.Interval(c.cfg.Spread, len(*c.members.Load())) }
	due := time.NewTimer(interval())
	defer due.Stop()
	events := make(chan resource.List)
	c.busy.Add(1)
	go func() {
		defer c.busy.Done()
		for {
			ev, err := w.Next(c.life)
			if err != nil {
				return
			}
			if ev.Kind != database.Appeared && ev.Kind != database.Changed {
				continue
			}
			select {
			case events <- ev.Attrs:
			case <-c.life.Done():
				return
			}
		}
	}()
	for {
		select {
		case l := <-events:
			c.mu.Lock()
			c.filters.Add(&l)
			c.mu.Unlock()
		case <-due.C:
			c.mu.Lock()
			stale := c.filters.Stale(len(*c.members.Load()))
			c.mu.Unlock()
			if stale {
				c.renew()
			}
			c.spread()
			due.Reset(interval())
		case <-c.life.Done():
			return
		}
	}
}

// renew makes a new summary of what the node holds. Events that come meanwhile wait in the watch of
// keepSummary.
func (c *Cluster) renew() {
	s := search.NewSummary(c.everything(), len(*c.members.Load()))
	c.mu.Lock()
	c.filters.Renew(s)
	c.mu.Unlock()
}

// everything yields the attributes of all resources of the node.
func (c *Cluster) everything() iter.Seq[*resource.List] {
	return func(yield func(*resource.List) bool) {
		var everything resource.List
		for cur := c.cfg.DB.Cursor(&everything); ; {
			r, ok := cur.Next()
			if !ok || !yield(&r.Attrs) {
				return
			}
		}
	}
}

// spread tells the members what is new in the summary.
func (c *Cluster) spread() {
	var out []mux.Out
	c.mu.Lock()
	c.filters.Spread(*c.members.Load(), c.cfg.Node, func(to resource.NodeID, message []byte) {
		out = append(out, mux.Out{To: to, Payload: message})
	})
	c.mu.Unlock()
	for i := range out {
		c.count.filterSent.add(len(out[i].Payload))
	}
	c.port.Send(out...)
}

// hearFilter handles a message about summaries.
func (c *Cluster) hearFilter(from resource.NodeID, message []byte) {
	c.count.filterGot.add(len(message))
	if _, member := slices.BinarySearch(*c.members.Load(), from); !member {
		return
	}
	c.mu.Lock()
	reply, err := c.filters.Hear(from, message)
	c.mu.Unlock()
	if err != nil {
		c.log.Debug("cluster: summary", "from", from, "err", err)
	}
	if reply != nil {
		c.port.Send(mux.Out{To: from, Payload: reply})
	}
}
