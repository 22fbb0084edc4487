// SPDX-License-Identifier: Apache-2.0

package ofi

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/rocl-go/rocl/ofi/internal/fabric"
	"github.com/rocl-go/rocl/subsys"
)

// ranks are the providers that New("") tries, the fastest network first.
var ranks = []string{"verbs;ofi_rxm", "psm2", "opx", "efa", "cxi", "tcp;ofi_rxm"}

// hostless are the providers whose endpoints have no host in their addresses. They are bound to the
// domain, or to the first that the provider has.
var hostless = []string{"psm2", "psm3", "opx", "efa", "cxi", shm}

const shm = "shm"

// New returns the transport over a provider of libfabric, such as "tcp;ofi_rxm", "sockets" or
// "verbs;ofi_rxm" (fi_info lists those of a machine). Its name is "ofi+" and the provider's name up
// to the semicolon, and its addresses are ofi+tcp://host:port. If provider is empty, the name is
// "ofi", and Listen takes the first of verbs;ofi_rxm, psm2, opx, efa, cxi and tcp;ofi_rxm that the
// machine has for the address. Two contexts with different providers do not reach each other over
// it.
//
// By default the transport listens on a free port of 127.0.0.1. Listen returns
// [subsys.ErrUnavailable] if the machine has no libfabric or no such provider.
func New(provider string, opts ...Option) subsys.Transport {
	core, _, _ := strings.Cut(provider, ";")
	t := transport{provider: provider, name: "ofi+" + core}
	if provider == "" {
		t.name = "ofi"
	}
	for _, o := range opts {
		o(&t)
	}
	return t
}

// An Option changes the transport that New returns.
type Option func(*transport)

// WithDomain makes the transport use a domain of the provider: a network interface, such as
// "mlx5_0". fi_info lists them.
func WithDomain(name string) Option { return func(t *transport) { t.domain = name } }

// WithShm allows the provider shm, which Listen refuses otherwise. When a peer process is killed
// or stopped while it holds a lock of libfabric in its shared memory, a Send to it does not return.
func WithShm() Option { return func(t *transport) { t.allowsShm = true } }

var errShm = errors.New("shm may wait forever for a killed process, see WithShm")

type transport struct {
	provider, name, domain string
	allowsShm              bool
}

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
	ep, err := t.endpoint(ip)
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return open(t, ln.(*net.TCPListener), ip, ep, cfg), nil
}

// endpoint opens an endpoint, and sets the provider if the program has named none.
func (t *transport) endpoint(ip netip.Addr) (ep *fabric.Endpoint, err error) {
	providers := []string{t.provider}
	switch t.provider {
	case "":
		providers = ranks
	case shm:
		if !t.allowsShm {
			return nil, errShm
		}
	}
	for _, t.provider = range providers {
		at := ip.String()
		if slices.Contains(hostless, t.provider) {
			at = ""
		}
		if ep, err = fabric.OpenIn(t.domain, t.provider, at, mostOps); err == nil {
			return ep, nil
		}
	}
	return nil, err
}

// isRXD reports whether the provider is ofi_rxd, which loses operations, and ends none whose peer
// refuses them or has ended.
func (t transport) isRXD() bool { return strings.HasSuffix(t.provider, ";ofi_rxd") }

// isLocal reports whether the provider's endpoints have no host, because they reach this machine
// only.
func (t transport) isLocal() bool { return t.provider == shm }

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
