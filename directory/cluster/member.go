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
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/internal/loopback"
	"github.com/rocl-go/rocl/subsys/tls"
)

// A Member has the settings by which a node takes part in a cluster.
type Member struct {
	// Bind is HOST:PORT for the traffic between members, UDP and TCP. An empty Bind means that the
	// node is no member.
	Bind string
	Join []string // HOST:PORT of members to begin with
	// KeyFile has the cluster's keys: see ReadKeys. If it is empty, every process that knows the
	// cluster's name may take part.
	KeyFile string
	// Group is IP:PORT of a multicast group or a broadcast address, by which members find each
	// other and search. It may be empty.
	Group    string
	Strategy strategy.Strategy // of searches; the zero value is strategy.Auto
	// Poll is how long a goroutine that asks, or the keeper after an answer, reads the sockets
	// itself before it sleeps; 0: not at all.
	Poll time.Duration
	// Certificates prove membership in TLS, in place of those made from the key. The key is needed
	// all the same.
	Certificates tls.Paths

	err error // of Environment
}

// ErrConfig is returned when the settings of a member are not valid, or when its key or its
// certificates cannot be used.
var ErrConfig = directory.ErrMember

// Environment returns the member that the environment describes: ROCL_BIND, ROCL_JOIN (values are
// separated by commas), ROCL_KEY_FILE, ROCL_GROUP, ROCL_SEARCH and ROCL_POLL. Without ROCL_BIND it
// is no member. Check reports what is wrong with the variables.
func Environment() Member {
	m := Member{Bind: os.Getenv("ROCL_BIND"), Join: Split(os.Getenv("ROCL_JOIN")), KeyFile: os.Getenv("ROCL_KEY_FILE"), Group: os.Getenv("ROCL_GROUP")}
	var err error
	if s := os.Getenv("ROCL_SEARCH"); s != "" {
		if m.Strategy, err = strategy.Parse(s); err != nil {
			m.err = fmt.Errorf("%w: ROCL_SEARCH: %w", ErrConfig, err)
		}
	}
	if s := os.Getenv("ROCL_POLL"); s != "" {
		if m.Poll, err = time.ParseDuration(s); err != nil {
			m.err = fmt.Errorf("%w: ROCL_POLL: %w", ErrConfig, err)
		}
	}
	return m
}

// Split returns the values in s that commas separate, without empty ones and the space around them.
func Split(s string) (list []string) {
	for v := range strings.SplitSeq(s, ",") {
		if v = strings.TrimSpace(v); v != "" {
			list = append(list, v)
		}
	}
	return list
}

// Check returns an error that matches ErrConfig if the settings are not valid. It does not read the
// key.
func (m Member) Check() error {
	if m.err != nil {
		return m.err
	}
	if err := m.Certificates.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if m.Bind == "" {
		if len(m.Join) > 0 || m.KeyFile != "" || m.Group != "" {
			return fmt.Errorf("%w: members to join, a group or a key, and no address to bind", ErrConfig)
		}
		return nil
	}
	if m.Group != "" {
		g, err := netip.ParseAddrPort(m.Group)
		if err != nil || g.Port() == 0 || !g.Addr().IsMulticast() && !g.Addr().Is4() || g.Addr().IsUnspecified() {
			return fmt.Errorf("%w: the group %q is not IP:PORT of a multicast group or of a broadcast address", ErrConfig, m.Group)
		}
	}
	if m.Strategy > strategy.Tree {
		return fmt.Errorf("%w: no search strategy has the number %d", ErrConfig, m.Strategy)
	}
	if m.Strategy == strategy.Broadcast && m.Group == "" {
		return fmt.Errorf("%w: search by broadcast needs a group address", ErrConfig)
	}
	if m.Poll < 0 || m.Poll > mostPoll {
		return fmt.Errorf("%w: polling for %v is not between 0 and %v", ErrConfig, m.Poll, mostPoll)
	}
	if !IsAddress(m.Bind) {
		return fmt.Errorf("%w: the address to bind, %q, is not HOST:PORT", ErrConfig, m.Bind)
	}
	for _, at := range m.Join {
		if !IsAddress(at) {
			return fmt.Errorf("%w: the member to join, %q, is not HOST:PORT", ErrConfig, at)
		}
	}
	if m.Certificates.Given() && m.KeyFile == "" {
		return fmt.Errorf("%w: certificates and no key: it seals gossip and searches, for which there is no TLS", ErrConfig)
	}
	return nil
}

