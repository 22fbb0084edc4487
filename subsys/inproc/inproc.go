// SPDX-License-Identifier: Apache-2.0

// Package inproc lets contexts of one process find each other. A message goes from the sender
// straight into the mailbox of the other context. Nothing is copied, no goroutine sleeps, and there
// is no connection. The package uses nothing but memory, so it works inside testing/synctest.
//
// A context decides at its first message to a resource whether its messages go within the process.
// They do if inproc stands before all other transports that reach the resource's context. Contexts
// that prefer another transport have a link over that transport. A link never changes to inproc,
// not even if its transport fails.
//
// A [Network] is the namespace in which contexts find each other. Its addresses are
// inproc://network/port. The network's name is random, so another process can tell that such an
// address is not for it.
//
// Any goroutine may call any method. Network.mu guards the ports of a network, and no other lock is
// taken while it is held. The package has no goroutines and calls no function of a context. When a
// context closes its port, other contexts no longer find it. What happens to its mailboxes is the
// matter of package dispatch (direct.go).
package inproc

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"

	"github.com/rocl-go/rocl/subsys"
)

// A Network holds the ports of one namespace. Make it with NewNetwork.
type Network struct {
	name string
	mu   sync.Mutex
	next uint64
	at   map[string]*port // by address
	by   map[any]*port    // by key: the latest of several
}

// NewNetwork returns an empty network with a unique name.
func NewNetwork() *Network {
	return &Network{name: strings.ToLower(rand.Text()[:12]), at: map[string]*port{}, by: map[any]*port{}}
}

// process is the network of the contexts of this process that were given no network of their own.
var process = sync.OnceValue(NewNetwork)

// New returns the transport that joins all contexts of this process.
func New() subsys.Transport { return process().Transport() }

// Transport returns the transport over this network.
func (n *Network) Transport() subsys.Transport { return transport{n} }

type transport struct{ n *Network }

func (transport) Name() string { return "inproc" }

func (t transport) Listen(addr string, cfg subsys.Config) (subsys.Port, error) {
	n := t.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr == "" {
		n.next++
		addr = fmt.Sprintf("inproc://%s/%d", n.name, n.next)
	}
	if !strings.HasPrefix(addr, "inproc://"+n.name+"/") {
		return nil, fmt.Errorf("%w: %q is not in inproc network %s", subsys.ErrAddress, addr, n.name)
	}
	if n.at[addr] != nil {
		return nil, fmt.Errorf("inproc: listening on %s: address in use", addr)
	}
	p := &port{n: n, addr: addr, key: cfg.Key, here: cfg.Here}
	n.at[addr] = p
	if p.key != nil {
		n.by[p.key] = p
	}
	return p, nil
}

// port implements [subsys.LocalPort].
type port struct {
	n         *Network
	addr      string
	key, here any
}

func (p *port) Addr() string { return p.addr }

func (p *port) Reaches(addr string) bool {
	return strings.HasPrefix(addr, "inproc://"+p.n.name+"/")
}

func (p *port) Local(key any) (here any, addr string) {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if o := p.n.by[key]; o != nil {
		return o.here, o.addr
	}
	return nil, ""
}

func (p *port) Dial(_ context.Context, addr string, _ subsys.Sink) (subsys.Conn, error) {
	return nil, fmt.Errorf("inproc: dialling %s: %w: contexts of one process need no connection", addr, subsys.ErrNoPeer)
}

func (p *port) Close() error {
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if p.n.at[p.addr] == p {
		delete(p.n.at, p.addr)
	}
	if p.n.by[p.key] == p {
		delete(p.n.by, p.key)
	}
	return nil
}
