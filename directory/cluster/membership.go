// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/internal/os/loopback"
	"github.com/rocl-go/rocl/internal/os/sockerr"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/tls"
)

// A Membership makes whichever server of this process serves the node a member of a cluster, for as
// long as that server serves.
type Membership struct {
	name   string
	member Member
	log    *slog.Logger

	keysMu sync.Mutex // held while keys are read and put to use; guards used; taken before mu
	used   [][]byte   // the keys in use

	lookAgain time.Duration                  // how often the member's address is looked for; shorter in tests
	isLost    func(*Cluster) error           // whether the machine has lost the member's address; replaced in tests
	open      func(Config) (*Cluster, error) // Open; replaced in tests

	mu      sync.Mutex                 // guards the following fields
	cluster *Cluster                   // nil while the node is no member
	server  *directory.Server          // the server to which cluster belongs
	missing error                      // why the node is no member; nil while it is one
	met     map[resource.NodeID]string // addresses of the members that the previous cluster, of this process or another, knew
}

// NewMembership returns a membership in the cluster with the given name.
func NewMembership(name string, m Member, log *slog.Logger) *Membership {
	return &Membership{name: name, member: m, log: log, lookAgain: time.Second, isLost: func(c *Cluster) error { return c.mux.Lost() }, open: Open}
}

// Option returns the option for the directory server.
func (m *Membership) Option() directory.Option { return directory.WithMembership(m.begin) }

// Cluster returns the present cluster, or nil while there is none.
func (m *Membership) Cluster() *Cluster {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cluster
}

// set calls f with mu held.
func (m *Membership) set(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// Missing returns why the node that is served is not a member at present, or nil.
func (m *Membership) Missing() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.missing
}

// addressTime is how long begin waits for an address in use: the process that was the member before
// is about to end.
const addressTime = 2 * time.Second

// begin makes the node of s a member, and returns the function that ends that. If late is set,
// contexts of the node already wait for their directory. The node is then served in any case, and
// becomes a member when it can. The same holds if only the member's address is not there: it may
// come, and the programs of the node need it for other nodes only.
func (m *Membership) begin(s *directory.Server, late bool) (func(bool), error) {
	wait := addressTime
	if late {
		wait = 0
	}
	met := s.Met(m.name)
	m.set(func() { m.met = met })
	changed := s.KeepMet(m.known)
	life, stop := context.WithCancel(context.Background())
	opening, cancel := context.WithCancelCause(s.Opening())
	ended := context.AfterFunc(life, func() { cancel(directory.ErrClosed) })
	err := m.enter(opening, s, wait)
	ended()
	cancel(nil)
	mayCome := errors.Is(err, mux.ErrNoAddress) && s.Opening().Err() == nil
	if err != nil && !late && !mayCome {
		stop()
		return nil, err
	}
	var busy sync.WaitGroup
	if m.member.KeyFile != "" {
		busy.Go(func() { m.keepKeys(life) })
	}
	if err != nil {
		// Cause: the machine lacks the address of `--bind`, or the key cannot be used. Remedy: wait
		// for the address, or correct `err`.
		m.log.Warn("cluster: the node is served, and is not a member yet", "err", err)
		m.goWithout(s, notMember(err))
	}
	busy.Go(func() { m.keep(life, s, changed) })
	return func(handOver bool) {
		stop()
		busy.Wait()
		if handOver {
			m.end((*Cluster).HandOver)
		} else {
			m.end((*Cluster).Close)
		}
	}, nil
}

// known returns the addresses of the other members that are known, or those that were when the node
// was a member last.
func (m *Membership) known() map[resource.NodeID]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cluster == nil {
		return m.met
	}
	return m.cluster.members.addresses()
}

// keep makes the node a member again and again, until life ends: first if begin could not, and then
// whenever the machine has lost the member's address. It calls changed when the members have
// changed.
func (m *Membership) keep(life context.Context, s *directory.Server, changed func()) {
	for {
		if m.Cluster() == nil {
			m.keepEntering(life, s)
		}
		why := m.awaitLoss(life, changed)
		if why == nil {
			return
		}
		// Cause: the machine [has lost the address](CLUSTER.md#when-the-address-is-not-there).
		// Remedy: see to the network.
		m.log.Warn("cluster: the member's address is gone: the node is served, and is not a member until it has an address", "err", why)
		met := m.known()
		m.set(func() { m.met = met })
		why = notMember(why)
		m.end(func(c *Cluster) error { return c.abandon(fmt.Errorf("%w: %w", directory.ErrPartial, why)) })
		m.goWithout(s, why)
	}
}

// notMember adds to a reason what it leads to.
func notMember(why error) error {
	// Cause: the machine lacks the address, or the address or key cannot be used. Remedy: [see
	// there](CLUSTER.md#when-the-address-is-not-there).
	return fmt.Errorf("this node is not a member of its cluster at present: %w", why)
}

// awaitLoss waits until the machine has lost the member's address, and returns the reason. It
// returns nil when life ends. It calls changed at first, and when the members have changed.
func (m *Membership) awaitLoss(life context.Context, changed func()) error {
	c := m.Cluster()
	if c == nil { // life has ended
		return nil
	}
	t := time.NewTicker(m.lookAgain)
	defer t.Stop()
	for {
		news := c.members.news()
		changed()
		for isSame := true; isSame; {
			select {
			case <-news:
				isSame = false
			case <-t.C:
				if err := m.isLost(c); err != nil {
					return err
				}
			case <-life.Done():
				return nil
			}
		}
	}
}

