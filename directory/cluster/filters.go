package cluster

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/port"
	"github.com/rocl-go/rocl/directory/search"
	"github.com/rocl-go/rocl/resource"
)

// Messages beside those of package search, told apart by their first byte.
const (
	msgDelta   = 16 + iota // from u64, to u64, hashes: what was added to the summary since
	msgSummary             // the whole summary
	msgWant                // send me the whole one
)

// maxDelta is how many hashes one packet tells of; more go as a whole summary.
const maxDelta = 128

// filters are what the members say they hold, and what this one says.
// Guarded by Cluster.mu but for own, which is keepSummary's.
type filters struct {
	of map[resource.NodeID]*search.Summary

	own   *search.Summary
	fresh []uint64 // added since version said
	said  uint64
	wants map[resource.NodeID]bool // members that lack the whole one
}

// may lists the members whose summary has all that a question names.
func (c *Cluster) may(q []byte) (who []resource.NodeID) {
	if q[0] != kindFind {
		return nil
	}
	pattern, err := resource.View(q[17:])
	if err != nil || pattern.Len() == 0 || resource.SeesSystem(&pattern) {
		return nil // summaries do not have those
	}
	for id, s := range c.filters.of {
		if s.May(&pattern) {
			who = append(who, id)
		}
	}
	if t := c.count.beginning; t != nil {
		t.may = who
	}
	return who
}

// keepSummary keeps this member's summary and tells the others of it, in
// batches: what is too new to be in it is found by asking everybody.
func (c *Cluster) keepSummary() {
	defer c.busy.Done()
	var everything resource.List
	w := c.cfg.DB.Watch(&everything)
	defer w.Close()
	c.renew()
	due := time.NewTicker(c.cfg.Spread)
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
			c.filters.fresh = append(c.filters.fresh, c.filters.own.Add(&l)...)
			c.mu.Unlock()
		case <-due.C:
			if c.filters.own.Full() {
				c.renew()
			}
			c.spread()
		case <-c.life.Done():
			return
		}
	}
}

// renew makes a new summary of what there is, with room to grow.
func (c *Cluster) renew() {
	var everything resource.List
	n := uint(c.cfg.DB.Len())
	s := search.NewSummary(n * 8)
	for cur := c.cfg.DB.Cursor(&everything); ; {
		r, ok := cur.Next()
		if !ok {
			break
		}
		s.Add(&r.Attrs)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &c.filters
	if f.own != nil {
		s.Version += f.own.Version // so that no delta fits the old one by chance
	}
	f.own, f.said, f.fresh = s, s.Version, nil
	for _, m := range *c.members.Load() {
		f.wants[m] = true
	}
}

// spread tells the members what is new.
func (c *Cluster) spread() {
	c.mu.Lock()
	f := &c.filters
	var whole, delta []byte
	if len(f.fresh) > maxDelta {
		for _, m := range *c.members.Load() {
			f.wants[m] = true
		}
	} else if len(f.fresh) > 0 {
		delta = binary.LittleEndian.AppendUint64([]byte{msgDelta}, f.said)
		delta = binary.LittleEndian.AppendUint64(delta, f.own.Version)
		for _, k := range f.fresh {
			delta = binary.LittleEndian.AppendUint64(delta, k)
		}
	}
	f.said, f.fresh = f.own.Version, nil
	if len(f.wants) > 0 {
		whole = f.own.Append([]byte{msgSummary})
	}
	var out []port.Out
	for _, m := range *c.members.Load() {
		switch {
		case m == c.cfg.Node:
		case f.wants[m]:
			out = append(out, port.Out{To: m, Payload: whole})
		case delta != nil:
			out = append(out, port.Out{To: m, Payload: delta})
		}
	}
	clear(f.wants)
	c.mu.Unlock()
	for i := range out {
		c.count.filterSent.add(len(out[i].Payload))
	}
	c.port.Send(out...)
}

// hearFilter works on a message about summaries.
func (c *Cluster) hearFilter(from resource.NodeID, kind byte, b []byte) {
	c.count.filterGot.add(1 + len(b))
	c.mu.Lock()
	defer c.mu.Unlock()
	f := &c.filters
	if _, member := slices.BinarySearch(*c.members.Load(), from); !member {
		return
	}
	switch kind {
	case msgWant:
		f.wants[from] = true
	case msgSummary:
		if s, err := search.ParseSummary(b); err == nil {
			f.of[from] = s
		} else {
			c.log.Debug("cluster: summary", "from", from, "err", err)
		}
	case msgDelta:
		if len(b) < 16 || len(b)%8 != 0 {
			return
		}
		var keys []uint64
		for k := b[16:]; len(k) > 0; k = k[8:] {
			keys = append(keys, binary.LittleEndian.Uint64(k))
		}
		if s := f.of[from]; s == nil || !s.Apply(binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), keys) {
			c.port.Send(port.Out{To: from, Payload: []byte{msgWant}})
		}
	}
}

// met says that a member has come, or gone.
func (f *filters) met(id resource.NodeID, alive bool) {
	if alive {
		f.wants[id] = true
	} else {
		delete(f.of, id)
		delete(f.wants, id)
	}
}
