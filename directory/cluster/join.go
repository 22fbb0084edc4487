// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/internal/os/sockerr"
	"github.com/rocl-go/rocl/resource"
)

const (
	rejoin = 500 * time.Millisecond // how often missed members are looked for
	// A member that is alone, or that does not know all members yet, tries the addresses to join
	// each aloneTime. Another one tries them too, each settledTime in the end: members that do not
	// know each other may be there, each with its own part of the cluster.
	aloneTime   = time.Second
	settledTime = 30 * time.Second
	// beaconTime is how often a member that is not alone makes itself known to the group.
	beaconTime = 2 * time.Second
	joinTime   = 2 * time.Second // for one attempt
	// firstTime is how long questions wait for the first member to be reached. A connection whose
	// first packet is lost takes a second.
	firstTime = 3 * time.Second

	mostAddresses = 256 // of one name, greeted at a time
	mostExchanges = 4   // with members at addresses of one name, at a time
	mostTaught    = 3   // members that are joined to correct what they know

	probeAfter = 250 * time.Millisecond // without an answer to a hello
	// probeAgain is after which time a program that has refused this member is asked again.
	probeAgain = 5 * time.Second
	// refusalTime is how long a refusal counts at an address that is not looked at any more.
	refusalTime = time.Minute
)

// A joiner joins the members in Config.Join, again and again, and those that were met and are not
// seen alive any more. It knows whether this member has learned of all members, and which programs
// refuse this member.
type joiner struct {
	*core
	members *memberTable
	gossip  *gossip

	// former means that some member knows a former life of this one: see gossip.NotifyMerge.
	former atomic.Bool
	// accounted means that a member that was joined has given its account: see absent.go.
	accounted atomic.Bool
	// complete means that this member knows all members, so that a no of all of them is definite
	// unless some are unsure: see learnedLocked, waitedLongEnoughLocked and incomplete.
	complete atomic.Bool
	// refused means that refusals is not empty.
	refused atomic.Bool
	// joined is done when complete is set, or after firstTime. Questions and watches wait for it.
	joined context.Context
	waited context.CancelFunc

	mu       sync.Mutex                  // guards the following fields; taken before memberTable.mu
	looking  map[string]bool             // addresses at which join is under way
	wanting  map[string]*wanting         // the members to join, by address
	greeters map[resource.NodeID]string  // members that said hello and are not seen alive, with their addresses
	refusals map[netip.AddrPort]*refusal // programs that refuse this member, by address
	warned   bool                        // a warning of the refusals was logged
}

func newJoiner(c *core, members *memberTable, g *gossip) *joiner {
	j := &joiner{core: c, members: members, gossip: g, looking: map[string]bool{}, wanting: map[string]*wanting{}, greeters: map[resource.NodeID]string{}, refusals: map[netip.AddrPort]*refusal{}}
	j.joined, j.waited = context.WithTimeout(c.life, firstTime)
	return j
}

// exchange exchanges with the member at an address all that both know of the members.
func (j *joiner) exchange(at string) error {
	_, err := j.gossip.list.Join([]string{at})
	if all, ok := err.(interface{ WrappedErrors() []error }); ok { // its text has several lines
		err = errors.Join(all.WrappedErrors()...)
	}
	return err
}

// addresses returns the addresses that an element of Config.Join leads to. The result is in random
// order, so that not all members try the same address first. It leaves out this member's own
// address; self reports whether the element leads there. memberlist would look names up first over
// TCP, without a bound when a name server hangs.
func (j *joiner) addresses(join string) (to []netip.AddrPort, self bool, err error) {
	places, err := j.places(j.life, join)
	if err != nil {
		return nil, false, err
	}
	all, err := j.resolveAll(j.life, places)
	if err != nil {
		return nil, false, err
	}
	own := j.own()
	for _, a := range all {
		self = self || a == own
		if own.Addr().Is4() && !a.Addr().Is4() || a == own || slices.Contains(to, a) {
			continue // no datagram would get there, or it is this member's own
		}
		to = append(to, a)
	}
	rand.Shuffle(len(to), func(i, j int) { to[i], to[j] = to[j], to[i] })
	return to[:min(len(to), mostAddresses)], self, nil
}

