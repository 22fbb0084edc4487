// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/internal/os/sockerr"
)

// Errors about the address of a port. Both mean that the port could not be opened.
var (
	// ErrNoAddress is returned when the machine does not have the address of Config.Bind at
	// present. It may get the address later.
	ErrNoAddress = errors.New("mux: the machine does not have the address")
	// ErrChoice is returned when several addresses of the machine fit Config.Bind. The error lists
	// them.
	//
	// Cause: `--bind` leads to several addresses, and no member to join decides. Remedy: [name
	// one](CLUSTER.md#which-address-a-member-has).
	ErrChoice = errors.New("mux: several addresses of the machine fit")
)

const (
	defaultPort = "7946"          // of a network that is given without a port
	lookupTime  = 2 * time.Second // for looking up names
)

// SplitBind splits Config.Bind into a host and a port. The host is an IP address, a name, an
// interface or a network such as 10.0.0.0/8. A network may lack the port, which is 7946 then.
func SplitBind(bind string) (host, port string, err error) {
	if _, err := netip.ParsePrefix(bind); err == nil {
		return bind, defaultPort, nil
	}
	return net.SplitHostPort(bind)
}

// A place is where a port listens.
type place struct {
	network string
	at      string // HOST:PORT to listen at
	// advertised is the address that other members are told; nil: that of the listener.
	advertised net.IP
}

// A candidate is an address of this machine that other members may be told.
type candidate struct {
	ip  netip.Addr
	ifi string
	// isApart means that the interface is a bridge without a route that leads beyond its own
	// network, such as docker0. Other machines often have the same address there.
	isApart bool
}

// findPlace returns where the port listens. If Bind does not name one address, other members are
// told the source address of the route to the first member to join, or else the only candidate.
func (x *Mux) findPlace(ctx context.Context) (place, error) {
	host, port, err := SplitBind(x.cfg.Bind)
	if err != nil {
		return place{}, fmt.Errorf("mux: binding: %w", err)
	}
	if host == "" {
		host = "::"
	}
	ip, err := netip.ParseAddr(host)
	if _, e := net.InterfaceByName(ip.Zone()); ip.Zone() != "" && e != nil {
		return place{}, fmt.Errorf("%w: %s: %w", ErrNoAddress, host, e)
	}
	if err == nil && !ip.IsUnspecified() {
		return place{network: family(ip), at: net.JoinHostPort(host, port)}, nil
	}
	everywhere := err == nil
	all, err := candidates()
	if err != nil {
		return place{}, err
	}
	if everywhere {
		all = slices.DeleteFunc(all, func(c candidate) bool { return c.ip.IsLoopback() || ip.Is4() && !c.ip.Is4() })
	} else if all, err = named(ctx, host, all); err != nil {
		return place{}, err
	}
	told, err := choose(all, x.toward(ctx), everywhere)
	if err != nil {
		return place{}, fmt.Errorf("mux: finding the address of %s: %w", x.cfg.Bind, err)
	}
	if !everywhere {
		return place{network: family(told), at: net.JoinHostPort(told.String(), port)}, nil
	}
	p := place{network: family(ip), at: net.JoinHostPort(host, port), advertised: told.AsSlice()}
	if strings.HasPrefix(x.cfg.Bind, ":") { // casts go out by the same socket, which has one family
		p.network, p.at = family(told), ":"+port
	}
	return p, nil
}

// family returns the network to listen to for an address.
func family(ip netip.Addr) string {
	if ip.Unmap().Is4() {
		return "tcp4"
	}
	return "tcp"
}

// named returns those of the candidates that host means: an interface, a network, or the addresses
// of a name.
func named(ctx context.Context, host string, all []candidate) ([]candidate, error) {
	if n, err := netip.ParsePrefix(host); err == nil {
		return slices.DeleteFunc(all, func(c candidate) bool { return !n.Contains(c.ip) }), nil
	}
	if _, err := net.InterfaceByName(host); err == nil {
		return slices.DeleteFunc(all, func(c candidate) bool { return c.ifi != host }), nil
	}
	ips, err := lookup(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("%w: %s is no interface at present, and no name: %w", ErrNoAddress, host, err)
	}
	var here []candidate
	for _, ip := range ips {
		i := slices.IndexFunc(all, func(c candidate) bool { return c.ip == ip })
		switch {
		case i >= 0:
			here = append(here, all[i])
		case ip.IsLoopback():
			here = append(here, candidate{ip: ip, ifi: "lo"}) // each address of 127.0.0.0/8 is there
		}
	}
	if len(here) == 0 {
		return nil, fmt.Errorf("%w: %s leads to %v", ErrNoAddress, host, ips)
	}
	if slices.ContainsFunc(here, func(c candidate) bool { return !c.ip.IsLoopback() }) {
		here = slices.DeleteFunc(here, func(c candidate) bool { return c.ip.IsLoopback() })
	}
	return here, nil
}

// lookup returns the addresses of a host, which may be an address itself.
func lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	for i := range ips {
		ips[i] = ips[i].Unmap()
	}
	return ips, err
}

// A direction is what the routes to the members to join say.
type direction struct {
	sources    []netip.Addr // of the routes to the first member that there is a route to
	isUnrouted bool         // there is no route to any of them
	isUnknown  bool         // some names did not resolve
}

