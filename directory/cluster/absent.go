// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/mux"
	"github.com/rocl-go/rocl/resource"
)

// When two members exchange all that they know (memberlist's push/pull), two kinds of members are
// missing. memberlist does not know which members are away for a moment, and a newcomer does not
// take up suspected members. A newcomer that does not know such a member would deny what that
// member has. So each side of an exchange adds an account:
//
//	version u8 | flags u8 | absent members
//
// and for each absent member:
//
//	node u64 | epoch u64 | left u32 | kind u8 | port u16 | address, 16 bytes
//
// All numbers are little-endian. left is for how many milliseconds the sender still waits for the
// member.
const (
	accountVersion = 1
	accountLen     = 2
	absentLen      = 39

	accountFresh = 1 << 0 // the sender may not know all members yet

	absentAway  = 0 // another server is taking the member's place
	absentNew   = 1 // it became alive a moment ago: gossip of that may not have arrived
	absentGoing = 2 // it is about to be away

	newTime    = time.Second // how long a member that was met is new
	mostAbsent = 1 << 12     // entries of one account
)

// An absent is the entry of an account about one member.
type absent struct {
	id    resource.NodeID
	epoch uint64
	left  time.Duration
	kind  byte
	addr  netip.AddrPort
}

// append appends the entry to b.
func (a *absent) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(a.id))
	b = binary.LittleEndian.AppendUint64(b, a.epoch)
	b = binary.LittleEndian.AppendUint32(b, uint32(a.left.Milliseconds()))
	b = append(b, a.kind)
	b = binary.LittleEndian.AppendUint16(b, a.addr.Port())
	ip := a.addr.Addr().As16()
	return append(b, ip[:]...)
}

// parseAbsent reads an entry of absentLen bytes. It cuts left to awayTime.
func parseAbsent(b []byte) absent {
	return absent{
		id:    resource.NodeID(binary.LittleEndian.Uint64(b)),
		epoch: binary.LittleEndian.Uint64(b[8:]),
		left:  min(time.Duration(binary.LittleEndian.Uint32(b[16:]))*time.Millisecond, awayTime),
		kind:  b[20],
		addr:  netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[23:])).Unmap(), binary.LittleEndian.Uint16(b[21:])),
	}
}

// LocalState returns this member's account. It implements memberlist.Delegate.
func (d delegate) LocalState(bool) []byte {
	c, now := d.c, time.Now()
	b := []byte{accountVersion, 0}
	// A member that ends does not note any more which members are away.
	if !c.known.Load() || c.life.Err() != nil {
		b[1] |= accountFresh
	}
	c.nmu.Lock()
	defer c.nmu.Unlock()
	for id, m := range c.nodes {
		a := absent{id: id, epoch: m.epoch, left: awayTime}
		switch {
		case id == c.cfg.Node || m.left || len(b) >= mostAbsent*absentLen:
			continue
		case m.away != nil:
			if a.left = m.until.Sub(now); !m.going {
				a.kind = absentNew // suspected: a member that knows it dead does not wait for it again
			}
		case m.alive && m.going:
			a.kind = absentGoing
		case m.alive && now.Sub(m.met) < newTime:
			a.kind, a.left = absentNew, newTime
		default:
			continue
		}
		var err error
		if a.addr, err = netip.ParseAddrPort(m.addr); err == nil && a.left > 0 {
			b = a.append(b)
		}
	}
	return b
}

// MergeRemoteState handles another member's account. It implements memberlist.Delegate.
func (d delegate) MergeRemoteState(b []byte, join bool) {
	c := d.c
	if len(b) < accountLen || b[0] != accountVersion {
		return
	}
	if join {
		c.told.Store(true)
		if b[1]&accountFresh == 0 {
			defer c.reached() // the account is taken up by then
		}
	}
	c.nmu.Lock()
	defer c.nmu.Unlock()
	changed := false
	for b = b[accountLen:]; len(b) >= absentLen; b = b[absentLen:] {
		a := parseAbsent(b)
		changed = c.absent(&a) || changed
	}
	for id, m := range c.nodes {
		// The sender knows that the member is dead, and not that it is away.
		if m.doubt && m.away != nil {
			c.giveUp(id, m)
			changed = true
		}
	}
	if changed {
		c.relist()
	}
}

// absent handles an account entry, and reports whether the entry changes the members. nmu must be
// held.
func (c *Cluster) absent(a *absent) bool {
	m := c.nodes[a.id]
	switch {
	case a.id == c.cfg.Node || a.id == 0 || a.kind > absentGoing || a.left <= 0 || c.life.Err() != nil:
		return false
	case m == nil:
		m = &node{addr: a.addr.String(), epoch: a.epoch, hearsay: true}
		c.nodes[a.id] = m
	case m.alive:
		m.going = m.going || m.epoch == a.epoch && a.kind != absentNew
		return false
	case m.away != nil:
		m.doubt, m.going = false, m.going || a.kind != absentNew
		return false
	case m.left && m.epoch == a.epoch || a.kind == absentNew && m.epoch == a.epoch:
		return false
	}
	m.epoch, m.addr, m.going = a.epoch, a.addr.String(), a.kind != absentNew
	c.waitFor(a.id, m, a.left)
	return true
}

