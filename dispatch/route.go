// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rocl-go/rocl/dispatch/internal/life"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// A link that works is moved to a better route when there is one. The move is a handshake over
// another connection, with one difference: the old connection carries frames until the new one is
// attached.
//
// Each context decides by the order of its ports which of two routes is better. A move must be
// better for the context that proposes it and no worse for its peer. So two contexts with different
// preferences do not move a link to and fro. The side that dialled proposes moves, because it knows
// which addresses it did not reach. It tries again with growing pauses, but not while nothing
// travels. A context that opens a port proposes a move once (Reconsider).
//
// A route that came up and broke at once backs off: for a while it is used only if the link has no
// other.
const (
	shortLived = time.Second            // the life of a connection below which its route has not worked
	answerMost = 100 * time.Millisecond // the time that the peer has to answer over a better connection after the former one has ended
)

// A routeBackoff says until when a route is used only if the link has no other.
type routeBackoff struct {
	until time.Time
	wait  time.Duration // the length of the next such time
}

// transportOf returns the name of the transport of a port or an address.
func transportOf(addr string) string {
	name, _, _ := strings.Cut(addr, "://")
	return name
}

// A route is a port, and the addresses of its transport that it is used for.
type route struct {
	subsys.Port
	transport string
	net       netip.Prefix // the network of these addresses; the zero value: all
}

// newRoutes returns a route for each port, in the same order.
func newRoutes(ports []subsys.Port) (out []route) {
	for _, p := range ports {
		out = append(out, route{Port: p, transport: transportOf(p.Addr())})
	}
	return out
}

// String returns the name of a route as lanes write it.
func (r *route) String() string {
	if r.net.IsValid() {
		return r.transport + "://" + r.net.String()
	}
	return r.transport
}

// leads reports whether the address of a peer belongs to r.
func (r *route) leads(addr string) bool {
	if transportOf(addr) != r.transport || !r.net.IsValid() {
		return transportOf(addr) == r.transport
	}
	u, err := url.Parse(addr)
	if err != nil {
		return false
	}
	host, err := netip.ParseAddr(u.Hostname())
	return err == nil && r.net.Contains(host.Unmap())
}

// reaches reports whether one of addrs belongs to r and can be dialled.
func (r *route) reaches(addrs []string) bool {
	return slices.ContainsFunc(addrs, func(a string) bool { return r.leads(a) && r.Reaches(a) })
}

// routes returns the routes that l may use, best first. The route within the process is left out,
// because it makes no connections.
func (l *link) routes() []route {
	return slices.DeleteFunc(l.d.routes(l.key.lane), func(r route) bool { _, isLocal := r.Port.(subsys.LocalPort); return isLocal })
}

// routes returns the routes that a lane may use, best first.
func (d *Dispatcher) routes(lane Lane) []route {
	d.mu.RLock()
	routes := newRoutes(d.ports)
	d.mu.RUnlock()
	return lane.order(routes)
}

// rank returns the place of c's route in the order of routes; the best has 0.
func rank(routes []route, c subsys.Conn) int {
	i := slices.IndexFunc(routes, func(r route) bool {
		return r.transport == c.Transport() && (!r.net.IsValid() || r.leads(c.Remote()))
	})
	if i < 0 {
		return len(routes)
	}
	return i
}

// better returns the routes that are better than that of c.
func better(routes []route, c subsys.Conn) []route { return routes[:rank(routes, c)] }

// worseLocked reports whether c is on a worse route than the present connection. mu must be held.
func (l *link) worseLocked(c subsys.Conn) bool {
	routes := l.routes()
	return rank(routes, c) > rank(routes, l.conn)
}

// reach reports whether one of routes reaches one of addrs.
func reach(routes []route, addrs []string) bool {
	return slices.ContainsFunc(routes, func(r route) bool { return r.reaches(addrs) })
}

// A neighbour is another context of the process, or the context itself.
type neighbour struct {
	*Dispatcher        // nil: none
	at, home    string // the address of the neighbour's port, and of this context's
}