// Paths returns the certificates of the member, in the form that
// [github.com/rocl-go/rocl.WithMember] needs.
func (m Member) Paths() tls.Paths { return m.Certificates }

// Option returns the option that makes a directory server a member of the cluster name, or nil if m
// is no member. certs are used if m has no certificates.
func (m Member) Option(name string, certs tls.Paths, log *slog.Logger) directory.Option {
	if m.Bind == "" {
		return nil
	}
	if !m.Certificates.Given() {
		m.Certificates = certs
	}
	return NewMembership(name, m, log).Option()
}

// CheckName returns an error that matches ErrConfig if no cluster can have that name.
func CheckName(name string) error {
	if len(name) > maxName {
		return fmt.Errorf("%w: the cluster's name has %d bytes, at most %d", ErrConfig, len(name), maxName)
	}
	return nil
}

// IsAddress reports whether s is HOST:PORT, with the port as a number.
func IsAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// mostPoll limits Member.Poll, for which a waiting goroutine may occupy a processor.
const mostPoll = time.Second

// A Membership makes whichever server of this process serves the node a member of a cluster, for as
// long as that server serves.
type Membership struct {
	name   string
	member Member
	log    *slog.Logger

	kmu  sync.Mutex // held while keys are read and put to use
	used [][]byte   // the keys in use
	mu   sync.Mutex
	now  *Cluster
	of   *directory.Server // the server to which now belongs
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
	return m.now
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
	said := ""
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
		if text := err.Error(); text != said && life.Err() == nil {
			said = text
			m.log.Warn("cluster: not a member yet", "err", err)
		}
	}
}

// enter becomes a member. It sets the terms of s first: a context that joins s has the keys of the
// cluster from the beginning. An address that is in use is tried again for as long as wait and ctx
// last.
func (m *Membership) enter(ctx context.Context, s *directory.Server, wait time.Duration) error {
	m.kmu.Lock()
	defer m.kmu.Unlock()
	keys, err := m.keys()
	if err != nil {
		return err
	}
	cfg := Config{Node: s.Node(), DB: s.Database(), Sure: s.Recovered, Follows: s.Follows(), Name: m.name, Bind: m.member.Bind, Join: m.member.Join, Keys: keys, Serve: s.ServePeer,
		Group: m.member.Group, Strategy: m.member.Strategy, Poll: m.member.Poll, Opening: ctx, Logger: m.log}
	if of := m.member.Certificates; of.Given() {
		cred, err := tls.FromFiles(of.Cert, of.Key, of.CA)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
		cfg.Credentials = cred
	}
	terms := directory.Terms{Member: true, Cluster: m.name, Host: host(m.member.Bind), Sealed: len(keys) > 0, Certificates: cfg.Credentials != nil}
	for _, k := range m.linkKeys(keys) {
		terms.Keys = append(terms.Keys, k[:])
	}
	s.SetTerms(terms)
	var c *Cluster
	for end := time.Now().Add(wait); ; {
		if c, err = Open(cfg); err == nil {
			break
		}
		if ctx.Err() == nil && (!errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end)) {
			return err
		}
		t := time.NewTimer(10 * time.Millisecond) // no event tells when an address is free
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
	terms.Host = host(c.Addr()) // the address that was chosen, if Bind names every address
	s.SetTerms(terms)
	m.mu.Lock()
	m.now, m.of = c, s
	m.mu.Unlock()
	s.Attach(c)
	m.log.Info("member of a cluster", "cluster", m.name, "addr", c.Addr(), "sealed", terms.Sealed)
	if !terms.Sealed && !isLocal(c.Addr()) {
		m.log.Warn("cluster: there is no key: whoever reaches the address can take part, read and change", "addr", c.Addr())
	}
	m.used = keys
	return nil
}

// leave ends the cluster that enter opened, if there is one.
func (m *Membership) leave(handOver bool) {
	m.mu.Lock()
	c := m.now
	m.now, m.of = nil, nil
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