// goWithout lets s answer as a node that cannot ask the other members, for the reason why.
func (m *Membership) goWithout(s *directory.Server, why error) {
	m.set(func() { m.missing = why })
	s.Attach(directory.Unreachable(why))
}

// keepEntering tries to become a member until that succeeds or life ends. The reason why the node
// is no member was logged before, and is logged again if it changes.
func (m *Membership) keepEntering(life context.Context, s *directory.Server) {
	logged := fmt.Sprint(m.Missing())
	for backoff := 10 * time.Millisecond; ; backoff = min(2*backoff, time.Second) {
		select {
		case <-time.After(backoff/2 + rand.N(backoff)):
		case <-life.Done():
			return
		}
		err := m.enter(life, s, 0)
		if err == nil {
			return
		}
		missing := notMember(err)
		m.set(func() { m.missing = missing })
		if text := missing.Error(); text != logged && life.Err() == nil {
			logged = text
			// Cause: the same, for a new reason. Remedy: correct `err`.
			m.log.Warn("cluster: not a member yet", "err", err)
		}
	}
}

// enter becomes a member. It sets the terms of s first: a context that joins s has the keys of the
// cluster from the beginning. An address that is in use is tried again for as long as wait and ctx
// last.
func (m *Membership) enter(ctx context.Context, s *directory.Server, wait time.Duration) error {
	m.keysMu.Lock()
	defer m.keysMu.Unlock()
	keys, err := m.keys()
	if err != nil {
		return err
	}
	cfg, err := m.config(ctx, s, keys)
	if err != nil {
		return err
	}
	terms := directory.Terms{Member: true, Cluster: m.name, Host: host(m.member.Bind), Sealed: len(keys) > 0, Certificates: cfg.Credentials != nil}
	for _, k := range m.linkKeys(keys) {
		terms.Keys = append(terms.Keys, k[:])
	}
	s.SetTerms(terms)
	c, err := m.openWithin(ctx, cfg, wait)
	if err != nil {
		return err
	}
	terms.Host = host(c.Addr()) // the address that was chosen, if Bind names every address
	s.SetTerms(terms)
	m.set(func() { m.cluster, m.server, m.missing = c, s, nil })
	s.Attach(c)
	// Cause: this node is a member; `sealed`: there is a key.
	m.log.Info("cluster: this node is a member", "cluster", m.name, "host", c.gossip.host, "addr", c.Addr(), "node", name(s.Node()), "sealed", terms.Sealed)
	if !terms.Sealed && !isLocal(c.Addr()) {
		// Cause: `--bind` without `--key-file`, not on loopback. Remedy: [make a
		// key](SECURING.md#how-to-make-a-key).
		m.log.Warn("cluster: there is no key: every process that reaches the address can join, and read and change resources", "addr", c.Addr())
	}
	if h, _, _ := mux.SplitBind(m.member.Bind); isLocal(c.Addr()) && !loopback.IsHost(h) {
		// Cause: `/etc/hosts` has the name of `--bind` at 127.0.0.0/8. Remedy: name the address or
		// the interface.
		m.log.Warn("cluster: the address to bind leads to the loopback interface: other machines do not reach this member", "bind", m.member.Bind, "addr", c.Addr())
	}
	m.used = keys
	return nil
}

// config returns the settings with which the node of s becomes a member.
func (m *Membership) config(ctx context.Context, s *directory.Server, keys [][]byte) (Config, error) {
	m.mu.Lock()
	met := m.met
	m.mu.Unlock()
	cfg := Config{Node: s.Node(), DB: s.Database(), Sure: s.Recovered, Follows: s.Follows() || len(met) > 0, Met: met, Name: m.name, Bind: m.member.Bind, Join: m.member.Join, Keys: keys, Serve: s.ServePeer, Summary: s.Summary,
		Group: m.member.Group, Strategy: m.member.Strategy, Poll: m.member.Poll, Opening: ctx, Logger: m.log}
	if of := m.member.Certificates; of.Given() {
		cred, err := tls.FromFiles(of.Cert, of.Key, of.CA)
		if err != nil {
			return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		cfg.Credentials = cred
	}
	return cfg, nil
}

// openWithin is Open, but tries an address in use again, for as long as wait and ctx last.
func (m *Membership) openWithin(ctx context.Context, cfg Config, wait time.Duration) (*Cluster, error) {
	for end := time.Now().Add(wait); ; {
		c, err := m.open(cfg)
		if err == nil {
			return c, nil
		}
		if ctx.Err() == nil && (!sockerr.Is(err, syscall.EADDRINUSE) || time.Now().After(end)) {
			return nil, err
		}
		select {
		case <-time.After(10 * time.Millisecond): // no event tells when an address is free
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// end ends the cluster, if there is one, by one of its methods.
func (m *Membership) end(by func(*Cluster) error) {
	m.mu.Lock()
	c := m.cluster
	m.cluster, m.server = nil, nil
	m.mu.Unlock()
	if c == nil {
		return
	}
	if err := by(c); err != nil {
		// Cause: some members were not told, and take this node for dead.
		m.log.Info("cluster: ending", "err", err)
	}
}

// host returns the address in HOST:PORT, or "" if other nodes cannot use it.
func host(at string) string {
	h, _, err := net.SplitHostPort(at)
	if err != nil {
		return ""
	}
	a, err := netip.ParseAddr(h)
	if err != nil || a.IsUnspecified() {
		return ""
	}
	return a.String()
}

// isLocal reports whether IP:PORT is an address of the loopback interface.
func isLocal(at string) bool {
	host, _, err := net.SplitHostPort(at)
	return err == nil && loopback.IsHost(host)
}
