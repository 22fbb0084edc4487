// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"errors"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/os/cgroup"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
)

// config is what the options set.
type config struct {
	socket      string // "": the default
	noIndex     bool   // set by WithoutIndex
	joinOnly    bool
	dial        func(stdctx.Context) (net.Conn, error) // nil: over the socket
	transports  []subsys.Transport                     // best first
	listen      []string
	rules       []Rule
	poll        dispatch.Polling
	mailbox     int   // bytes; 0: the default
	memory      int64 // bytes; 0: the default of defaultMemory
	linger      time.Duration
	giveUp      time.Duration // 0: the default
	cluster     string        // "": the directory's
	member      Member        // nil: not given
	certs       directory.CertificateFiles
	logger      *slog.Logger
	undelivered func(dispatch.Undelivered) // may be nil
}

// defaults returns the configuration of a context without options.
func defaults() config {
	return config{
		transports: []subsys.Transport{inproc.New(), shm.New(), tcp.New()},
		linger:     5 * time.Second,
		logger:     slog.New(slog.DiscardHandler),
	}
}

// An Option changes a default of [Open].
type Option func(*config)

// WithSocket sets the path of the Unix socket of the node's directory. See rocl.WithSocket.
func WithSocket(path string) Option { return func(c *config) { c.socket = path } }

// JoinOnly forbids the context to serve the node's directory. See rocl.JoinOnly.
func JoinOnly() Option { return func(c *config) { c.joinOnly = true } }

// WithoutIndex makes the context ask the directory over the socket, even if it could read the
// node's index in shared memory. It is for measuring.
func WithoutIndex() Option { return func(c *config) { c.noIndex = true } }

// WithDirectory connects to the directory with dial instead of a socket. It implies JoinOnly. Tests
// use it to stay in memory.
func WithDirectory(dial func(stdctx.Context) (net.Conn, error)) Option {
	return func(c *config) { c.dial = dial }
}

// WithTransports sets the transports on which the context opens a port, best first. See
// rocl.WithTransports.
func WithTransports(t ...subsys.Transport) Option {
	return func(c *config) { c.transports = t }
}

// WithRules sets which transports the messages to resources of other contexts use, by the
// attributes of these resources. See rocl.WithRules.
func WithRules(r ...Rule) Option { return func(c *config) { c.rules = r } }

// WithListen sets addresses at which the context listens, such as tcp://10.0.0.7:0. See
// rocl.WithListen.
func WithListen(urls ...string) Option { return func(c *config) { c.listen = urls } }

// WithPoll sets whether a goroutine that waits for messages polls before it sleeps. See
// rocl.WithPoll.
func WithPoll(p dispatch.PollPolicy) Option { return func(c *config) { c.poll.Policy = p } }

// WithPollBudget limits how long a goroutine polls with [dispatch.PollAdaptive] before it sleeps.
// See rocl.WithPollBudget.
func WithPollBudget(d time.Duration) Option { return func(c *config) { c.poll.Budget = d } }

// WithPollers limits how many goroutines in this process may poll at once, whichever contexts they
// wait in. See rocl.WithPollers.
func WithPollers(n int) Option { return func(c *config) { c.poll.Pollers = n } }

// WithMailbox sets the byte limit of each mailbox that has no byte limit of its own. See
// rocl.WithMailbox.
func WithMailbox(bytes int) Option { return func(c *config) { c.mailbox = bytes } }

// defaultMemory returns the limit of WithMemory that a process in a control group has by default: a
// half of the group's memory, because the process needs memory for other things too. It returns 0,
// which is no limit, if the group has none.
func defaultMemory(l cgroup.Limits) int64 {
	return int64(min(l.Memory/2, math.MaxInt64))
}

// leastMemory is the smallest limit of WithMemory. Less would not hold the buffers of connections
// and what waits for acknowledgements beside a message.
const leastMemory = 1 << 20

// WithMemory limits the registered memory of the context's buffers, in bytes. See rocl.WithMemory.
func WithMemory(bytes int64) Option { return func(c *config) { c.memory = bytes } }

// WithLinger sets how long Close waits for accepted messages to be delivered. See rocl.WithLinger.
func WithLinger(d time.Duration) Option { return func(c *config) { c.linger = d } }

// WithGiveUp sets how long a context may be out of reach before sends and calls to it fail with
// rocl.ErrUnreachable, and monitors of its resources report their end. See rocl.WithGiveUp.
func WithGiveUp(d time.Duration) Option { return func(c *config) { c.giveUp = d } }

// WithCluster sets the name of the cluster. See rocl.WithCluster.
func WithCluster(name string) Option { return func(c *config) { c.cluster = name } }

// A Member describes how a node takes part in a cluster. Package directory/cluster has the
// implementation that programs use. A program links the code for clusters if it imports that
// package.
type Member interface {
	// Check returns an error that matches directory.ErrMember if the settings are invalid.
	Check() error
	// Paths returns the certificates that the settings name. Links use them too.
	Paths() directory.CertificateFiles
	// Option returns the option that makes the server of the node's directory a member of the
	// cluster with the given name, or nil if the settings describe no member. The member uses certs
	// if Paths names no certificates.
	Option(name string, certs directory.CertificateFiles, log *slog.Logger) directory.Option
}

// WithMember makes the node a member of a cluster while this context serves the node's directory,
// because no daemon does. See rocl.WithMember.
func WithMember(m Member) Option { return func(c *config) { c.member = m } }

// WithCertificates sets PEM files with a certificate, its key, and the authorities whose
// certificates are accepted. See rocl.WithCertificates.
func WithCertificates(cert, key, ca string) Option {
	return func(c *config) { c.certs = directory.CertificateFiles{Cert: cert, Key: key, CA: ca} }
}

// checkTransports returns an error if a transport is nil.
func (c *config) checkTransports() error {
	if slices.Contains(c.transports, nil) {
		return errors.New("a transport of WithTransports is nil")
	}
	return nil
}

// environment takes the cluster's name and the certificates from the environment if no option set
// them.
func (c *config) environment() {
	if c.cluster == "" {
		c.cluster = os.Getenv("ROCL_CLUSTER")
	}
	if !c.certs.Given() {
		c.certs = directory.CertificateFiles{Cert: os.Getenv("ROCL_TLS_CERT"), Key: os.Getenv("ROCL_TLS_KEY"), CA: os.Getenv("ROCL_TLS_CA")}
	}
}

// WithLogger sends the library's logs to l. See rocl.WithLogger.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		if l != nil {
			c.logger = l
		}
	}
}

// WithUndelivered calls f for each message that Send accepted and that could not be delivered,
// because its resource or context has ended. See rocl.WithUndelivered.
func WithUndelivered(f func(dispatch.Undelivered)) Option {
	return func(c *config) { c.undelivered = f }
}
