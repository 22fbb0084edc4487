// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/resource"
)

// ErrRule is returned by NewLane for transports that are not valid in a rule.
//
// Cause: a rule or `Over` is invalid, or names a transport that the context lacks. Remedy: see [the
// rules](TRANSPORTS.md#rules).
var ErrRule = errors.New("rocl: invalid routing rule")

// A Lane is the list of the transports that a link may use, best first, as a text with commas. ""
// is the common lane, which uses all transports in the order of the ports. Two contexts have one
// link for each lane. Both sides dial it, and its name in the handshake tells the other side the
// list. Messages to one resource use one lane, so they keep their order.
type Lane string

// AnyTransport, as the last entry of a lane, stands for all other transports in the order of the
// ports.
const AnyTransport = "*"

// Routed is set in the serials of resources that say themselves over which lane they are reached:
// the directory has the lane.
const Routed = 1 << 30

// maxLanes limits the links of two contexts.
const maxLanes = 64

// NewLane returns the lane over the given transports, best first. An entry for a single network is
// tcp://10.1.0.0/16: the peer listens in that network. Without entries, and for AnyTransport alone,
// it is the common lane.
func NewLane(over ...string) (Lane, error) {
	for i, name := range over {
		if name == AnyTransport && i == len(over)-1 {
			continue
		}
		if _, _, err := parseOver(name); err != nil {
			return "", err
		}
		if slices.Contains(over[:i], name) {
			return "", fmt.Errorf("%w: %q is named twice", ErrRule, name)
		}
	}
	l := Lane(strings.Join(over, ","))
	switch {
	case len(l) > wire.MaxLane:
		return "", fmt.Errorf("%w: the names of the transports have %d bytes together, at most %d", ErrRule, len(l), wire.MaxLane)
	case l == AnyTransport:
		return "", nil
	}
	return l, nil
}

// ParseLane returns the lane with the given text.
func ParseLane(text string) (Lane, error) {
	if text == "" {
		return "", nil
	}
	return NewLane(strings.Split(text, ",")...)
}

// parseOver splits an entry of a lane.
func parseOver(s string) (transport string, network netip.Prefix, err error) {
	transport, cidr, cut := strings.Cut(s, "://")
	if cut {
		network, err = netip.ParsePrefix(cidr)
	}
	if err != nil || transport == "" || strings.ContainsAny(transport, ",*") {
		return "", netip.Prefix{}, fmt.Errorf("%w: %q is neither a transport nor TRANSPORT://NETWORK/BITS", ErrRule, s)
	}
	return transport, network.Masked(), nil
}

// order puts routes in the order of the lane, and leaves out the routes that the lane may not use.
func (l Lane) order(routes []route) (out []route) {
	if l == "" {
		return routes
	}
	var named []string
	for name := range strings.SplitSeq(string(l), ",") {
		transport, network, _ := parseOver(name) // NewLane has checked the name
		for _, o := range routes {
			switch {
			case name == AnyTransport && !slices.Contains(named, o.transport):
				out = append(out, o)
			case o.transport == transport:
				o.net = network
				out = append(out, o)
			}
		}
		named = append(named, name)
	}
	return out
}

// Transports returns the names of the transports in the lane.
func (l Lane) Transports() (names []string) {
	for name := range strings.SplitSeq(string(l), ",") {
		if name != "" && name != AnyTransport {
			names = append(names, transportOf(name))
		}
	}
	return names
}

// A linkKey names a link of a context.
type linkKey struct {
	peer resource.GID
	lane Lane
}

// known returns the link with the key k, or nil if there is none. It makes no link.
func (d *Dispatcher) known(k linkKey) *link {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.knownLocked(k)
}

// knownLocked is known with mu held.
func (d *Dispatcher) knownLocked(k linkKey) *link {
	for _, l := range d.links[k.peer] {
		if l.key == k {
			return l
		}
	}
	return nil
}

// linkOf returns the link of a key, and makes it if necessary.
func (d *Dispatcher) linkOf(k linkKey) (*link, error) {
	l := d.known(k)
	if l != nil {
		return l, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch l := d.knownLocked(k); {
	case l != nil:
		return l, nil
	case d.closing:
		return nil, ErrClosed
	case len(d.links[k.peer]) >= maxLanes:
		return nil, fmt.Errorf("%w: more than %d lanes with %v", ErrRule, maxLanes, k.peer)
	}
	l = newLink(d, k)
	d.links[k.peer] = append(d.links[k.peer], l)
	return l, nil
}

// lanes returns the links with peer.
func (d *Dispatcher) lanes(peer resource.GID) []*link {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Clone(d.links[peer])
}

// LaneTo returns the lane over which this context sends to the resource of the context owner with
// serial dst. isKnown is false if it does not send to the resource over a link.
func (d *Dispatcher) LaneTo(owner resource.GID, dst uint32) (lane Lane, isKnown bool) {
	for _, l := range d.lanes(owner.Context()) {
		l.mu.Lock()
		f := l.flows[dst]
		isKnown = f != nil && f.gone == nil
		l.mu.Unlock()
		if isKnown {
			return l.key.lane, true
		}
	}
	return "", false
}
