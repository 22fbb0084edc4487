// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"net"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

// A member may tell an address by gossip at which it is not, for example that of a bridge that each
// machine has (172.17.0.1 of docker0). The other members then take it for dead, although it answers
// hellos at the address by which it was joined. A member may also have a new address while another
// node has its former one. What such a member has must not be denied for certain.

const (
	// apartTime is how long a hello counts that was answered by a member that is dead. The members
	// to join are greeted more often.
	apartTime  = time.Minute
	mostPlaces = 1 << 12 // limit of places.of
	// leftTime is for how long a member that has left may answer hellos that were under way.
	leftTime = 5 * time.Second
	// twinTime is how long it counts that a node is said to be in two places. While two nodes have
	// one number it is said again and again. Of a node that has moved it is said until its former
	// address is dead.
	twinTime = 5 * time.Second
)

// places are the members that answered a hello from another address than gossip tells.
type places struct {
	of    map[resource.NodeID]*answered // memberTable.mu guards it
	twins map[string]twin               // by the node's name; memberTable.mu guards it
	count atomic.Int32                  // of of and twins
	left  map[resource.NodeID]time.Time // when members left, for leftTime; memberTable.mu guards it
}

// An answered is the last hello that a member has answered.
type answered struct {
	from   string // the address that the answer came from
	when   time.Time
	logged string // the contradiction that was logged
}

// A twin is a node that is said to be at two addresses.
type twin struct {
	addrs string
	when  time.Time
}

// twin notes that a node is said to be at two addresses.
func (t *memberTable) twin(node, addrs string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.apart
	if p.twins == nil {
		p.twins = map[string]twin{}
	}
	if len(p.twins) < mostPlaces {
		p.twins[node] = twin{addrs, time.Now()}
	}
	p.recount()
}

func (p *places) recount() { p.count.Store(int32(len(p.of) + len(p.twins))) }

// answered notes that a member has answered a hello from an address.
func (t *memberTable) answered(id resource.NodeID, from *net.UDPAddr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.apart
	a := p.of[id]
	if a == nil {
		if len(p.of) >= mostPlaces {
			maps.DeleteFunc(p.of, func(_ resource.NodeID, a *answered) bool { return time.Since(a.when) > apartTime })
		}
		if id == t.cfg.Node || len(p.of) >= mostPlaces || time.Since(p.left[id]) < leftTime {
			return
		}
		a = &answered{}
		if p.of == nil {
			p.of = map[resource.NodeID]*answered{}
		}
		p.of[id] = a
	}
	ap := from.AddrPort()
	a.from, a.when = net.JoinHostPort(ap.Addr().Unmap().String(), fmt.Sprint(ap.Port())), time.Now()
	p.recount()
	t.comparePlacesLocked(id)
}

// silentAt notes that no member answers a hello at an address any more.
func (t *memberTable) silentAt(addr string) {
	if t.apart.count.Load() == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.apart
	maps.DeleteFunc(p.of, func(_ resource.NodeID, a *answered) bool { return a.from == addr })
	p.recount()
}

// leavesPlaceLocked notes that a member has left.
func (t *memberTable) leavesPlaceLocked(id resource.NodeID) {
	t.forgetPlaceLocked(id)
	p := &t.apart
	if p.left == nil {
		p.left = map[resource.NodeID]time.Time{}
	}
	maps.DeleteFunc(p.left, func(_ resource.NodeID, when time.Time) bool { return time.Since(when) > leftTime })
	p.left[id] = time.Now()
}

// forgetPlaceLocked forgets where a member has answered.
func (t *memberTable) forgetPlaceLocked(id resource.NodeID) {
	p := &t.apart
	delete(p.of, id)
	p.recount()
}

// comparePlacesLocked compares the address from which a member answers with the one that gossip
// tells. It logs a contradiction once.
func (t *memberTable) comparePlacesLocked(id resource.NodeID) {
	p := &t.apart
	a, m := p.of[id], t.nodes[id]
	if a == nil || m == nil {
		return
	}
	if a.from == m.addr {
		t.forgetPlaceLocked(id)
		return
	}
	if why := t.contradictionLocked(id, a, time.Now()); why != "" && why != a.logged {
		a.logged = why
		// Cause: a member tells `addr`, and answers at `answers`. Remedy: [name its
		// address](CLUSTER.md#which-address-a-member-has).
		t.log.Warn("cluster: a member is not at the address that it tells: give it another --bind", "node", name(id), "addr", m.addr, "answers", a.from, "this node", t.mux.Addr().String())
	}
}

// contradictionLocked returns what is wrong with the address of a member that answered from another
// one, or "".
func (t *memberTable) contradictionLocked(id resource.NodeID, a *answered, now time.Time) string {
	switch m := t.nodes[id]; {
	case m == nil && now.Sub(a.when) < apartTime:
		return fmt.Sprintf("node %s answers at %s, and is not met yet", name(id), a.from)
	case m == nil:
	case m.addr == hostPort(t.mux.Addr()):
		return fmt.Sprintf("node %s tells this node's own address, %s, and answers at %s", name(id), m.addr, a.from)
	case !m.isAlive && m.away == nil && a.when.After(m.lost) && now.Sub(a.when) < apartTime:
		return fmt.Sprintf("node %s does not answer at the address that it tells, %s, and answers at %s", name(id), m.addr, a.from)
	}
	return ""
}

// contradiction returns an error that matches directory.ErrPartial if a member lives at another
// address than gossip tells, or at two addresses. Otherwise it returns nil.
func (t *memberTable) contradiction(now time.Time) error {
	if t.apart.count.Load() == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &t.apart
	maps.DeleteFunc(p.twins, func(_ string, w twin) bool { return now.Sub(w.when) > twinTime })
	p.recount()
	for node, w := range p.twins {
		return fmt.Errorf("%w: node %s is in two places, %s", directory.ErrPartial, node, w.addrs)
	}
	for id, a := range p.of {
		if why := t.contradictionLocked(id, a, now); why != "" {
			return fmt.Errorf("%w: %s", directory.ErrPartial, why)
		}
	}
	return nil
}

// hostPort returns an address in the form that memberlist uses.
func hostPort(a *net.UDPAddr) string { return net.JoinHostPort(a.IP.String(), fmt.Sprint(a.Port)) }
