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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/resource"
)

const (
	rejoin = 500 * time.Millisecond // how often missed members are looked for
	// beaconTime is how often a member that is not alone makes itself known to the group.
	beaconTime = 2 * time.Second
	joinTime   = 2 * time.Second // for one attempt
	// firstTime is how long questions wait for the first member to be reached. A connection whose
	// first packet is lost takes a second.
	firstTime = 3 * time.Second

	mostAddresses = 32 // of one name, tried at a time
	mostTaught    = 3  // members that are joined to correct what they know
)

// A joiner joins the members in Config.Join, and those that were met and are not seen alive any
// more. It knows whether this member has learned of all members.
type joiner struct {
	*core
	members *memberTable
	gossip  *gossip

	// former means that some member knows a former life of this one: see gossip.NotifyMerge.
	former atomic.Bool
	// accounted means that a member that was joined has given its account: see absent.go.
	accounted atomic.Bool
	// complete means that this member knows all members, so that a no of all of them is definite:
	// see learnedLocked and waitedLongEnoughLocked.
	complete atomic.Bool
	// joined is done when complete is set, or after firstTime. Questions and watches wait for it.
	joined context.Context
	waited context.CancelFunc

	mu      sync.Mutex          // guards the following fields; taken before memberTable.mu
	looking map[string]bool     // addresses at which join is under way
	wanting map[string]*wanting // by address: members to join that were not reached yet
}

func newJoiner(c *core, members *memberTable, g *gossip) *joiner {
	j := &joiner{core: c, members: members, gossip: g, looking: map[string]bool{}, wanting: map[string]*wanting{}}
	j.joined, j.waited = context.WithTimeout(c.life, firstTime)
	return j
}

// errOwn is returned for an address to join that is this member's own alone.
var errOwn = errors.New("the address leads only to this member")

// addresses looks HOST:PORT up. The result is in random order, so that not all members try the same
// address first. It leaves out this member's own address; self reports whether the name has that
// one. memberlist would look names up first over TCP, without a bound when a name server hangs.
func (j *joiner) addresses(name string) (to []netip.AddrPort, self bool, err error) {
	ctx, cancel := context.WithTimeout(j.life, j.cfg.lookup)
	defer cancel()
	host, service, err := net.SplitHostPort(name)
	if err != nil {
		return nil, false, err
	}
	r := j.cfg.Resolver
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
	own := j.mux.Addr().AddrPort()
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

// alone reports whether Config names no other member, and none can make itself known.
func (j *joiner) alone() bool {
	own := j.mux.Addr().String()
	return !j.cfg.Follows && (len(j.cfg.Join) == 0 && j.cfg.Group == "" || len(j.cfg.Join) == 1 && j.cfg.Join[0] == own)
}

// run joins each address in Config.Join until that was reached once. It also looks for each member
// that was met, as long as that is not seen alive: memberlist gives dead members up, and a cluster
// that was cut would stay so. A member that is alone makes itself known to the group. The first of
// several members does so less often: there may be members that none of them has met.
func (j *joiner) run() {
	own := j.mux.Addr().String()
	open := map[string]bool{} // the addresses in Config.Join that were not reached; guarded by mu
	j.mu.Lock()
	for _, addr := range j.cfg.Join {
		if addr != own {
			open[addr] = true
			j.wanting[addr] = &wanting{since: time.Now(), next: sayAgain}
		}
	}
	j.mu.Unlock()
	var shown time.Time
	for wait := rejoin / 8; ; wait = min(wait*2, rejoin) {
		j.mu.Lock()
		if j.waitedLongEnoughLocked(time.Now()) {
			j.setComplete()
		}
		for addr := range open {
			j.lookLocked(addr, func() { delete(open, addr) })
		}
		for _, addr := range j.members.missed(time.Now()) {
			j.lookLocked(addr, func() {})
		}
		if j.former.Load() || j.members.awaitsUnmet() {
			addrs, _ := j.members.aliveOtherMembers(mostTaught)
			for _, addr := range addrs {
				j.lookLocked(addr, func() {})
			}
		}
		j.mu.Unlock()
		if all := j.members.list(); len(all) == 1 || all[0] == j.cfg.Node && time.Since(shown) > beaconTime {
			shown = time.Now()
			j.mux.Beacon()
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-j.life.Done():
			t.Stop()
			return
		}
	}
}

// lookLocked joins the member at an address, in a goroutine of its own, which calls found with mu
// held if a member answers and this member knows all members. A packet goes first: a member that is
// cut off would hold up a connection for seconds, and a member that does not receive packets is of
// no use.
func (j *joiner) lookLocked(addr string, found func()) {
	if j.looking[addr] {
		return
	}
	j.looking[addr] = j.life.begin(func() {
		err := j.join(addr)
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.looking, addr)
		if err == nil {
			delete(j.wanting, addr)
			if j.learnedLocked(true) {
				j.setComplete()
			}
			if j.complete.Load() {
				found()
			}
		} else if j.life.Err() == nil {
			j.log.Debug("cluster: joining", "addr", addr, "err", err)
			j.missLocked(addr, err)
			if j.learnedLocked(false) {
				j.setComplete()
			}
		}
	})
}

