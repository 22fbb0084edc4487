// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

// awayTime is how long a member that is away, or is suspected to be dead, is waited for.
const awayTime = 5 * time.Second

// A memberTable has what this member knows of each member that it has met or heard of. It learns
// that from gossip, from datagrams of members that go (depart.go) and from accounts (absent.go).
type memberTable struct {
	*core
	summaries *summaries

	roll   atomic.Pointer[roll] // the present members
	unsure atomic.Bool          // see unsureOf
	apart  places               // see apart.go

	mu       sync.Mutex // guards the following fields
	nodes    map[resource.NodeID]*node
	strange  map[resource.NodeID]string // living members that are not understood, with their addresses
	firstMet time.Time                  // when the first other member was seen alive
	changed  chan struct{}              // closed and replaced when the roll changes
}

// A node is what this member knows of one member. memberTable.mu guards it. It is in one of three
// states, of which the first two count as members:
//
//	alive   isAlive: gossip sees it alive
//	away    not isAlive, and the timer away runs: it is expected back, or only suspected to be dead
//	dead    not isAlive, and no timer: the joiner looks for it, until it is forgotten
//
//	gossip ──► alive ──► away ──► dead ──► forgotten
//	             └────────────────►
//
//	to         when
//	alive      gossip sees it alive, from each state
//	away       gossip sees it dead, and isGoing
//	away       another member's account or suspicion names a life of it that is not known to be over
//	dead       gossip sees it dead, and neither isGoing nor hasLeft
//	dead       the timer away fires, or the account that follows a suspicion shows it dead
//	forgotten  as dead, if hasLeft or isHearsay: the joiner does not look for it
//	forgotten  dead for too long, too many are dead, or its address has a node that is alive
type node struct {
	addr    string
	host    string // the name of its machine, as it tells; "" if it does not
	epoch   uint64 // of the present life of its mux
	isAlive bool
	lost    time.Time   // when it was seen dead
	met     time.Time   // when it was first seen alive in this life
	hasLeft bool        // it said that it leaves
	isGoing bool        // it said that another server is about to take its place
	away    *time.Timer // runs while the node is away
	until   time.Time   // when the timer away fires

	isHearsay bool // another member told of it, and it was never seen alive
	isDoubted bool // the account that follows decides whether the node is waited for
	isProven  bool // it is dead, and no program refuses this member at its address

	exchanged time.Time // when exchanges.exchangeWith began an exchange with it last
}

// newMemberTable returns a table that knows this member alone.
func newMemberTable(c *core, s *summaries) *memberTable {
	t := &memberTable{core: c, summaries: s, nodes: map[resource.NodeID]*node{}, strange: map[resource.NodeID]string{}, changed: make(chan struct{})}
	for id, addr := range c.cfg.Met {
		t.nodes[id] = &node{addr: addr, lost: time.Now()}
	}
	t.publishLocked() // no other goroutine has t yet
	return t
}

// list returns the sorted members, this one among them: those alive, and those away for a moment.
// The caller must not change the result.
func (t *memberTable) list() []resource.NodeID { return t.roll.Load().members }

// otherMembers returns the members without this one.
func (t *memberTable) otherMembers() []resource.NodeID {
	return slices.DeleteFunc(slices.Clone(t.list()), func(m resource.NodeID) bool { return m == t.cfg.Node })
}

// has reports whether a node is a member.
func (t *memberTable) has(id resource.NodeID) bool {
	_, found := slices.BinarySearch(t.list(), id)
	return found
}

// newcomers returns the members that are not on asked, a roll of an earlier time, and updates asked
// to the present one.
func (t *memberTable) newcomers(asked **roll) (members []resource.NodeID) {
	now := t.roll.Load()
	if now == *asked {
		return nil
	}
	for _, m := range now.members {
		if _, found := slices.BinarySearch((*asked).members, m); !found {
			members = append(members, m)
		}
	}
	*asked = now
	return members
}

