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
	rejoin      = 500 * time.Millisecond // how often members that are missed are looked for
	beaconTime  = 2 * time.Second        // how often a member that is not alone makes itself known to the group
	joinTime    = 2 * time.Second        // for one attempt
	mostSeekers = 8                      // of the members look at a time for one that is away, in the mean
	mostMissed  = 16                     // of them at a time: one that answers knows the others
	forget      = 72 * time.Hour         // after which a member that is missed is no more looked for
	mostDead    = 1 << 12                // members that are missed and looked for; beyond it those that were lost first are forgotten
	lastGossip  = time.Minute            // after which no gossip goes to a member that is missed; memberlist ends it after half of that

	mostAddresses = 32 // of one name, tried at a time
)

// errOwn is returned for an address to join that is this member's own alone.
var errOwn = errors.New("nobody else is there by now")

// addresses are those of HOST:PORT, in no order so that not all members try the
// same one first, and without this member's own; self reports whether that is one
// of them. memberlist would look names up itself: first over TCP, with nothing to
// stop it when a name server hangs.
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
			continue // no datagram would get there, or it is us
		}
		to = append(to, a)
	}
	rand.Shuffle(len(to), func(i, j int) { to[i], to[j] = to[j], to[i] })
	return to[:min(len(to), mostAddresses)], self, nil
}

// within is memberlist's transport, whose streams end with the member's life:
// who does not answer must not keep it from closing.
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

// ending is a conn that something else may close too.
type ending struct {
	net.Conn
	stop func() bool
}

func (e *ending) Close() error {
	e.stop()
	return e.Conn.Close()
}

// knockAndDial dials for memberlist, which does so when a member does not answer
// a packet. The member may have been started anew and know nobody: whoever joined
// it still has it for alive and does not look for it. So it is told who is here.
func (c *Cluster) knockAndDial(ctx context.Context, addr string) (net.Conn, error) {
	if at, err := netip.ParseAddrPort(addr); err == nil {
		c.port.Knock(net.UDPAddrFromAddrPort(at))
	}
	return c.port.DialAddr(ctx, addr)
}

// keepJoined joins those it was told of until each was reached once, and looks
// for those it has met for as long as they are not seen alive: memberlist gives
// the dead up, and a cluster that was parted would stay so. While it is alone it
// makes itself known to the group; and so does, less often, the first of several:
// there may be others whom none of them has ever met.
func (c *Cluster) keepJoined() {
	defer c.busy.Done()
	told := map[string]bool{} // and not reached yet
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

// some returns the addresses of a few living members. c.nmu must be held.
func (c *Cluster) some() (addrs []string) {
	for id, m := range c.nodes { // in no order
		if id != c.cfg.Node && m.alive && len(addrs) < 3 {
			addrs = append(addrs, m.addr)
		}
	}
	return addrs
}

// missed returns the addresses of some members that are not seen alive. c.nmu must
// be held.
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
		case m.alive || m.away != nil && rand.N(len(*c.members.Load())) >= mostSeekers:
		case m.away != nil: // when it is back it may be told of nobody
			addrs = append(addrs, m.addr)
		case now.Sub(m.lost) > forget:
			delete(c.nodes, id)
		case len(addrs) < mostMissed: // in no order: others the next time
			addrs = append(addrs, m.addr)
		}
	}
	return addrs
}

// look joins whoever is at an address, and calls found if somebody is, with
// c.nmu held. A packet goes first: whoever is cut off would hold a connection
// up for seconds, and whoever does not hear packets is no use as a member.
// c.nmu is held.
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

// wanting is about a member that we were told of and have not reached yet.
type wanting struct {
	since time.Time
	tried bool
	own   bool          // the address is this member's own, and nobody else's
	said  time.Duration // after which it is said, and again after twice that
}

// want says that a member is not reached: nothing else tells an operator that an
// address, a key or the cluster's name is wrong. c.nmu is held.
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

func (c *Cluster) join(addr string) error {
	to, self, err := c.addresses(addr)
	if err != nil {
		c.count.unresolved.Add(1)
		return err
	}
	var failed []error
	for _, at := range to { // all: they may not know each other
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

// heardBeacon works on a member's telling that it is there.
func (c *Cluster) heardBeacon(id resource.NodeID, addr *net.UDPAddr) {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	if m := c.nodes[id]; (m == nil || !m.alive) && len(c.looking) < mostMissed { // it may have been recorded
		c.look(addr.String(), func() {})
	}
}
