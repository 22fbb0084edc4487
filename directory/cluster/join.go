// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/resource"
)

const (
	rejoin = 500 * time.Millisecond // how often missed members are looked for
	// beaconTime is how often a member that is not alone makes itself known to the group.
	beaconTime = 2 * time.Second
	joinTime   = 2 * time.Second // for one attempt
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

	mostAddresses = 32 // of one name, tried at a time
)

// errOwn is returned for an address to join that is this member's own alone.
var errOwn = errors.New("nobody else is there by now")

// addresses looks HOST:PORT up. The result is in random order, so that not all members try the same
// address first. It leaves out this member's own address; self reports whether the name has that
// one. memberlist would look names up first over TCP, without a bound when a name server hangs.
func (c *Cluster) addresses(name string) (to []netip.AddrPort, self bool, err error) {
	ctx, cancel := context.WithTimeout(c.life, joinTime)
	defer cancel()
	host, service, err := net.SplitHostPort(name)
	if err != nil {
		return nil, false, err
	}
	r := c.cfg.Resolver
	if r == nil {
		r = net.DefaultResolver
	}
	n, err := r.LookupPort(ctx, "udp", service)
	if err != nil {
		return nil, false, err
	}
	ips, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, false, err
	}
	own := c.port.Addr().AddrPort()
	own = netip.AddrPortFrom(own.Addr().Unmap(), own.Port())
	for _, ip := range ips {
		a := netip.AddrPortFrom(ip.Unmap(), uint16(n))
		self = self || a == own
		if own.Addr().Is4() && !a.Addr().Is4() || a == own || slices.Contains(to, a) {
			continue // no datagram would get there, or it is this member's own
		}
		to = append(to, a)
	}
	rand.Shuffle(len(to), func(i, j int) { to[i], to[j] = to[j], to[i] })
	return to[:min(len(to), mostAddresses)], self, nil
}

// within is memberlist's transport. Its streams end with the member's life, so that a peer that
// does not answer does not keep the member from closing.
type within struct {
	memberlist.NodeAwareTransport
	dial func(ctx context.Context, addr string) (net.Conn, error)
	life context.Context
}

func (w within) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(w.life, timeout)
	defer cancel()
	nc, err := w.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &ending{nc, context.AfterFunc(w.life, func() { nc.Close() })}, nil
}

func (w within) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return w.DialTimeout(a.Addr, timeout)
}

// ending is a connection that the end of the member's life closes too. Close stops that.
type ending struct {
	net.Conn
	stop func() bool
}

func (e *ending) Close() error {
	e.stop()
	return e.Conn.Close()
}

// knockAndDial dials for memberlist, which does so when a member does not answer a packet. The
// member may have been started anew and know no other member. The members that joined it still take
// it for alive and do not look for it. So knockAndDial first tells it that this member is here.
func (c *Cluster) knockAndDial(ctx context.Context, addr string) (net.Conn, error) {
	if at, err := netip.ParseAddrPort(addr); err == nil {
		c.port.Knock(net.UDPAddrFromAddrPort(at))
	}
	return c.port.DialAddr(ctx, addr)
}

// keepJoined joins each address in Config.Join until that was reached once. It also looks for each
// member that was met, as long as that is not seen alive: memberlist gives dead members up, and a
// cluster that was cut would stay so. A member that is alone makes itself known to the group. The
// first of several members does so less often: there may be members that none of them has met.
func (c *Cluster) keepJoined() {
	defer c.busy.Done()
	told := map[string]bool{} // true: not reached yet
	c.nmu.Lock()
	for _, addr := range c.cfg.Join {
		if told[addr] = addr != c.Addr(); told[addr] {
			c.wanting[addr] = &wanting{since: time.Now(), said: sayAgain}
		}
	}
	c.nmu.Unlock()
	var shown time.Time
	for wait := rejoin / 8; ; wait = min(wait*2, rejoin) {
		c.nmu.Lock()
		if c.waitedLongEnough(time.Now()) {
			c.reached()
		}
		for addr := range told {
			if told[addr] {
				c.look(addr, func() { told[addr] = false })
			}
		}
		for _, addr := range c.missed(time.Now()) {
			c.look(addr, func() {})
		}
		if c.former.Load() || c.hearsay() {
			for _, addr := range c.some() {
				c.look(addr, func() {})
			}
		}
		c.nmu.Unlock()
		if all := *c.members.Load(); len(all) == 1 || all[0] == c.cfg.Node && time.Since(shown) > beaconTime {
			shown = time.Now()
			c.port.Beacon()
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-c.life.Done():
			t.Stop()
			return
		}
	}
}