// A wanting is the state of an address to join that has not been reached yet.
type wanting struct {
	since time.Time
	tried bool
	own   bool          // the address is this member's own and no other member's
	next  time.Duration // after which time a warning is logged, and again after twice that
}

// missLocked notes that the member at an address is not reached. It logs a warning now and then:
// nothing else tells an operator that an address, a key or the cluster's name is wrong.
func (j *joiner) missLocked(addr string, err error) {
	w := j.wanting[addr]
	if w == nil {
		return
	}
	w.tried, w.own = true, errors.Is(err, errOwn)
	if time.Since(w.since) < w.next {
		return
	}
	j.log.Warn("cluster: a member to join is not reached yet", "addr", addr, "for", w.next, "err", err)
	w.next *= 2
}

// join says hello to each address of addr, and joins the members that answer. It returns nil if at
// least one was joined.
func (j *joiner) join(addr string) error {
	to, self, err := j.addresses(addr)
	if err != nil {
		j.count.unresolved.Add(1)
		return err
	}
	var failed []error
	for _, at := range to { // all addresses: their members may not know each other
		err := j.mux.Hello(j.life, net.UDPAddrFromAddrPort(at))
		if err == nil {
			_, err = j.gossip.list.Join([]string{at.String()})
		}
		if err == nil && j.former.Swap(false) {
			if _, err = j.gossip.list.Join([]string{at.String()}); err != nil {
				j.former.Store(true)
			}
		}
		if j.life.Err() != nil {
			return err
		}
		if err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) < len(to) {
		return nil
	}
	j.count.notJoined.Add(1)
	if len(to) == 0 && self {
		return fmt.Errorf("%w: %s", errOwn, addr)
	}
	if len(to) == 0 {
		return fmt.Errorf("%s: no address that can be reached from %s", addr, j.mux.Addr())
	}
	return fmt.Errorf("no member answers at %s: it may be down, or have another cluster name or another key: %w", addr, errors.Join(failed...))
}

// heardBeacon handles the beacon of another member.
func (j *joiner) heardBeacon(id resource.NodeID, addr *net.UDPAddr) {
	j.mu.Lock()
	defer j.mu.Unlock()
	// The beacon may be a recorded one, so the number of joins is limited.
	if !j.members.alive(id) && len(j.looking) < mostMissed {
		j.lookLocked(addr.String(), func() {})
	}
}

// setComplete notes that this member knows all members.
func (j *joiner) setComplete() {
	j.complete.Store(true)
	j.waited()
}

// heardAccount notes that a member that was joined has given its account. fresh means that it may
// not know all members.
func (j *joiner) heardAccount(fresh bool) {
	j.accounted.Store(true)
	if !fresh {
		j.setComplete()
	}
}

// learnedLocked reports whether this member knows the other members, although no member that knows
// them all has given it an account. A node that was no member before knows them when it has met one
// and has tried all addresses to join: the other members may be as new as this one. Members of
// version 0.1.0 give no account, so that it is enough to have joined one.
func (j *joiner) learnedLocked(joined bool) bool {
	others, _ := j.members.aliveOtherMembers(1)
	switch {
	case len(others) == 0:
		return false
	case joined && !j.accounted.Load():
		return true
	case j.cfg.Follows:
		return false
	}
	for _, w := range j.wanting {
		if !w.tried {
			return false
		}
	}
	return true
}

// waitedLongEnoughLocked reports whether this member knows the other members because enough time
// has passed. A member that has met another one knows them after awayTime: a member that was away
// before has been given up or heard of by then. A member that has met none knows them after
// firstTime, and only if it has no address to join but its own.
func (j *joiner) waitedLongEnoughLocked(now time.Time) bool {
	if met := j.members.firstMetAt(); !met.IsZero() {
		return now.Sub(met) >= awayTime
	}
	return len(j.unmetLocked()) == 0 && now.Sub(j.born) >= firstTime
}

// unmetLocked returns the sorted addresses to join that have not been reached, without this
// member's own.
func (j *joiner) unmetLocked() (addrs []string) {
	for addr, w := range j.wanting {
		if !w.own {
			addrs = append(addrs, addr)
		}
	}
	slices.Sort(addrs)
	return addrs
}

// incomplete returns nil if this member knows all members, so that a no of all of them is definite.
// Otherwise it returns an error that matches directory.ErrPartial.
func (j *joiner) incomplete() error {
	if err := j.members.contradiction(time.Now()); err != nil {
		return err
	}
	if j.complete.Load() {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.members.firstMetAt().IsZero() {
		return fmt.Errorf("%w: no other member has been reached: %s", directory.ErrPartial, strings.Join(j.unmetLocked(), ", "))
	}
	return fmt.Errorf("%w: the members that have been reached may not know all others yet", directory.ErrPartial)
}

// await waits, for firstTime at most, until the first members have been reached: what a member that
// has just started does not find may be on another node.
func (j *joiner) await(ctx context.Context) error {
	if j.joined.Err() != nil { // true soon after Open, and then always
		return nil
	}
	select {
	case <-j.joined.Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// addressesTried returns the number of addresses that are being tried.
func (j *joiner) addressesTried() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.looking)
}