// news returns the channel that is closed when the list of members changes next.
func (t *memberTable) news() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// publishLocked makes the roll anew, and wakes the waiters of news.
func (t *memberTable) publishLocked() {
	all := []resource.NodeID{t.cfg.Node}
	for id, m := range t.nodes {
		if id != t.cfg.Node && (m.isAlive || m.away != nil) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	t.setUnsureLocked() // before the members that are lost are no longer asked
	t.roll.Store(t.newRollLocked(all))
	close(t.changed)
	t.changed = make(chan struct{})
}

// setUnsureLocked sets unsure.
func (t *memberTable) setUnsureLocked() {
	unsure := len(t.strange) > 0
	for _, m := range t.nodes {
		unsure = unsure || m.isUnproven()
	}
	t.unsure.Store(unsure)
}

// isUnproven reports whether a node is dead for gossip, and may be a member that refuses this one.
// memberTable.mu must be held.
func (m *node) isUnproven() bool { return !m.isAlive && m.away == nil && !m.isProven }

// unsureOf returns nil if each member that does not answer is dead, or has left. A member may live
// that gossip takes for dead, because it refuses this one: the joiner looks at its address. A
// member that is not understood lives too. What they have is not known: unsureOf then returns an
// error that matches directory.ErrPartial.
func (t *memberTable) unsureOf() error {
	if !t.unsure.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	what, addrs := "members of another version are not asked", slices.Sorted(maps.Values(t.strange))
	if len(addrs) == 0 {
		what = "members do not answer, and may refuse this one"
		for _, m := range t.nodes {
			if m.isUnproven() {
				addrs = append(addrs, m.addr)
			}
		}
		slices.Sort(addrs)
	}
	if len(addrs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", directory.ErrPartial, what, strings.Join(addrs[:min(len(addrs), mostNamed)], ", "))
}

// isUnproven reports whether a member at an address is dead for gossip, and was not looked at
// since.
func (t *memberTable) isUnproven(addr string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.nodes {
		if m.addr == addr && m.isUnproven() {
			return true
		}
	}
	return false
}

// lookedAt notes that the joiner has reached no member at an address, and whether a program refuses
// it there. If none does, a dead member that had the address is proven to be dead.
func (t *memberTable) lookedAt(addr string, refused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.nodes {
		if m.addr == addr && !m.isAlive && m.away == nil && m.isProven == refused {
			m.isProven = !refused
			t.publishLocked() // watches may have waited for it
		}
	}
}

// mayLive reports whether a node that is dead for gossip may be a member that refuses this one.
func (t *memberTable) mayLive(id resource.NodeID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.nodes[id]
	return m != nil && m.isUnproven()
}

// aliveAddresses returns the addresses of the other members that are seen alive.
func (t *memberTable) aliveAddresses() map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	addrs := map[string]bool{}
	for id, m := range t.nodes {
		if id != t.cfg.Node && m.isAlive {
			addrs[m.addr] = true
		}
	}
	return addrs
}

// epoch returns the epoch of a member's present life, or 0 if the member is not alive.
func (t *memberTable) epoch(id resource.NodeID) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.nodes[id]; m != nil && m.isAlive {
		return m.epoch
	}
	return 0
}

// alive reports whether a member is seen alive.
func (t *memberTable) alive(id resource.NodeID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.nodes[id]
	return m != nil && m.isAlive
}

// aliveOtherMembers returns the addresses of at most most other members that are seen alive, in
// random order, and their nodes.
func (t *memberTable) aliveOtherMembers(most int) (addrs []string, members []resource.NodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, m := range t.nodes {
		if id != t.cfg.Node && m.isAlive && len(members) < most {
			addrs, members = append(addrs, m.addr), append(members, id)
		}
	}
	return addrs, members
}

// mostKept limits the addresses that the next server of the node is told. Each of the members knows
// the rest.
const mostKept = 64

// addresses returns the addresses of the other members that were met, by node. If there are more
// than mostKept, those alive precede those that were lost, and the latter precede those that were
// lost before.
func (t *memberTable) addresses() map[resource.NodeID]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ids []resource.NodeID
	for id, m := range t.nodes {
		if id != t.cfg.Node && !m.hasLeft {
			ids = append(ids, id)
		}
	}
	if len(ids) > mostKept {
		slices.SortFunc(ids, func(i, j resource.NodeID) int {
			a, b := t.nodes[i], t.nodes[j]
			switch {
			case a.isAlive != b.isAlive && a.isAlive:
				return -1
			case a.isAlive != b.isAlive:
				return 1
			case !a.isAlive && !a.lost.Equal(b.lost):
				return b.lost.Compare(a.lost)
			}
			return cmp.Compare(i, j) // the same members make the same file
		})
		ids = ids[:mostKept]
	}
	all := map[resource.NodeID]string{}
	for _, id := range ids {
		all[id] = t.nodes[id].addr
	}
	return all
}

