// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/directory/strategy"
)

// A Member has the settings by which a node takes part in a cluster.
type Member struct {
	// Bind is HOST:PORT for the traffic between members, UDP and TCP. HOST is an address, a name,
	// an interface, or a network such as 10.0.0.0/8, which may lack the port (7946). An empty Bind
	// means that the node is no member.
	//
	// If several addresses of the machine fit, as for 0.0.0.0, the other members are told the
	// source address of the route to the first member to join.
	Bind string
	// Join says where members to begin with are. An element is HOST:PORT, srv:NAME for the targets
	// of the SRV records of a name in DNS, or exec:COMMAND for the HOST:PORT that a command prints,
	// separated by white space, within 10 s. White space separates the arguments of the command,
	// which runs without a shell. Names are looked up, and commands are run, at each attempt to
	// join.
	Join []string
	// KeyFile has the cluster's keys: see ReadKeys. If it is empty, every process that knows the
	// cluster's name may take part.
	KeyFile string
	// Group is IP:PORT of a multicast group or a broadcast address, by which members find each
	// other and search. It may be empty.
	Group    string
	Strategy strategy.Strategy // of searches; the zero value is strategy.Auto
	// Poll is how long a goroutine that asks, or the goroutine of the mux that reads after an
	// answer, reads the sockets itself before it sleeps; 0: not at all.
	Poll time.Duration
	// Certificates prove membership in TLS, in place of those made from the key. The key is needed
	// all the same.
	Certificates directory.CertificateFiles

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
	if !m.Strategy.IsValid() {
		return fmt.Errorf("%w: no search strategy has the number %d", ErrConfig, uint8(m.Strategy))
	}
	if m.Strategy == strategy.Broadcast && m.Group == "" {
		return fmt.Errorf("%w: search by broadcast needs a group address", ErrConfig)
	}
	if m.Poll < 0 || m.Poll > mostPoll {
		return fmt.Errorf("%w: polling for %v is not between 0 and %v", ErrConfig, m.Poll, mostPoll)
	}
	if !IsBind(m.Bind) {
		return fmt.Errorf("%w: the address to bind, %q, is not HOST:PORT", ErrConfig, m.Bind)
	}
	for _, at := range m.Join {
		if !IsJoin(at) {
			return fmt.Errorf("%w: the member to join, %q, is not HOST:PORT, srv:NAME or exec:COMMAND", ErrConfig, at)
		}
	}
	if m.Certificates.Given() && m.KeyFile == "" {
		return fmt.Errorf("%w: certificates and no key: it seals gossip and searches, for which there is no TLS", ErrConfig)
	}
	return nil
}

// Paths returns the certificates of the member, in the form that
// [github.com/rocl-go/rocl.WithMember] needs.
func (m Member) Paths() directory.CertificateFiles { return m.Certificates }

// Option returns the option that makes a directory server a member of the cluster name, or nil if m
// is no member. certs are used if m has no certificates.
func (m Member) Option(name string, certs directory.CertificateFiles, log *slog.Logger) directory.Option {
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

// isAddress reports whether s is HOST:PORT, with the port as a number.
func isAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}

// IsBind reports whether s is valid as Member.Bind.
func IsBind(s string) bool {
	host, port, err := mux.SplitBind(s)
	return err == nil && isAddress(net.JoinHostPort(host, port))
}

// mostPoll limits Member.Poll, for which a waiting goroutine may occupy a processor.
const mostPoll = time.Second