// toward returns the direction of Config.Toward. Members on the loopback interface say nothing. No
// packet is sent.
func (x *Mux) toward(ctx context.Context) (d direction) {
	if x.cfg.Toward == nil {
		return direction{}
	}
	all, err := x.cfg.Toward(ctx)
	d.isUnknown = err != nil
	looking, cancel := context.WithTimeout(ctx, lookupTime) // for all names together
	defer cancel()
	for _, at := range all {
		host, port, err := net.SplitHostPort(at)
		if err != nil {
			continue
		}
		ips, err := lookup(looking, host)
		d.isUnknown = d.isUnknown || err != nil
		for _, ip := range ips {
			if ip.IsLoopback() {
				continue
			}
			nc, err := new(net.Dialer).DialContext(ctx, "udp", net.JoinHostPort(ip.String(), port))
			if err != nil {
				d.isUnrouted = true
				continue
			}
			if a := nc.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(); !slices.Contains(d.sources, a) {
				d.sources = append(d.sources, a)
			}
			nc.Close()
		}
		if len(d.sources) > 0 {
			return direction{sources: d.sources}
		}
	}
	return d
}

// choose returns the one of the candidates that other members are told. everywhere means that the
// operator has not restricted the candidates: then a bridge of the machine's own is none.
func choose(all []candidate, d direction, everywhere bool) (netip.Addr, error) {
	if by := slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return !slices.Contains(d.sources, c.ip) }); len(by) > 0 {
		return only(by)
	}
	if everywhere && d.isUnrouted && len(all) > 0 {
		return netip.Addr{}, fmt.Errorf("%w: there is no route to a member to join; the candidates are %s", ErrNoAddress, list(all))
	}
	likely := slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return c.isApart })
	if len(likely) == 0 && !everywhere {
		likely = all
	}
	likely = preferred(likely)
	switch {
	case len(likely) == 0:
		return netip.Addr{}, fmt.Errorf("%w: no interface that is up has one", ErrNoAddress)
	case len(likely) > 1 && d.isUnknown:
		return netip.Addr{}, fmt.Errorf("%w: no name of a member to join resolves, which would decide between %s", ErrNoAddress, list(likely))
	}
	return only(likely)
}

// preferred returns the candidates of IPv4, or all if there is none.
func preferred(all []candidate) []candidate {
	if slices.ContainsFunc(all, func(c candidate) bool { return c.ip.Is4() }) {
		return slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return !c.ip.Is4() })
	}
	return all
}

// only returns the one address of some candidates, or an error that lists them.
func only(all []candidate) (netip.Addr, error) {
	all = preferred(all)
	for _, c := range all {
		if c.ip != all[0].ip {
			return netip.Addr{}, fmt.Errorf("%w: %s: name one, its interface or its network", ErrChoice, list(all))
		}
	}
	return all[0].ip, nil
}

// list returns the candidates as text.
func list(all []candidate) string {
	var text []string
	for _, c := range all {
		text = append(text, fmt.Sprintf("%s (%s)", c.ip, c.ifi))
	}
	return strings.Join(text, ", ")
}

// candidates returns the addresses of the interfaces that are up, without those that are valid on
// one link alone.
func candidates() (all []candidate, err error) {
	ifis, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("mux: listing the interfaces: %w", err)
	}
	beyond := routed()
	for _, ifi := range ifis {
		addrs, err := ifi.Addrs()
		if err != nil || ifi.Flags&net.FlagUp == 0 {
			continue
		}
		isApart := !beyond[ifi.Name] && isBridge(ifi.Name)
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if ip, _ := netip.AddrFromSlice(n.IP); ip.IsValid() && !ip.Unmap().IsLinkLocalUnicast() {
					all = append(all, candidate{ip.Unmap(), ifi.Name, isApart})
				}
			}
		}
	}
	return all, nil
}

// routed returns the interfaces with a route through a gateway or to every address. Where the
// kernel does not list routes, it returns nil.
func routed() map[string]bool {
	by := map[string]bool{}
	fields := func(file string) (rows [][]string) {
		b, _ := os.ReadFile(file)
		for line := range strings.Lines(string(b)) {
			rows = append(rows, strings.Fields(line))
		}
		return rows
	}
	const none4, none6 = "00000000", "00000000000000000000000000000000"
	for _, f := range fields("/proc/thread-self/net/route") { // Iface Destination Gateway …
		if len(f) > 2 && (f[1] == none4 || f[2] != none4) {
			by[f[0]] = true
		}
	}
	for _, f := range fields("/proc/thread-self/net/ipv6_route") { // destination, length, source, length, gateway …
		if len(f) == 10 && f[9] != "lo" && (f[0] == none6 && f[1] == "00" || f[4] != none6) {
			by[f[9]] = true
		}
	}
	return by
}

// Lost returns an error that matches ErrNoAddress if the machine does not have the port's address
// any more. It returns nil if that cannot be said.
func (x *Mux) Lost() error {
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: x.adv.IP, Zone: x.adv.Zone})
	if err == nil {
		pc.Close()
	}
	if sockerr.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("%w: %s is gone", ErrNoAddress, x.adv.IP)
	}
	return nil
}

// absent makes an error of the kernel match ErrNoAddress if it says that the machine does not have
// the address.
func absent(err error) error {
	if sockerr.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("%w: %w", ErrNoAddress, err)
	}
	return err
}
