// SPDX-License-Identifier: Apache-2.0

package ofi

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/rocl-go/rocl/ofi/internal/fabric"
	"github.com/rocl-go/rocl/subsys"
)

// New returns the transport over a provider of libfabric, such as "tcp;ofi_rxm", "shm", "sockets"
// or "verbs;ofi_rxm" (fi_info lists those of a machine). Its name is "ofi+" and the provider's name
// up to the semicolon, and its addresses are ofi+tcp://host:port. By default it listens on a free
// port of 127.0.0.1. Listen returns [subsys.ErrUnavailable] if the machine has no libfabric or no
// such provider.
func New(provider string) subsys.Transport {
	core, _, _ := strings.Cut(provider, ";")
	return transport{provider: provider, name: "ofi+" + core}
}

type transport struct{ provider, name string }

// Name implements [subsys.Transport].
func (t transport) Name() string { return t.name }

// Unsealed implements [subsys.Unsealed].
func (t transport) Unsealed() {}

// Listen implements [subsys.Transport].
func (t transport) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	if addr == "" {
		addr = t.name + "://127.0.0.1:0"
	}
	host, err := t.hostOf(addr)
	if err != nil {
		return nil, err
	}
	p, err := t.listen(host, cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: listening on %s: %w: %w", t.name, addr, subsys.ErrUnavailable, err)
	}
	return p, nil
}

// listen opens the listener first, because two ports must not have one address, and opening an
// endpoint may take a second.
func (t transport) listen(host string, cfg subsys.Config) (*port, error) {
	ln, err := net.Listen("tcp", host)
	if err != nil {
		return nil, err
	}
	ip := ln.Addr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	at := ip.String()
	if t.isLocal() {
		at = ""
	}
	ep, err := fabric.Open(t.provider, at, mostOps)
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return open(t, ln.(*net.TCPListener), ip, ep, cfg), nil
}

// isLocal reports whether the provider's endpoints have no host, because they reach this machine
// only.
func (t transport) isLocal() bool { return t.provider == "shm" }

// hostOf returns the host:port of an address of the transport.
func (t transport) hostOf(addr string) (string, error) {
	u, err := url.Parse(addr)
	if err != nil || u.Scheme != t.name || u.Host == "" || u.Port() == "" {
		return "", fmt.Errorf("%w: %q is not %s://host:port", subsys.ErrAddress, addr, t.name)
	}
	return u.Host, nil
}

// reaches reports whether an endpoint bound to the address own can reach host. An endpoint on the
// loopback interface reaches only others on it, and one of a local provider only this machine.
func (t transport) reaches(own netip.Addr, host string) bool {
	name, _, _ := net.SplitHostPort(host)
	a, err := netip.ParseAddr(name)
	isLoopback := name == "localhost" || err == nil && a.IsLoopback()
	if t.isLocal() {
		return isLoopback || err == nil && a == own
	}
	return own.IsUnspecified() || own.IsLoopback() == isLoopback
}