// some returns the addresses of a few living members. nmu must be held.
func (c *Cluster) some() (addrs []string) {
	for id, m := range c.nodes { // in random order
		if id != c.cfg.Node && m.alive && len(addrs) < 3 {
			addrs = append(addrs, m.addr)
		}
	}
	return addrs
}

// missed returns the addresses of some members that are not seen alive, and forgets those that were
// lost too long ago or are too many. nmu must be held.
func (c *Cluster) missed(now time.Time) (addrs []string) {
	var dead []resource.NodeID
	for id, m := range c.nodes {
		if !m.alive && m.away == nil {
			dead = append(dead, id)
			if now.Sub(m.lost) > lastGossip {
				c.port.ForgetGossip(id)
			}
		}
	}
	if most := len(dead) - mostDead; most > 0 {
		slices.SortFunc(dead, func(a, b resource.NodeID) int { return c.nodes[a].lost.Compare(c.nodes[b].lost) })
		for _, id := range dead[:most] {
			delete(c.nodes, id)
			c.forgotten(id)
		}
	}
	for id, m := range c.nodes {
		switch {
		case m.alive || m.away != nil && !c.seeks():
		case m.away != nil: // when the member is back, it may know no other member
			addrs = append(addrs, m.addr)
		case now.Sub(m.lost) > forget:
			delete(c.nodes, id)
		case len(addrs) < mostMissed: // in random order: the next call returns different ones
			addrs = append(addrs, m.addr)
		}
	}
	return addrs
}

// seeks reports whether this member is one of those that look for a certain member now. It is drawn
// by lot.
func (c *Cluster) seeks() bool { return rand.N(len(*c.members.Load())) < mostSeekers }

// look joins the member at an address, in a goroutine of its own, which calls found with nmu held
// if a member answers. A packet goes first: a member that is cut off would hold up a connection for
// seconds, and a member that does not receive packets is of no use. nmu must be held.
func (c *Cluster) look(addr string, found func()) {
	if c.looking[addr] || c.life.Err() != nil {
		return
	}
	c.looking[addr] = true
	c.busy.Go(func() {
		err := c.join(addr)
		c.nmu.Lock()
		defer c.nmu.Unlock()
		delete(c.looking, addr)
		if err == nil {
			delete(c.wanting, addr)
			if c.settled(true) {
				c.reached()
			}
			if c.known.Load() {
				found()
			}
		} else if c.life.Err() == nil {
			c.log.Debug("cluster: joining", "addr", addr, "err", err)
			c.want(addr, err)
			if c.settled(false) {
				c.reached()
			}
		}
	})
}

// A wanting is the state of an address to join that has not been reached yet.
type wanting struct {
	since time.Time
	tried bool
	own   bool          // the address is this member's own and no other member's
	said  time.Duration // after which time a warning is logged, and again after twice that
}

// want logs a warning that a member is not reached: nothing else tells an operator that an address,
// a key or the cluster's name is wrong. nmu must be held.
func (c *Cluster) want(addr string, err error) {
	w := c.wanting[addr]
	if w != nil {
		w.tried, w.own = true, errors.Is(err, errOwn)
	}
	if w == nil || time.Since(w.since) < w.said {
		return
	}
	c.log.Warn("cluster: a member to join is not reached yet", "addr", addr, "for", w.said, "err", err)
	w.said *= 2
}

// join says hello to each address of addr, and joins the members that answer. It returns nil if at
// least one was joined.
func (c *Cluster) join(addr string) error {
	to, self, err := c.addresses(addr)
	if err != nil {
		c.count.unresolved.Add(1)
		return err
	}
	var failed []error
	for _, at := range to { // all addresses: their members may not know each other
		err := c.port.Hello(c.life, net.UDPAddrFromAddrPort(at))
		if err == nil {
			_, err = c.list.Join([]string{at.String()})
		}
		if err == nil && c.former.Swap(false) {
			if _, err = c.list.Join([]string{at.String()}); err != nil {
				c.former.Store(true)
			}
		}
		if c.life.Err() != nil {
			return err
		}
		if err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) < len(to) {
		return nil
	}
	c.count.notJoined.Add(1)
	if len(to) == 0 && self {
		return fmt.Errorf("%w: %s", errOwn, addr)
	}
	if len(to) == 0 {
		return fmt.Errorf("%s: no address that can be reached from %s", addr, c.Addr())
	}
	return fmt.Errorf("nobody answers; it may be down, or have another name of the cluster or another key: %w", errors.Join(failed...))
}

// heardBeacon handles the beacon of another member.
func (c *Cluster) heardBeacon(id resource.NodeID, addr *net.UDPAddr) {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	// The beacon may be a recorded one, so the number of joins is limited.
	if m := c.nodes[id]; (m == nil || !m.alive) && len(c.looking) < mostMissed {
		c.look(addr.String(), func() {})
	}
}
