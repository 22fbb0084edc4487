// SPDX-License-Identifier: Apache-2.0

package context

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/os/loopback"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// A listenAddr is where one port listens. If at is empty, the transport chooses the address. named
// is set if WithListen names the address.
type listenAddr struct {
	transport subsys.Transport
	at        string
	named     bool
}

// listenAddrs returns where the context listens. A transport listens at the addresses that
// WithListen gives it, if any. Otherwise it chooses an address, which serves this node. On a node
// in a cluster, one transport also listens on the host by which the other nodes know this node:
// TCP, or the sealer if the cluster has a key.
func (cfg *Config) listenAddrs(t *directory.Terms, sealer subsys.Transport) (all []listenAddr) {
	clusterTransport := "tcp"
	if t.Sealed {
		clusterTransport = "tls"
	}
	for _, tr := range cfg.withSealer(sealer) {
		before := len(all)
		for _, u := range cfg.Listen {
			if strings.HasPrefix(u, tr.Name()+"://") {
				all = append(all, listenAddr{tr, u, true})
			}
		}
		if len(all) > before {
			continue
		}
		if tr.Name() != clusterTransport || t.Host == "" {
			all = append(all, listenAddr{tr, "", false})
			continue
		}
		if clusterTransport == "tcp" && !isHere(t.Host) {
			all = append(all, listenAddr{tr, "", false})
		}
		all = append(all, listenAddr{tr, clusterTransport + "://" + net.JoinHostPort(t.Host, "0"), false})
	}
	return all
}

// key returns the key of the address in Ports.listening.
func (a listenAddr) key() string { return a.transport.Name() + " " + a.at }

// listen opens a port at each address. An address that WithListen does not name, and that this
// machine does not give, is skipped with a log line, unless no port at all can be opened.
func (p *Ports) listen(addrs []listenAddr) error {
	var missing error
	open := len(p.listening) > 0
	for _, a := range addrs {
		err := p.disp.Listen(a.transport, a.at)
		if p.isClusterAddr(a) {
			if p.lacks(a, err) {
				missing = err
				continue // Follow tries again
			}
		}
		switch {
		case err == nil:
			open = true
		case !a.named && errors.Is(err, subsys.ErrUnavailable):
			missing = err
			// Cause: no shared memory, loopback, port or permission: see `err`. Remedy: name the
			// transports by `WithTransports`.
			p.cfg.Logger.Warn("rocl: a transport is not available", "transport", a.transport.Name(), "err", err)
		default:
			return err
		}
		p.listening[a.key()] = true
	}
	if !open {
		return missing
	}
	return nil
}

// isClusterAddr reports whether a is at the host by which the other nodes know this node.
func (p *Ports) isClusterAddr(a listenAddr) bool {
	return a.at != "" && !slices.Contains(p.cfg.Listen, a.at)
}

// lacks notes whether the context lacks its port for other nodes, and reports it: err is what
// listening at a has returned. Each address is warned of once.
func (p *Ports) lacks(a listenAddr, err error) bool {
	if err == nil || errors.Is(err, dispatch.ErrClosed) {
		p.lacking = ""
		return false
	}
	if p.lacking != a.at {
		p.lacking = a.at
		// Cause: the machine [lacks the address](CLUSTER.md#when-the-address-is-not-there). Remedy:
		// see to the network.
		p.cfg.Logger.Warn("rocl: other nodes do not reach this context: it listens there as soon as the machine has the address", "addr", a.at, "err", err)
	}
	return true
}

// Addrs returns the addresses at which other contexts reach this one. For a port at every address
// of the machine, they include the host by which the other nodes know this node. They do not
// include a host by which the nodes knew it before.
func (p *Ports) Addrs() (all []string) {
	host := p.dir.Terms().Host
	for _, at := range p.disp.Addrs() {
		u, err := url.Parse(at)
		if err != nil || u.Port() == "" || host == "" {
			all = append(all, at)
			continue
		}
		isNamed := slices.ContainsFunc(p.cfg.Listen, func(l string) bool { return strings.HasPrefix(l, u.Scheme+"://") })
		if a, err := netip.ParseAddr(u.Hostname()); isNamed && err == nil && a.IsUnspecified() && !isHere(host) {
			all = append(all, at, u.Scheme+"://"+net.JoinHostPort(host, u.Port()))
		} else if isNamed || isHere(u.Hostname()) || u.Hostname() == host {
			all = append(all, at)
		}
	}
	return all
}

// checkListen checks the addresses of WithListen. A transport of the context must listen at each.
// If the terms demand sealing, other nodes must not reach an address of a transport that does not
// seal.
func (cfg *Config) checkListen(t *directory.Terms, sealer subsys.Transport) error {
	for _, u := range cfg.Listen {
		if !slices.ContainsFunc(cfg.withSealer(sealer), func(t subsys.Transport) bool { return strings.HasPrefix(u, t.Name()+"://") }) {
			return fmt.Errorf("%w: %q: no transport of this context listens there", subsys.ErrAddress, u)
		}
		if name, _, _ := strings.Cut(u, "://"); t.Sealed && cfg.isUnsealed(name) && !isLoopback(u) {
			return fmt.Errorf("%w: %q: %w: listen at tls://, or let the context choose", subsys.ErrAddress, u, errBare)
		}
	}
	return nil
}

// isLoopback reports whether the host of an address is on the loopback interface.
func isLoopback(addr string) bool {
	u, err := url.Parse(addr)
	if err != nil {
		return false
	}
	return loopback.IsHost(u.Hostname())
}

// Usable returns the addresses of the context peer that are usable from here. On another
// machine a loopback address would mean that machine, so loopback addresses of other nodes are left
// out. They stay if the cluster's own address is on the loopback interface, because then all nodes
// are on one machine. In a cluster with a key, addresses of other nodes for transports that do not
// seal are left out whatever the peer claims: nothing goes to another node unencrypted.
func (p *Ports) Usable(peer resource.GID, urls []string) []string {
	if peer.Node() == p.self.Node() {
		return urls
	}
	t := p.dir.Terms()
	apart := t.Host != "" && !isHere(t.Host)
	if !apart && !t.Sealed {
		return urls
	}
	return slices.DeleteFunc(slices.Clone(urls), func(s string) bool {
		u, err := url.Parse(s)
		return err == nil && (apart && isHere(u.Hostname()) || t.Sealed && p.cfg.isUnsealed(u.Scheme))
	})
}

// isHere reports whether a host names the machine that uses the name: a loopback or unspecified
// address.
func isHere(host string) bool {
	a, err := netip.ParseAddr(host)
	return loopback.IsHost(host) || err == nil && a.IsUnspecified()
}
