package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/resource"
)

// A Member says how a node takes part in a cluster.
type Member struct {
	Bind    string   // HOST:PORT for what members say to each other, UDP and TCP; "": no member
	Join    []string // HOST:PORT of members to begin with
	KeyFile string   // with the cluster's key, see ReadKey; "": whoever knows the cluster's name may take part
}

// ErrConfig says that the settings of a member make no sense, or that its key
// cannot be used.
var ErrConfig = errors.New("rocl: not a member of a cluster")

// Check finds settings that make no sense. It does not read the key.
func (m *Member) Check() error {
	if m.Bind == "" {
		if len(m.Join) > 0 || m.KeyFile != "" {
			return fmt.Errorf("%w: members to join or a key, and no address to bind", ErrConfig)
		}
		return nil
	}
	if host, port, err := net.SplitHostPort(m.Bind); err != nil || host == "" || port == "" {
		return fmt.Errorf("%w: the address to bind, %q, is not HOST:PORT", ErrConfig, m.Bind)
	}
	return nil
}

// A key has so many bytes.
const (
	minKey = 16
	maxKey = 4 << 10
)

// ReadKey reads the key of a cluster, without the white space around it. The
// file must be its owner's alone.
func ReadKey(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%w: the cluster's key: %w", ErrConfig, err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: the cluster's key: %w", ErrConfig, err)
	}
	if p := fi.Mode().Perm(); p&0o077 != 0 {
		return nil, fmt.Errorf("%w: the cluster's key %s can be read by others (mode %v); it must be 0600: %w", ErrConfig, file, p, fs.ErrPermission)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKey+1))
	if err != nil {
		return nil, fmt.Errorf("%w: the cluster's key: %w", ErrConfig, err)
	}
	key := bytes.TrimSpace(b)
	if len(key) < minKey || len(b) > maxKey {
		return nil, fmt.Errorf("%w: the cluster's key in %s has %d bytes; it must have at least %d and at most %d", ErrConfig, file, len(key), minKey, maxKey)
	}
	return key, nil
}

// A Membership makes whatever server of this process serves the node a member
// of a cluster, for as long as it does.
type Membership struct {
	name   string
	member Member
	log    *slog.Logger

	mu  sync.Mutex
	now *Cluster
}

// NewMembership makes the membership in the cluster with the given name.
func NewMembership(name string, m Member, log *slog.Logger) *Membership {
	return &Membership{name: name, member: m, log: log}
}

// Option is for the server.
func (m *Membership) Option() directory.Option { return directory.WithMembership(m.begin) }

// Cluster is the present one, nil while there is none.
func (m *Membership) Cluster() *Cluster {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// patience is how long an address may be in use: the process that was the
// member before us is going.
const patience = 2 * time.Second

// begin makes the node of s a member. Contexts that are there already want
// their directory at once: for them the node is served in any case, and becomes
// a member when it can.
func (m *Membership) begin(s *directory.Server, late bool) (func(bool), error) {
	wait := patience
	if late {
		wait = 0
	}
	life, stop := context.WithCancel(context.Background())
	err := m.enter(life, s, wait)
	if err != nil && !late {
		stop()
		return nil, err
	}
	var busy sync.WaitGroup
	if err != nil {
		m.log.Warn("cluster: the node is served, and is not a member yet", "err", err)
		s.Attach(apart{err})
		busy.Go(func() { m.keepEntering(life, s) })
	}
	return func(handOver bool) {
		stop()
		busy.Wait()
		m.leave(handOver)
	}, nil
}

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

// enter becomes a member. The contexts are told first: whoever joins s has the
// keys of the cluster from the beginning.
func (m *Membership) enter(life context.Context, s *directory.Server, wait time.Duration) error {
	var key []byte
	var keys [][]byte
	if m.member.KeyFile != "" {
		var err error
		if key, err = ReadKey(m.member.KeyFile); err != nil {
			return err
		}
		keys = append(keys, key)
	}
	link := LinkKey(m.name, key)
	terms := directory.Terms{Keys: [][]byte{link[:]}, Member: true, Cluster: m.name, Host: host(m.member.Bind), Sealed: len(key) > 0}
	s.SetTerms(terms)
	var c *Cluster
	for end := time.Now().Add(wait); ; {
		var err error
		c, err = Open(Config{Node: s.Node(), DB: s.Database(), Sure: s.Settled, Name: m.name, Bind: m.member.Bind, Join: m.member.Join, Keys: keys, Logger: m.log})
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) || life.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond) // nobody tells when an address is free
	}
	terms.Host = host(c.Addr()) // the one chosen, where all were bound
	s.SetTerms(terms)
	m.mu.Lock()
	m.now = c
	m.mu.Unlock()
	s.Attach(c)
	m.log.Info("member of a cluster", "cluster", m.name, "addr", c.Addr(), "sealed", terms.Sealed)
	return nil
}

func (m *Membership) leave(handOver bool) {
	m.mu.Lock()
	c := m.now
	m.now = nil
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

// host is the address in HOST:PORT, "" if it is none that others can use.
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

// apart answers for the cluster while the node is not a member: nobody knows.
type apart struct{ err error }

func (a apart) why() error {
	return fmt.Errorf("%w: the node is not a member of its cluster yet: %w", directory.ErrPartial, a.err)
}

func (a apart) Find(context.Context, *resource.List) (database.Record, error) {
	return database.Record{}, a.why()
}

func (a apart) Lookup(context.Context, resource.GID, *resource.List) (database.Record, error) {
	return database.Record{}, a.why()
}

func (a apart) All(context.Context, *resource.List) iter.Seq2[database.Record, error] {
	return func(yield func(database.Record, error) bool) { yield(database.Record{}, a.why()) }
}
