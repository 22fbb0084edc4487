// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/resource"
)

// When two members exchange all that they know (memberlist's push/pull), two kinds of members are
// missing. memberlist does not know which members are away for a moment, and a newcomer does not
// take up suspected members. A newcomer that does not know such a member would deny what that
// member has. So each side of an exchange adds an account (gossip.go draws it). left is for how
// many milliseconds the sender still waits for the member.
const (
	accountVersion = 1
	accountLen     = 2
	absentLen      = 39

	accountFresh = 1 << 0 // the sender may not know all members yet

	absentAway = 0 // another server is taking the member's place
	// absentUnsure: it became alive a moment ago, or is suspected to be dead. A receiver that knows
	// this life of it, alive or dead, does not follow the entry.
	absentUnsure = 1
	absentGoing  = 2 // it is about to be away

	newTime    = time.Second // how long a member that was met is new
	mostAbsent = 1 << 12     // entries of one account, sent or taken up
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

// account returns this member's account. If fresh is set, this member may not know all members.
func (t *memberTable) account(fresh bool) []byte {
	now := time.Now()
	b := []byte{accountVersion, 0}
	if fresh {
		b[1] |= accountFresh
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, m := range t.nodes {
		if id == t.cfg.Node || len(b) >= mostAbsent*absentLen {
			continue
		}
		if a, ok := m.absentLocked(id, now); ok {
			b = a.append(b)
		}
	}
	return b
}

// absentLocked returns the account entry about a node. ok is false if it needs none. memberTable.mu
// must be held.
func (m *node) absentLocked(id resource.NodeID, now time.Time) (a absent, ok bool) {
	a = absent{id: id, epoch: m.epoch, left: awayTime}
	switch {
	case m.hasLeft:
		return a, false
	case m.away != nil:
		if a.left = m.until.Sub(now); !m.isGoing {
			a.kind = absentUnsure // suspected: a member that knows it dead does not wait for it again
		}
	case m.isAlive && m.isGoing:
		a.kind = absentGoing
	case m.isAlive && now.Sub(m.met) < newTime:
		a.kind, a.left = absentUnsure, newTime
	default:
		return a, false
	}
	var err error
	a.addr, err = netip.ParseAddrPort(m.addr)
	return a, err == nil && a.left > 0
}

// parseAccount returns the entries of an account, and whether its sender may not know all members.
// ok is false for an account of a later version.
func parseAccount(b []byte) (entries []byte, fresh, ok bool) {
	if len(b) < accountLen || b[0] != accountVersion {
		return nil, false, false
	}
	return b[accountLen:], b[1]&accountFresh != 0, true
}

// merge takes up the entries of another member's account, mostAbsent of them at most: each new
// entry costs a timer and a place in the table.
func (t *memberTable) merge(entries []byte) {
	entries = entries[:min(len(entries), mostAbsent*absentLen)]
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := false
	for ; len(entries) >= absentLen; entries = entries[absentLen:] {
		a := parseAbsent(entries)
		changed = t.absentLocked(&a) || changed
	}
	for id, m := range t.nodes {
		// The sender knows that the member is dead, and not that it is away.
		if m.isDoubted && m.away != nil {
			t.giveUpLocked(id, m)
			changed = true
		}
	}
	if changed {
		t.publishLocked()
	}
}

// absentLocked handles an account entry, and reports whether the entry changes the members.
func (t *memberTable) absentLocked(a *absent) bool {
	m := t.nodes[a.id]
	switch {
	case a.id == t.cfg.Node || a.id == 0 || a.kind > absentGoing || a.left <= 0 || t.life.Err() != nil:
		return false
	case m == nil:
		m = &node{addr: a.addr.String(), epoch: a.epoch, isHearsay: true}
		t.nodes[a.id] = m
	case m.isAlive:
		m.isGoing = m.isGoing || m.epoch == a.epoch && a.kind != absentUnsure
		return false
	case m.away != nil:
		m.isDoubted, m.isGoing = false, m.isGoing || a.kind != absentUnsure
		return false
	case m.hasLeft && m.epoch == a.epoch || a.kind == absentUnsure && m.epoch == a.epoch:
		return false
	}
	m.epoch, m.addr, m.isGoing = a.epoch, a.addr.String(), a.kind != absentUnsure
	t.awaitLocked(a.id, m, a.left)
	return true
}

// suspected takes up members that another member suspects to be dead, during an exchange with that
// member. Its account follows.
func (t *memberTable) suspected(all []*memberlist.Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := false
	for _, n := range all {
		id, ok := nodeID(n)
		epoch, _, known := parseMeta(n.Meta)
		m := t.nodes[id]
		switch {
		case !ok || !known || id == t.cfg.Node || t.life.Err() != nil:
		case n.State != memberlist.StateSuspect:
			if m != nil && m.isHearsay && !m.isGoing {
				m.isDoubted = n.State != memberlist.StateAlive
			}
		case m == nil:
			m = &node{addr: n.Address(), epoch: epoch, isHearsay: true}
			t.nodes[id] = m
			t.awaitLocked(id, m, awayTime)
			changed = true
		case m.isHearsay && m.away != nil && !m.isGoing:
			m.away.Stop()
			t.awaitLocked(id, m, awayTime)
		}
	}
	if changed {
		t.publishLocked()
	}
}

// awaitLocked counts m, which is not seen alive, among the members for the time d.
func (t *memberTable) awaitLocked(id resource.NodeID, m *node, d time.Duration) {
	m.until, m.isDoubted = time.Now().Add(d), false
	var away *time.Timer
	away = time.AfterFunc(d, func() { t.giveUpAway(id, m, &away) })
	m.away = away
}

// giveUpLocked ends the wait for a member. The caller must call publishLocked.
func (t *memberTable) giveUpLocked(id resource.NodeID, m *node) {
	m.away.Stop()
	m.away, m.lost, m.isDoubted, m.isProven = nil, time.Now(), false, false
	if m.isHearsay { // the members that have met it look for it
		delete(t.nodes, id)
	}
}

// giveUpAway gives up a member that was away. away must point to its timer, and is read with t.mu
// held. The timer calls giveUpAway in a goroutine of its own.
func (t *memberTable) giveUpAway(id resource.NodeID, m *node, away **time.Timer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.nodes[id] == m && m.away != nil && m.away == *away {
		t.giveUpLocked(id, m)
		t.publishLocked()
		if !m.met.IsZero() {
			t.tell(id, m, "lost")
		}
	}
}

// awaitsUnmet reports whether a member is waited for that this one has not met.
func (t *memberTable) awaitsUnmet() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.nodes {
		if m.isHearsay && m.away != nil {
			return true
		}
	}
	return false
}

// leaving notes that the member id has said that it leaves.
func (t *memberTable) leaving(id resource.NodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.nodes[id]; m != nil {
		m.hasLeft = true
	}
}

// goesAway notes that the member id has said that it is about to be away. It returns the datagrams
// that pass this on. ok is false if id is no member.
func (t *memberTable) goesAway(id resource.NodeID) (out []mux.Out, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.nodes[id]
	if m == nil {
		return nil, false
	}
	if !m.isGoing {
		out = t.passOnLocked(id, m)
	}
	m.isGoing = true
	return out, true
}

// passOnLocked returns the datagrams that tell the members met a moment ago that m is about to be
// away: m may not know them.
func (t *memberTable) passOnLocked(id resource.NodeID, m *node) (out []mux.Out) {
	at, err := netip.ParseAddrPort(m.addr)
	if err != nil {
		return nil
	}
	a := absent{id, m.epoch, awayTime, absentGoing, at}
	for other, o := range t.nodes {
		if other != id && other != t.cfg.Node && o.isAlive && time.Since(o.met) < awayTime {
			out = append(out, mux.Out{To: other, Payload: a.append([]byte{msgOther})})
		}
	}
	return out
}

// onOther handles the account entry of a datagram msgOther: another member is about to be away.
func (t *memberTable) onOther(entry []byte) {
	a := parseAbsent(entry)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.absentLocked(&a) {
		t.publishLocked()
	}
}