// own returns this member's address.
func (j *joiner) own() netip.AddrPort {
	a := j.mux.Addr().AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// alone reports whether Config names no other member, and none can make itself known.
func (j *joiner) alone() bool {
	own := j.mux.Addr().String()
	return !j.cfg.Follows && j.cfg.Group == "" && !slices.ContainsFunc(j.cfg.Join, func(addr string) bool { return addr != own })
}

// run joins the addresses in Config.Join for as long as this member lives. Names may lead to other
// addresses later, and members that do not know each other are joined by a member that finds both.
// It also looks for each member that was met, as long as that is not seen alive: memberlist gives
// dead members up, and a cluster that was cut would stay so. A member that is alone makes itself
// known to the group. The first of several members does so less often: there may be members that
// none of them has met.
func (j *joiner) run() {
	j.mu.Lock()
	for _, addr := range j.cfg.Join {
		if addr != j.mux.Addr().String() {
			j.wanting[addr] = newWanting(time.Now())
		}
	}
	j.mu.Unlock()
	var shown time.Time
	members := 1
	for wait := rejoin / 8; ; wait = min(wait*2, rejoin) {
		news := j.members.news()
		now, all := time.Now(), j.members.list()
		j.mu.Lock()
		if j.waitedLongEnoughLocked(now) {
			j.setComplete()
		}
		j.joinWantedLocked(now, len(all) < members && j.members.seeks())
		for _, addr := range j.members.missed(now) {
			j.lookLocked(addr, true)
		}
		for id, addr := range j.greeters {
			delete(j.greeters, id)
			if !j.members.alive(id) {
				j.lookLocked(addr, false)
			}
		}
		if j.former.Load() || j.members.awaitsUnmet() {
			addrs, _ := j.members.aliveOtherMembers(mostTaught)
			for _, addr := range addrs {
				j.lookLocked(addr, true)
			}
		}
		j.settleRefusalsLocked(now)
		j.mu.Unlock()
		if members = len(all); members == 1 || all[0] == j.cfg.Node && time.Since(shown) > beaconTime {
			shown = time.Now()
			j.mux.Beacon()
		}
		select {
		case <-time.After(wait):
		case <-news: // a member that seems dead is looked at at once
		case <-j.life.Done():
			return
		}
	}
}

// joinWantedLocked tries the addresses to join whose time has come. If lost is set, a member has
// been lost, which may come back at another address of a name: the times between attempts begin
// anew.
func (j *joiner) joinWantedLocked(now time.Time, lost bool) {
	most := settledTime
	if others, _ := j.members.aliveOtherMembers(1); len(others) == 0 || !j.complete.Load() {
		most = aloneTime
	}
	for addr, w := range j.wanting {
		if lost {
			w.wait = aloneTime
		}
		if now.Sub(w.ended) >= time.Duration(w.share*float64(min(w.wait, most))) {
			j.lookLocked(addr, false)
		}
	}
}

// lookLocked joins the member at an address, in a goroutine of its own. A member that is seen alive
// is joined only if again is set.
func (j *joiner) lookLocked(addr string, again bool) {
	if j.looking[addr] {
		return
	}
	j.looking[addr] = j.life.begin(func() {
		err := j.join(addr, again)
		j.mu.Lock()
		defer j.mu.Unlock()
		delete(j.looking, addr)
		if w := j.wanting[addr]; w != nil {
			w.next(time.Now())
		}
		if j.life.Err() != nil {
			return
		}
		if err != nil { // otherwise gossip is about to see the member alive
			j.members.lookedAt(addr, errors.Is(err, mux.ErrRefused))
			j.log.Debug("cluster: joining", "addr", addr, "err", err)
		}
		j.recordLocked(addr, err)
		if j.learnedLocked() {
			j.setComplete()
		}
	})
}

// A wanting is the state of an address to join.
type wanting struct {
	tried, reached bool          // once at least
	own            bool          // the address is this member's own and no other member's
	since          time.Time     // since when it is not reached
	warn           time.Duration // after which time a warning is logged, and again after twice that
	ended          time.Time     // when the last attempt ended
	wait           time.Duration // from then to the next attempt
	share          float64       // of wait, drawn by lot: not all members ask a name server at a time
}

func newWanting(now time.Time) *wanting { return &wanting{since: now, warn: sayAgain} }

// next notes that an attempt has ended, and sets the time of the next one.
func (w *wanting) next(now time.Time) {
	w.ended, w.wait, w.share = now, min(max(2*w.wait, aloneTime), settledTime), 0.75+rand.Float64()/2
}

// recordLocked records the result of an attempt to join at an address. It logs a warning now and
// then if no member is reached there: nothing else tells an operator that an address, a key or the
// cluster's name is wrong.
func (j *joiner) recordLocked(addr string, err error) {
	w := j.wanting[addr]
	if w == nil {
		return
	}
	w.tried, w.own = true, errors.Is(err, mux.ErrOwn)
	now := time.Now()
	if err == nil || w.own {
		w.reached, w.since, w.warn = w.reached || err == nil, now, sayAgain
		return
	}
	if now.Sub(w.since) < w.warn {
		return
	}
	// Cause: the address, a firewall (UDP and TCP), the key or `--cluster` is wrong; `err` says
	// what is known. Remedy: correct it, or remove the address.
	j.log.Warn("cluster: a member to join is not reached yet", "addr", addr, "for", w.warn, "err", err)
	w.warn *= 2
}

// join says hello to all addresses of addr at once, and joins the members that answer. It returns
// nil if a member answers that is joined or seen alive.
func (j *joiner) join(addr string, again bool) error {
	to, self, err := j.addresses(addr)
	if err != nil {
		j.count.unresolved.Add(1)
		return err
	}
	errs := make([]error, len(to))
	slots := make(chan struct{}, mostExchanges)
	var busy sync.WaitGroup
	for i, at := range to { // all addresses: their members may not know each other
		busy.Go(func() { errs[i] = j.joinAt(at, again, slots) })
	}
	busy.Wait()
	if j.life.Err() != nil {
		return directory.ErrClosed
	}
	if slices.Contains(errs, nil) {
		return nil
	}
	failed := slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, mux.ErrOwn) })
	self = self || len(failed) < len(to)
	j.count.notJoined.Add(1)
	why := errors.Join(failed[:min(len(failed), mostNamed)]...)
	switch {
	case len(failed) == 0 && self:
		return fmt.Errorf("%w: %s", mux.ErrOwn, addr)
	case errors.Is(why, mux.ErrRefused): // the reason is known
		return fmt.Errorf("no member is joined at %s: %w", addr, why)
	case len(failed) == 0:
		return fmt.Errorf("%s: no address that can be reached from %s", addr, j.mux.Addr())
	}
	return fmt.Errorf("no member answers at %s: it may be down, or have another cluster name or another key: %w", addr, why)
}

