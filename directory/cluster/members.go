// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory/mux"
	"github.com/rocl-go/rocl/resource"
)

const (
	// firstTime is how long questions wait for the first member to be reached. A connection whose
	// first packet is lost takes a second.
	firstTime = 3 * time.Second
	// awayTime is how long a member is waited for that said that it would be back.
	awayTime = 5 * time.Second
)

// A node is what this member knows of a member that it has met or heard of. Cluster.nmu guards it.
type node struct {
	addr  string
	epoch uint64 // of the present life of its port
	alive bool
	lost  time.Time   // when it was seen dead
	met   time.Time   // when it was first seen alive in this life
	left  bool        // it said that it leaves
	going bool        // it said that another server is about to take its place
	away  *time.Timer // runs while the node is away
	until time.Time   // when the timer away fires

	rolls   bool // it reads the checksum of members in a no: see roll.go
	hearsay bool // another member told of it, and it was never seen alive
	doubt   bool // its account, which follows, decides whether the node is waited for

	mended time.Time // when mend exchanged with it last
}

// seen handles what gossip says of a node. memberlist calls it.
func (c *Cluster) seen(n *memberlist.Node, alive bool) {
	id, ok := nodeID(n)
	epoch, flags, known := parseMeta(n.Meta)
	if !ok {
		c.log.Warn("cluster: not one of us", "node", n.Name, "addr", n.Address())
		return
	}
	c.nmu.Lock()
	defer c.nmu.Unlock()
	if alive && len(n.Meta) >= metaLen { // whichever version it has
		c.port.Gossips(id, epochIn(n.Meta), &net.UDPAddr{IP: n.Addr, Port: int(n.Port)})
	}
	if !alive {
		defer c.forgotten(id)
	}
	m := c.nodes[id]
	if !known {
		c.log.Warn("cluster: a member that is not understood is not asked", "node", n.Name, "addr", n.Address(), "meta", fmt.Sprintf("%x", n.Meta))
		if m == nil {
			return
		}
		alive, epoch, m.left = false, m.epoch, true // it was understood before: as such it is gone
	}
	if m == nil {
		m = &node{}
		c.nodes[id] = m
	}
	if m.away != nil {
		m.away.Stop()
		m.away = nil
	}
	was, life := m.alive, m.epoch
	m.alive, m.epoch = alive, epoch
	m.left = m.left && life == epoch
	m.going = m.going && life == epoch || flags&metaAway != 0
	if id != c.cfg.Node {
		c.count.member(id, was, alive, m.left || m.going)
	}
	if alive {
		m.rolls = flags&metaRoll != 0
		m.addr, m.hearsay, m.doubt = n.Address(), false, false
		if !was || life != epoch {
			m.met = time.Now()
			if id != c.cfg.Node && c.met.IsZero() {
				c.met = m.met
			}
		}
		if id != c.cfg.Node {
			c.port.Meet(id, epoch, &net.UDPAddr{IP: n.Addr, Port: int(n.Port)})
		}
		for other, o := range c.nodes {
			if o.addr == m.addr && !o.alive && o.away == nil {
				delete(c.nodes, other) // a machine that was started anew is another node
			}
		}
	} else {
		c.port.Part(id)
		switch {
		case m.going && c.life.Err() == nil:
			c.waitFor(id, m, awayTime)
		case m.left:
			delete(c.nodes, id) // it said that it leaves
		default: // dead, or cut off: keepJoined looks for it
			m.lost = time.Now()
		}
	}
	c.relist()
	if was != alive || life != epoch {
		c.mu.Lock()
		c.filters.Met(id, alive)
		c.mu.Unlock()
		c.log.Info("cluster: member", "node", n.Name, "addr", n.Address(), "alive", alive, "away", m.away != nil)
	}
}

// forgotten drops the gossip state of a member that c.nodes does not have any more. nmu must be
// held.
func (c *Cluster) forgotten(id resource.NodeID) {
	if c.nodes[id] == nil {
		c.port.ForgetGossip(id)
	}
}

// waitNoMore stops the timers of members that are away, because c has ended.
func (c *Cluster) waitNoMore() {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	for _, m := range c.nodes {
		if m.away != nil {
			m.away.Stop()
		}
	}
}

// Datagrams by which a member says that it goes. They have one byte, except msgOther. memberlist
// tells it too, in time, but cannot say whether the other members have heard it.
const (
	msgOther   = 12 // another member is away; an account entry of it follows
	msgHeard   = 13 // the answer to msgAway
	msgAway    = 14 // another server is about to take the sender's place
	msgLeaving = 15
)

// tellTime is how long a member that is away for a moment waits for all members to acknowledge it.
// tellAgain is how often it tells those that have not. Gossip may reach them later. A member that
// is not reached takes this one for dead.
const (
	tellTime  = 150 * time.Millisecond
	tellAgain = 20 * time.Millisecond
)

// sayAway tells the other members that another server is about to take this one's place, until they
// have acknowledged it or tellTime has passed.
func (c *Cluster) sayAway() {
	c.going.Store(true)
	_ = c.list.UpdateNode(1) // this only begins to tell
	c.nmu.Lock()
	c.untold, c.heard = map[resource.NodeID]bool{}, make(chan struct{})
	for id, m := range c.nodes {
		if id != c.cfg.Node && m.alive {
			c.untold[id] = true
		}
	}
	c.nmu.Unlock()
	end, again := time.NewTimer(tellTime), time.NewTicker(tellAgain)
	defer end.Stop()
	defer again.Stop()
	for {
		var out []mux.Out
		c.nmu.Lock()
		for id := range c.untold {
			out = append(out, mux.Out{To: id, Payload: []byte{msgAway}})
		}
		c.nmu.Unlock()
		if len(out) == 0 {
			return
		}
		c.port.Send(out...)
		select {
		case <-again.C:
		case <-c.heard:
			return
		case <-end.C:
			c.log.Info("cluster: away, and not all have heard it", "members", len(out))
			return
		}
	}
}

// takeLeave tells the other members that this one leaves. A member that does not hear it takes this
// one for dead.
func (c *Cluster) takeLeave() {
	var out []mux.Out
	for _, m := range c.others() {
		out = append(out, mux.Out{To: m, Payload: []byte{msgLeaving}})
	}
	c.port.Send(out...)
}

// parting handles a datagram msgHeard, msgAway or msgLeaving of the member id. at is where id
// awaits the answer.
func (c *Cluster) parting(id resource.NodeID, at *net.UDPAddr, what byte) {
	var out []mux.Out
	c.nmu.Lock()
	m := c.nodes[id]
	switch {
	case what == msgHeard && c.untold[id]:
		if delete(c.untold, id); len(c.untold) == 0 {
			close(c.heard)
		}
	case what == msgLeaving && m != nil:
		m.left = true
	case what == msgAway && m != nil:
		if !m.going {
			out = c.passOn(id, m)
		}
		m.going = true
		out = append(out, mux.Out{To: id, At: at, Payload: []byte{msgHeard}})
	}
	c.nmu.Unlock()
	if len(out) > 0 {
		c.port.Send(out...)
	}
}

// relist makes the list of members and the roll anew, and wakes the waiters of news. nmu must be
// held.
func (c *Cluster) relist() {
	all := []resource.NodeID{c.cfg.Node}
	for id, m := range c.nodes {
		if id != c.cfg.Node && (m.alive || m.away != nil) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	c.members.Store(&all)
	c.roll.Store(c.newRoll(all))
	close(c.changed)
	c.changed = make(chan struct{})
}

// news returns the channel that is closed when membership changes next.
func (c *Cluster) news() <-chan struct{} {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	return c.changed
}