// suspected takes up members that another member suspects to be dead, during an exchange with that
// member. Its account follows.
func (c *Cluster) suspected(all []*memberlist.Node) {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	changed := false
	for _, n := range all {
		id, ok := nodeID(n)
		epoch, _, known := parseMeta(n.Meta)
		m := c.nodes[id]
		switch {
		case !ok || !known || id == c.cfg.Node || c.life.Err() != nil:
		case n.State != memberlist.StateSuspect:
			if m != nil && m.hearsay && !m.going {
				m.doubt = n.State != memberlist.StateAlive
			}
		case m == nil:
			m = &node{addr: n.Address(), epoch: epoch, hearsay: true}
			c.nodes[id] = m
			c.waitFor(id, m, awayTime)
			changed = true
		case m.hearsay && m.away != nil && !m.going:
			m.away.Stop()
			c.waitFor(id, m, awayTime)
		}
	}
	if changed {
		c.relist()
	}
}

// waitFor counts m, which is not seen alive, among the members for the time d. nmu must be held.
func (c *Cluster) waitFor(id resource.NodeID, m *node, d time.Duration) {
	m.until, m.doubt = time.Now().Add(d), false
	var t *time.Timer
	t = time.AfterFunc(d, func() { c.notBack(id, m, &t) })
	m.away = t
}

// giveUp ends the wait for a member. The caller must call relist. nmu must be held.
func (c *Cluster) giveUp(id resource.NodeID, m *node) {
	m.away.Stop()
	m.away, m.lost, m.doubt = nil, time.Now(), false
	if m.hearsay { // the members that have met it look for it
		delete(c.nodes, id)
	}
}

// notBack gives up a member that was away. t must point to its timer, and is read with nmu held.
// The timer calls notBack in a goroutine of its own.
func (c *Cluster) notBack(id resource.NodeID, m *node, t **time.Timer) {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	if c.nodes[id] == m && m.away != nil && m.away == *t {
		c.giveUp(id, m)
		c.relist()
	}
}

// hearsay reports whether a member is waited for that this one has not met. nmu must be held.
func (c *Cluster) hearsay() bool {
	for _, m := range c.nodes {
		if m.hearsay && m.away != nil {
			return true
		}
	}
	return false
}

// passOn returns the datagrams that tell the members met a moment ago that m is about to be away: m
// may not know them. nmu must be held. The caller sends the datagrams.
func (c *Cluster) passOn(id resource.NodeID, m *node) (out []mux.Out) {
	at, err := netip.ParseAddrPort(m.addr)
	if err != nil {
		return nil
	}
	a := absent{id, m.epoch, awayTime, absentGoing, at}
	for other, o := range c.nodes {
		if other != id && other != c.cfg.Node && o.alive && time.Since(o.met) < awayTime {
			out = append(out, mux.Out{To: other, Payload: a.append([]byte{msgOther})})
		}
	}
	return out
}

// heardOther handles the datagram msgOther: another member is about to be away.
func (c *Cluster) heardOther(b []byte) {
	a := parseAbsent(b)
	c.nmu.Lock()
	defer c.nmu.Unlock()
	if c.absent(&a) {
		c.relist()
	}
}

// settled reports whether this member knows the other members, although no member that knows them
// all has given it an account. A node that was no member before knows them when it has met one and
// has tried all addresses to join: the other members may be as new as this one. Members of version
// 0.1.0 give no account, so that it is enough to have joined one. nmu must be held.
func (c *Cluster) settled(joined bool) bool {
	met := false
	for id, m := range c.nodes {
		met = met || id != c.cfg.Node && m.alive
	}
	switch {
	case !met:
		return false
	case joined && !c.told.Load():
		return true
	case c.cfg.Follows:
		return false
	}
	for _, w := range c.wanting {
		if !w.tried {
			return false
		}
	}
	return true
}

// reached notes that this member knows all members.
func (c *Cluster) reached() {
	c.known.Store(true)
	c.waited()
}

// waitedLongEnough reports whether this member knows the other members because enough time has
// passed. A member that has met another one knows them after awayTime: a member that was away
// before has been given up or heard of by then. A member that has met none knows them after
// firstTime, and only if it has no address to join but its own. nmu must be held.
func (c *Cluster) waitedLongEnough(now time.Time) bool {
	if !c.met.IsZero() {
		return now.Sub(c.met) >= awayTime
	}
	return len(c.unmet()) == 0 && now.Sub(c.born) >= firstTime
}

// unmet returns the sorted addresses to join that have not been reached, without this member's own.
// nmu must be held.
func (c *Cluster) unmet() (addrs []string) {
	for addr, w := range c.wanting {
		if !w.own {
			addrs = append(addrs, addr)
		}
	}
	slices.Sort(addrs)
	return addrs
}

// unknown returns nil if this member knows all members, so that a no of all of them is definite.
// Otherwise it returns an error that matches directory.ErrPartial.
func (c *Cluster) unknown() error {
	if c.known.Load() {
		return nil
	}
	c.nmu.Lock()
	defer c.nmu.Unlock()
	if c.met.IsZero() {
		return fmt.Errorf("%w: no other member has been reached: %s", directory.ErrPartial, strings.Join(c.unmet(), ", "))
	}
	return fmt.Errorf("%w: the members that have been reached may not know all others yet", directory.ErrPartial)
}
