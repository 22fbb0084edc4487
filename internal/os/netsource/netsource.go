// SPDX-License-Identifier: Apache-2.0

// Package netsource derives a common name for all connections from one machine, for limits per
// machine.
package netsource

import (
	"net"
	"net/netip"
	"strings"
)

// Of returns the source of a connection from addr: the IP address without the port, or the first
// half of an IPv6 address, since one machine commonly has all addresses of the second half.
// Addresses of another network all have the network's name as their source. The source of nil is
// empty.
func Of(addr net.Addr) string {
	if addr == nil {
		return ""
	}
	return of(addr.Network(), addr.String())
}

// OfURL is Of for the URL of a transport's address, such as tcp://10.0.0.1:5. An
// address that is not an IP address has the transport as its source.
func OfURL(url string) string {
	transport, at, _ := strings.Cut(url, "://")
	return of(transport, at)
}

func of(network, at string) string {
	ap, err := netip.ParseAddrPort(at)
	if err != nil {
		return network
	}
	ip := ap.Addr().Unmap().WithZone("")
	if p, err := ip.Prefix(64); err == nil && ip.Is6() {
		return p.String()
	}
	return ip.String()
}