// neighbour returns the peer of a link, if that is in this process and the best route to it is the
// one within the process. The error is not nil if the peer is in this process and one of the two
// contexts refuses the other.
func (d *Dispatcher) neighbour(k linkKey) (_ neighbour, err error) {
	peer, routes := k.peer, d.routes(k.lane)
	for i, r := range routes {
		p, ok := r.Port.(subsys.LocalPort)
		if !ok {
			continue
		}
		here, at := p.Local(peer)
		o, ok := here.(*Dispatcher)
		if !ok {
			continue
		}
		trust, theirs := d.trust(), o.trust()
		if err = cmp.Or(trust.admits(&theirs, peer), trust.checkTransport(peer, r.transport), theirs.checkTransport(d.self, r.transport)); err != nil {
			continue
		}
		better := slices.DeleteFunc(routes[:i], func(r route) bool { return trust.checkTransport(peer, r.transport) != nil })
		if reach(better, o.Addrs()) {
			return neighbour{}, nil
		}
		return neighbour{o, at, p.Addr()}, nil
	}
	return neighbour{}, err
}

// divide returns which of routes may be used now, and which back off because they have not worked
// lately, both in the same order.
func (l *link) divide(routes []route) (usable, backingOff []route) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now() // one moment for all: a route whose backoff ends meanwhile is in one of the two
	for _, r := range routes {
		if s := l.backoffs[r.String()]; s != nil && now.Before(s.until) {
			backingOff = append(backingOff, r)
		} else {
			usable = append(usable, r)
		}
	}
	return usable, backingOff
}

// updateBackoffLocked updates the backoff of c's route after connection c was lost: a route whose
// connection broke at once backs off. mu must be held.
func (l *link) updateBackoffLocked(c subsys.Conn) {
	routes := l.routes()
	i := rank(routes, c)
	if i == len(routes) {
		return
	}
	name := routes[i].String()
	if time.Since(l.since) >= shortLived {
		delete(l.backoffs, name)
		return
	}
	s := l.backoffs[name]
	if s == nil {
		s = &routeBackoff{wait: shortLived}
		if l.backoffs == nil {
			l.backoffs = map[string]*routeBackoff{}
		}
		l.backoffs[name] = s
	}
	s.until = time.Now().Add(s.wait)
	s.wait = min(2*s.wait, life.RetryMost)
}

// startMoveLocked starts the searcher that tries better routes. mu must be held.
func (l *link) startMoveLocked() {
	ctx, cancel := context.WithCancel(l.d.ctx)
	l.endMove = cancel
	l.d.running.Add(1)
	go l.move(ctx, l.conn)
}

// move is the searcher that tries to move the link from one connection to a connection over a
// better route. ctx ends when the first connection breaks.
func (l *link) move(ctx context.Context, from subsys.Conn) {
	defer l.d.running.Done()
	isBest, err := l.tryBetter(ctx, from)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endMove()
	if l.conn == from && !isBest {
		l.d.log.Debug("dispatch: no better route", "peer", l.peer, "transport", from.Transport(), "err", err)
	}
	l.actLocked(l.life.Moved(isBest, l.s.Expected(), l.s.Next()))
}

// tryBetter tries each of the peer's addresses once, on better routes than that of a connection. It
// reports whether the link has the best route then.
func (l *link) tryBetter(ctx context.Context, from subsys.Conn) (isBest bool, err error) {
	addrs, err := l.addresses(ctx)
	if err != nil {
		return false, err
	}
	routes := better(l.routes(), from)
	if len(routes) > 0 && !reach(routes, addrs) { // these addresses may be old: the second answer is the newest
		if addrs, err = l.addresses(ctx); err != nil {
			return false, err
		}
	}
	usable, _ := l.divide(routes)
	_, err = l.dialRoutes(ctx, usable, addrs, from, shakeTimeout)
	l.mu.Lock()
	left := routes
	if l.conn != nil {
		left = better(routes, l.conn)
	}
	l.mu.Unlock()
	return !reach(left, addrs), err
}