// mostNamed limits the addresses that an error names.
const mostNamed = 8

// joinAt joins the member at one address. A packet goes first: a member that is cut off would hold
// up a connection for seconds, and a member that does not receive packets is of no use. If no
// member answers, joinAt finds out whether a program refuses this one there. slots limits the
// exchanges under way.
func (j *joiner) joinAt(at netip.AddrPort, again bool, slots chan struct{}) error {
	udp := net.UDPAddrFromAddrPort(at)
	ctx, end := context.WithTimeout(j.life, joinTime)
	defer end()
	probed := make(chan error, 1)
	go j.probe(ctx, udp, end, probed)
	node, err := j.mux.Hello(ctx, udp)
	if err == nil {
		end()
		<-probed
		slots <- struct{}{}
		defer func() { <-slots }()
		if !again && j.accounted.Load() && j.members.alive(node) {
			return nil
		}
		if err = j.exchange(at.String()); err == nil && j.former.Swap(false) {
			if err = j.exchange(at.String()); err != nil {
				j.former.Store(true)
			}
		}
		if err != nil { // it lives: it has answered
			err = &mux.RefusedError{Addr: at.String(), Err: fmt.Errorf("it answers datagrams, and its stream fails: %w", err)}
		}
		j.recordRefusal(at, err)
		return err
	}
	isOwn := errors.Is(err, mux.ErrOwn)
	if isOwn {
		end()
	}
	if refusal := <-probed; errors.Is(refusal, mux.ErrRefused) && !isOwn { // this member closes such a stream too
		err = refusal
	} else {
		j.members.silentAt(at.String())
	}
	j.recordRefusal(at, err)
	return err
}

// probe probes an address that does not answer a hello, and sends the result to probed. A program
// that has refused this member a moment ago is not asked again. probe calls end if no program has
// the port: no answer to the hello will come.
func (j *joiner) probe(ctx context.Context, at *net.UDPAddr, end func(), probed chan<- error) {
	j.mu.Lock()
	r := j.refusals[at.AddrPort()]
	j.mu.Unlock()
	if r != nil && time.Since(r.asked) < probeAgain {
		probed <- r.err
		return
	}
	if !j.members.isUnproven(at.String()) {
		select {
		case <-time.After(probeAfter):
		case <-ctx.Done():
			probed <- nil
			return
		}
	}
	err := j.mux.Probe(ctx, at)
	if sockerr.Is(err, syscall.ECONNREFUSED) {
		end()
	}
	probed <- err
}

// A refusal is what is known of a program that refuses this member. It may be a member that has
// another key, another name of the cluster or other certificates, or one behind a firewall. It
// lives, so what it has cannot be denied for certain.
type refusal struct {
	err   error
	asked time.Time // when it was asked last
	seen  time.Time // when it was looked at last
}

// recordRefusal records how an attempt to join at an address has ended.
func (j *joiner) recordRefusal(at netip.AddrPort, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !errors.Is(err, mux.ErrRefused) {
		delete(j.refusals, at)
	} else if now, r := time.Now(), j.refusals[at]; r == nil || r.err != err {
		j.refusals[at] = &refusal{err: err, asked: now, seen: now}
	} else {
		r.seen = now
	}
	j.refused.Store(len(j.refusals) > 0)
}