// firstMetAt returns when the first other member was seen alive, or the zero time.
func (t *memberTable) firstMetAt() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.firstMet
}

// addr returns the last address of a member that was met or heard of. ok is false for other nodes.
func (t *memberTable) addr(id resource.NodeID) (addr string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.nodes[id]; m != nil {
		return m.addr, true
	}
	return "", false
}

// seen handles what gossip says of a node. memberlist calls it.
func (t *memberTable) seen(n *memberlist.Node, alive bool) {
	id, ok := nodeID(n)
	epoch, flags, known := parseMeta(n.Meta)
	if !ok {
		// Cause: another user of memberlist reaches the port. Remedy: keep it away.
		t.log.Warn("cluster: ignoring a gossip member that is not a rocl node", "node", n.Name, "addr", n.Address())
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if alive && len(n.Meta) >= metaLen { // whichever version it has
		t.mux.Gossips(id, epochIn(n.Meta), &net.UDPAddr{IP: n.Addr, Port: int(n.Port)})
	}
	delete(t.strange, id)
	if known {
		t.changeLocked(id, n, alive, epoch, flags)
	} else {
		if alive {
			t.strange[id] = n.Address()
			// Cause: it has another version. Remedy: upgrade the older one.
			t.log.Warn("cluster: a member that is not understood is not asked", "node", n.Name, "addr", n.Address(), "meta", fmt.Sprintf("%x", n.Meta))
		}
		if m := t.nodes[id]; m != nil { // it was understood before: as such it is gone
			m.hasLeft = true
			t.changeLocked(id, n, false, m.epoch, flags)
		} else {
			t.publishLocked()
		}
	}
	if !alive {
		t.dropGossipLocked(id)
	}
}

// changeLocked brings the node id to the state that gossip reports: whether it is alive, and in
// which life. n is memberlist's view of it.
func (t *memberTable) changeLocked(id resource.NodeID, n *memberlist.Node, alive bool, epoch uint64, flags byte) {
	m := t.nodes[id]
	if m == nil {
		m = &node{}
		t.nodes[id] = m
	}
	if m.away != nil {
		m.away.Stop()
		m.away = nil
	}
	wasAlive, sameLife := m.isAlive, m.epoch == epoch
	wasMet, leaves := !m.met.IsZero(), m.hasLeft && sameLife
	m.host = cmp.Or(toldHost(n), m.host)
	m.isAlive, m.epoch = alive, epoch
	m.hasLeft = m.hasLeft && sameLife
	m.isGoing = m.isGoing && sameLife || flags&metaAway != 0
	if id != t.cfg.Node {
		t.count.member(id, wasAlive, alive, m.hasLeft || m.isGoing)
	}
	if alive {
		t.aliveLocked(id, m, n, !wasAlive || !sameLife)
	} else {
		t.deadLocked(id, m)
	}
	t.publishLocked()
	if wasAlive != alive || !sameLife {
		t.summaries.met(id, alive)
		if id != t.cfg.Node && (alive || wasMet) {
			t.tell(id, m, what(m, wasAlive, wasMet, sameLife, leaves))
		}
	}
}

// what returns what has happened to a member whose state has changed to that of m.
func what(m *node, wasAlive, wasMet, sameLife, left bool) string {
	switch {
	case m.isAlive && !wasMet:
		return "joined"
	case m.isAlive && sameLife && !wasAlive:
		return "reached again"
	case m.isAlive:
		return "restarted"
	case m.away != nil:
		return "restarting"
	case left:
		return "left"
	}
	return "lost"
}

// tell logs what has happened to another member.
func (t *memberTable) tell(id resource.NodeID, m *node, event string) {
	// Cause: `event` says what another member did. A lost member was killed, or the network is cut;
	// this node looks for it. Remedy: if it is lost, see to it and to the network.
	t.log.Info("cluster: member", "event", event, "host", m.host, "addr", m.addr, "node", name(id))
}

// aliveLocked handles gossip that the member id is alive, of which n is memberlist's view. fresh
// means that it was not alive before, or in another life.
func (t *memberTable) aliveLocked(id resource.NodeID, m *node, n *memberlist.Node, fresh bool) {
	m.addr, m.isHearsay, m.isDoubted = n.Address(), false, false
	t.comparePlacesLocked(id)
	if fresh {
		m.met = time.Now()
		if id != t.cfg.Node && t.firstMet.IsZero() {
			t.firstMet = m.met
		}
	}
	if id != t.cfg.Node {
		t.mux.Meet(id, m.epoch, &net.UDPAddr{IP: n.Addr, Port: int(n.Port)})
	}
	for other, o := range t.nodes {
		if o.addr == m.addr && !o.isAlive && o.away == nil {
			delete(t.nodes, other) // a machine that was started anew is another node
		}
	}
}

// deadLocked handles gossip that the member id is not alive.
func (t *memberTable) deadLocked(id resource.NodeID, m *node) {
	t.mux.Part(id)
	switch {
	case m.isGoing && t.life.Err() == nil:
		t.awaitLocked(id, m, awayTime)
	case m.hasLeft:
		delete(t.nodes, id) // it said that it leaves
		t.leavesPlaceLocked(id)
	default: // dead, or cut off: the joiner looks for it
		m.lost, m.isProven = time.Now(), false
	}
}

// dropGossipLocked drops the gossip state of a member that t.nodes does not have any more.
func (t *memberTable) dropGossipLocked(id resource.NodeID) {
	if t.nodes[id] == nil {
		t.mux.ForgetGossip(id)
	}
}

const (
	// mostSeekers is how many members, on average, look at a time for a member that is away or does
	// not answer.
	mostSeekers = 8
	// mostMissed limits the missed members looked for at a time: one that answers knows the rest.
	mostMissed = 16
	forget     = 72 * time.Hour // after which a missed member is not looked for any more
	// mostDead limits the missed members that are looked for. Beyond it those lost first are
	// forgotten.
	mostDead = 1 << 12
	// lastGossip is after which time no gossip goes to a missed member. memberlist ends it after
	// half of that.
	lastGossip = time.Minute
)

// missed returns the addresses of some members that are not seen alive, and forgets those that were
// lost too long ago or are too many.
func (t *memberTable) missed(now time.Time) (addrs []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetDeadLocked(now)
	for id, m := range t.nodes {
		switch {
		case m.isAlive || m.away != nil && !t.seeks():
		case m.away != nil: // when the member is back, it may know no other member
			addrs = append(addrs, m.addr)
		case now.Sub(m.lost) > forget:
			delete(t.nodes, id)
		case m.isUnproven() && len(addrs) < mostAddresses, len(addrs) < mostMissed: // in random order: the next call returns different ones
			addrs = append(addrs, m.addr)
		}
	}
	return addrs
}

// forgetDeadLocked forgets the dead members that are too many, and the gossip state of those that
// died some time ago.
func (t *memberTable) forgetDeadLocked(now time.Time) {
	var dead []resource.NodeID
	for id, m := range t.nodes {
		if !m.isAlive && m.away == nil {
			dead = append(dead, id)
			if now.Sub(m.lost) > lastGossip {
				t.mux.ForgetGossip(id)
			}
		}
	}
	if most := len(dead) - mostDead; most > 0 {
		slices.SortFunc(dead, func(a, b resource.NodeID) int { return t.nodes[a].lost.Compare(t.nodes[b].lost) })
		for _, id := range dead[:most] {
			delete(t.nodes, id)
			t.dropGossipLocked(id)
		}
	}
}

// seeks reports whether this member is one of those that look for a certain member now. It is drawn
// by lot.
func (t *memberTable) seeks() bool { return rand.N(len(t.list())) < mostSeekers }

// close stops the timers of members that are away. No timer starts after the end of t.life.
func (t *memberTable) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, m := range t.nodes {
		if m.away != nil {
			m.away.Stop()
		}
	}
}

// stats fills in the numbers of members.
func (t *memberTable) stats(s *Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Alive = 1
	for id, m := range t.nodes {
		switch {
		case id == t.cfg.Node:
		case m.isAlive:
			s.Alive++
		case m.away != nil:
			s.Away++
		default:
			s.Dead++
		}
	}
}