// dialRoutes dials addrs over routes, until l has a connection other than from, which may be nil,
// or has ended. Each address has patience to answer. failed has the routes that could not be
// dialled at all, with their errors. err is the last address's error, or an error that deniesDeath.
func (l *link) dialRoutes(ctx context.Context, routes []route, addrs []string, from subsys.Conn, patience time.Duration) (failed map[string]error, err error) {
	if _, err = l.d.neighbour(l.key); err == nil {
		err = fmt.Errorf("no transport reaches any of %q", addrs)
	}
	tried := map[string]bool{} // a second port of a transport reaches no more addresses than the first
	for i := range routes {
		r := &routes[i]
		for _, a := range addrs {
			if tried[a] || !r.leads(a) || !r.Reaches(a) {
				continue
			}
			tried[a] = true
			l.noteAttempt("dialling " + a)
			attempt, cancel := timeLimit(ctx, patience)
			e := l.d.shake(attempt, l, r.Port, a, from)
			cancel()
			if e == nil {
				return failed, nil
			}
			if len(tried) == 1 || !deniesDeath(err) {
				err = e
			}
			if d := (*dialError)(nil); errors.As(e, &d) && !hasEnded(ctx) {
				if failed == nil {
					failed = map[string]error{}
				}
				failed[r.String()] = d.err
			}
			l.mu.Lock()
			got := l.conn != from || l.life.HasEnded()
			l.mu.Unlock()
			if got {
				return failed, nil
			}
		}
	}
	return failed, err
}

// A dialError is an error of a transport, before any handshake.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// isBest reports whether no better route is known than the one just found by dialling. failed has
// the routes that could not be dialled, with their errors.
func (l *link) isBest(routes []route, addrs []string, failed map[string]error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return true
	}
	left := better(routes, l.conn)
	if !reach(left, addrs) {
		return true
	}
	for i := range left {
		t := left[i].String()
		if err := failed[t]; err != nil && !errors.Is(err, subsys.ErrNoPeer) && l.d.isFirstComplaint(t) {
			// Cause: a better transport could not be dialled. Remedy: see `err`: firewall,
			// namespace, descriptors.
			l.d.log.Warn("dispatch: a transport failed, using another one; logged once per transport", "transport", t, "instead", l.conn.Transport(), "peer", l.peer, "err", err)
		}
	}
	return false
}

// isFirstComplaint reports whether it is called for a route for the first time.
func (d *Dispatcher) isFirstComplaint(route string) bool {
	_, said := d.complained.LoadOrStore(route, true)
	return !said
}

// A Route describes the transport of a link, or of a passage within the process, and the messages
// that it has carried.
type Route struct {
	Peer      resource.GID `json:"peer"`               // the other context
	Lane      Lane         `json:"lane,omitempty"`     // the transports that a rule allows; "": the common lane
	Transport string       `json:"transport"`          // "" while there is no connection
	Remote    string       `json:"remote"`             // the peer's address
	Since     time.Time    `json:"since,omitzero"`     // when that connection was made
	Changes   uint64       `json:"changes"`            // moves from one transport to another
	Resumed   uint64       `json:"resumed"`            // broken connections that the link survived
	Dialling  string       `json:"dialling,omitempty"` // why there is no connection, while the link tries to make one

	Sent          uint64 `json:"sent"` // messages, over all connections of the link
	Received      uint64 `json:"received"`
	SentBytes     uint64 `json:"sent_bytes"`
	ReceivedBytes uint64 `json:"received_bytes"`
}

// Routes returns the routes of all links, and those within the process, ordered by peer and lane.
func (d *Dispatcher) Routes() (all []Route) {
	d.countLocal()
	d.eachLink(func(l *link) { all = append(all, l.route()) })
	d.mu.RLock()
	for _, e := range d.passages.byPeer {
		all = append(all, e.route())
	}
	d.mu.RUnlock()
	slices.SortFunc(all, func(a, b Route) int {
		return cmp.Or(a.Peer.Compare(b.Peer), cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Transport, b.Transport))
	})
	return all
}

// route describes the link for Routes.
func (l *link) route() Route {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.routeLocked()
}

// routeLocked is route with mu held.
func (l *link) routeLocked() Route {
	l.flushCountersLocked()
	t := &l.traffic
	r := Route{
		Peer: l.peer, Lane: l.key.lane, Changes: t.moved, Resumed: t.resumed,
		SentBytes: t.sentB, ReceivedBytes: t.receivedB,
	}
	if l.conn != nil {
		r.Transport, r.Remote, r.Since = l.conn.Transport(), l.conn.Remote(), l.since
	} else if !l.outage.since.IsZero() && !l.life.HasEnded() {
		r.Dialling = l.outage.whyNone().Error()
	}
	for _, n := range t.sent {
		r.Sent += n
	}
	for _, n := range t.received {
		r.Received += n
	}
	return r
}