// forgetRefusalsLocked forgets refusals at addresses that are not looked at any more, or where a
// member is seen alive: an attempt to join a member may fail for a passing reason.
func (j *joiner) forgetRefusalsLocked(now time.Time) {
	if len(j.refusals) > 0 {
		alive := j.members.aliveAddresses()
		maps.DeleteFunc(j.refusals, func(at netip.AddrPort, r *refusal) bool {
			return alive[at.String()] || now.Sub(r.seen) > refusalTime
		})
		j.refused.Store(len(j.refusals) > 0)
	}
}

// settleRefusalsLocked forgets refusals that are over. It logs a warning when this member begins to
// be refused, and a line when that is over.
func (j *joiner) settleRefusalsLocked(now time.Time) {
	j.forgetRefusalsLocked(now)
	switch n := len(j.refusals); {
	case n > 0 && !j.warned:
		j.warned = true
		addrs, _ := j.refusalsLocked()
		// Cause: programs at these addresses accept connections, and refuse this node. Remedy: [use
		// the cluster's key](CLUSTER.md#what-happens-when-members-refuse-each-other), name and
		// certificates; open the port for UDP and TCP.
		j.log.Warn("cluster: members refuse this node", "members", n, "addrs", addrs, "err", j.refusals[netip.MustParseAddrPort(addrs[0])].err)
	case n == 0 && j.warned:
		j.warned = false
		j.log.Info("cluster: no member refuses this node any more")
	}
}

// refusalsLocked returns the sorted addresses at which this member is refused, mostNamed at most,
// and the same addresses with their reasons.
func (j *joiner) refusalsLocked() (addrs, reasons []string) {
	for at := range j.refusals {
		addrs = append(addrs, at.String())
	}
	slices.Sort(addrs)
	addrs = addrs[:min(len(addrs), mostNamed)]
	for _, at := range addrs {
		why := j.refusals[netip.MustParseAddrPort(at)].err
		var refused *mux.RefusedError
		if errors.As(why, &refused) {
			why = refused.Err
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", at, why))
	}
	return addrs, reasons
}

// stats fills in what the joiner knows.
func (j *joiner) stats(s *Stats) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.forgetRefusalsLocked(time.Now())
	s.LookedAt, s.Refused = len(j.looking), len(j.refusals)
	_, s.Refusing = j.refusalsLocked()
}

// heardHello handles the hello of another member. If that has met this one, it does not join it. So
// this member joins the other one, unless it is seen alive soon.
func (j *joiner) heardHello(id resource.NodeID, addr *net.UDPAddr) {
	if j.members.alive(id) {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	// The hello may be a recorded one, so the number of joins is limited.
	if len(j.greeters)+len(j.looking) < mostMissed {
		j.greeters[id] = addr.String()
	}
}

// heardBeacon handles the beacon of another member.
func (j *joiner) heardBeacon(id resource.NodeID, addr *net.UDPAddr) {
	j.mu.Lock()
	defer j.mu.Unlock()
	// The beacon may be a recorded one, so the number of joins is limited.
	if !j.members.alive(id) && len(j.looking) < mostMissed {
		j.lookLocked(addr.String(), false)
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
// and has tried all addresses to join: the other members may be as new as this one.
func (j *joiner) learnedLocked() bool {
	others, _ := j.members.aliveOtherMembers(1)
	if len(others) == 0 || j.cfg.Follows {
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
		if !w.own && !w.reached {
			addrs = append(addrs, addr)
		}
	}
	slices.Sort(addrs)
	return addrs
}

// incomplete returns nil if this member knows all members, so that a no of all of them is definite.
// Otherwise it returns an error that matches directory.ErrPartial. What a program has that refuses
// this member is not known either. A question calls incomplete before and after it asks.
func (j *joiner) incomplete() error {
	if err := j.members.contradiction(time.Now()); err != nil {
		return err
	}
	if j.complete.Load() && !j.refused.Load() {
		return j.members.unsureOf()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.forgetRefusalsLocked(time.Now())
	switch {
	case len(j.refusals) > 0:
		_, reasons := j.refusalsLocked()
		return fmt.Errorf("%w: %d nodes refuse this one: %s", directory.ErrPartial, len(j.refusals), strings.Join(reasons, "; "))
	case j.complete.Load():
		return j.members.unsureOf()
	case j.members.firstMetAt().IsZero():
		if addrs := j.unmetLocked(); len(addrs) > 0 {
			return fmt.Errorf("%w: no other member has been reached: %s", directory.ErrPartial, strings.Join(addrs, ", "))
		}
		return fmt.Errorf("%w: no other member has been reached", directory.ErrPartial)
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
