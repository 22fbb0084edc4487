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
	"github.com/rocl-go/rocl/internal/loopback"
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

	mu      sync.Mutex        // guards the following fields
	cluster *Cluster          // nil while the node is no member
	server  *directory.Server // the server to which cluster belongs
}

// NewMembership returns a membership in the cluster with the given name.
func NewMembership(name string, m Member, log *slog.Logger) *Membership {
	return &Membership{name: name, member: m, log: log}
}

// Option returns the option for the directory server.
func (m *Membership) Option() directory.Option { return directory.WithMembership(m.begin) }

// Cluster returns the present cluster, or nil while there is none.
func (m *Membership) Cluster() *Cluster {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cluster
}

// patience is how long begin waits for an address in use: the process that was the member before is
// about to end.
const patience = 2 * time.Second

// begin makes the node of s a member, and returns the function that ends that. If late is set,
// contexts of the node already wait for their directory. The node is then served in any case, and
// becomes a member when it can.
func (m *Membership) begin(s *directory.Server, late bool) (func(bool), error) {
	wait := patience
	if late {
		wait = 0
	}
	life, stop := context.WithCancel(context.Background())
	opening, cancel := context.WithCancelCause(s.Opening())
	ended := context.AfterFunc(life, func() { cancel(directory.ErrClosed) })
	err := m.enter(opening, s, wait)
	ended()
	cancel(nil)
	if err != nil && !late {
		stop()
		return nil, err
	}
	var busy sync.WaitGroup
	if m.member.KeyFile != "" {
		busy.Go(func() { m.keepKeys(life) })
	}
	if err != nil {
		m.log.Warn("cluster: the node is served, and is not a member yet", "err", err)
		s.Attach(directory.Unreachable(fmt.Errorf("this node is not a member of its cluster yet: %w", err)))
		busy.Go(func() { m.keepEntering(life, s) })
	}
	return func(handOver bool) {
		stop()
		busy.Wait()
		m.leave(handOver)
	}, nil
}

// keepEntering tries to become a member until that succeeds or life ends.
func (m *Membership) keepEntering(life context.Context, s *directory.Server) {
	logged := ""
	for backoff := 10 * time.Millisecond; ; backoff = min(2*backoff, time.Second) {
		t := time.NewTimer(backoff/2 + rand.N(backoff))
		select {
		case <-t.C:
		case <-life.Done():
			t.Stop()
			return
		}
		err := m.enter(life, s, 0)
		if err == nil {
			return
		}
		if text := err.Error(); text != logged && life.Err() == nil {
			logged = text
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
	c, err := openWithin(ctx, cfg, wait)
	if err != nil {
		return err
	}
	terms.Host = host(c.Addr()) // the address that was chosen, if Bind names every address
	s.SetTerms(terms)
	m.mu.Lock()
	m.cluster, m.server = c, s
	m.mu.Unlock()
	s.Attach(c)
	m.log.Info("member of a cluster", "cluster", m.name, "addr", c.Addr(), "sealed", terms.Sealed)
	if !terms.Sealed && !isLocal(c.Addr()) {
		m.log.Warn("cluster: there is no key: every process that reaches the address can join, and read and change resources", "addr", c.Addr())
	}
	m.used = keys
	return nil
}

// config returns the settings with which the node of s becomes a member.
func (m *Membership) config(ctx context.Context, s *directory.Server, keys [][]byte) (Config, error) {
	cfg := Config{Node: s.Node(), DB: s.Database(), Sure: s.Recovered, Follows: s.Follows(), Name: m.name, Bind: m.member.Bind, Join: m.member.Join, Keys: keys, Serve: s.ServePeer,
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

// openWithin is Open that tries an address in use again, for as long as wait and ctx last.
func openWithin(ctx context.Context, cfg Config, wait time.Duration) (*Cluster, error) {
	for end := time.Now().Add(wait); ; {
		c, err := Open(cfg)
		if err == nil {
			return c, nil
		}
		if ctx.Err() == nil && (!errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end)) {
			return nil, err
		}
		t := time.NewTimer(10 * time.Millisecond) // no event tells when an address is free
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// leave ends the cluster that enter opened, if there is one.
func (m *Membership) leave(handOver bool) {
	m.mu.Lock()
	c := m.cluster
	m.cluster, m.server = nil, nil
	m.mu.Unlock()
	if c == nil {
		return
	}
	end := c.Close
	if handOver {
		end = c.HandOver
	}
	if err := end(); err != nil {
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
