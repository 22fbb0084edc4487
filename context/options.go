// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/inproc"
	"github.com/rocl-go/rocl/subsys/shm"
	"github.com/rocl-go/rocl/subsys/tcp"
	"github.com/rocl-go/rocl/subsys/tls"
)

// config is what the options set.
type config struct {
	socket      string // "": the default
	noImages    bool   // set by WithoutImages
	joinOnly    bool
	dial        func(stdctx.Context) (net.Conn, error) // nil: over the socket
	transports  []subsys.Transport                     // best first
	listen      []string
	rules       []dispatch.Rule
	poll        dispatch.Polling
	mailbox     int   // bytes; 0: the default
	memory      int64 // bytes; 0: no limit
	linger      time.Duration
	giveUp      time.Duration // 0: the default
	cluster     string        // "": the directory's
	member      Member        // nil: not given
	certs       tls.Paths
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

// WithSocket sets the path of the Unix socket of the node's directory. The default is $ROCL_SOCKET,
// or else a socket in the user's runtime directory.
func WithSocket(path string) Option { return func(c *config) { c.socket = path } }

// JoinOnly forbids the context to serve the node's directory. Open fails with rocl.ErrNoDirectory
// if no process serves it.
func JoinOnly() Option { return func(c *config) { c.joinOnly = true } }

// WithoutImages makes the context ask the directory over the socket, even if it could read the
// node's index in shared memory. It is for measuring.
func WithoutImages() Option { return func(c *config) { c.noImages = true } }

// WithDirectory connects to the directory with dial instead of a socket. It implies JoinOnly. Tests
// use it to stay in memory.
func WithDirectory(dial func(stdctx.Context) (net.Conn, error)) Option {
	return func(c *config) { c.dial = dial }
}

// WithTransports sets the transports on which the context opens a port, best first. The default is
// in-process, shared memory and TCP. TCP listens on the loopback interface and, on a node in a
// cluster, at the address by which other nodes know the node. In a cluster with a key, TLS listens
// at that address instead. The context adds TLS behind TCP if TCP is among the given transports and
// TLS is not.
//
// A received message above 2 KiB that came over shared memory is read-only: see
// [dispatch.Message.Writable].
func WithTransports(t ...subsys.Transport) Option {
	return func(c *config) { c.transports = t }
}

// WithRules sets which transports the messages to other contexts use, by tag, by size, or for all
// messages: see [dispatch.Rule]. The other contexts need no rules. Open fails with
// [dispatch.ErrRule] if the rules are invalid or name transports that the context does not have.
func WithRules(r ...dispatch.Rule) Option { return func(c *config) { c.rules = r } }

// WithListen sets addresses at which the context listens, such as tcp://10.0.0.7:0. They replace
// the address that the transport would choose. In a cluster with a key, TCP serves only this node.
// Open fails with rocl.ErrAddress if no transport of the context listens at an address, and for TCP
// addresses in such a cluster that are not on the loopback interface.
func WithListen(urls ...string) Option { return func(c *config) { c.listen = urls } }

// WithPoll sets whether a goroutine that waits for messages polls before it sleeps. The default is
// [dispatch.PollAdaptive]. Open fails with rocl.ErrPolling for an unknown policy.
func WithPoll(p dispatch.PollPolicy) Option { return func(c *config) { c.poll.Policy = p } }

// WithPollBudget limits how long a goroutine polls with [dispatch.PollAdaptive] before it sleeps.
// The default, also for 0, is 50 µs. Open fails with rocl.ErrPolling for a negative budget or one
// above a second.
func WithPollBudget(d time.Duration) Option { return func(c *config) { c.poll.Budget = d } }

// WithPollers limits how many goroutines in this process may poll at once, whichever contexts they
// wait in. A waiter of this context over the limit sleeps instead. The default, also for 0, is
// GOMAXPROCS less one, but at least one, with [dispatch.PollAdaptive], and no limit with
// [dispatch.PollAlways]. In one context at most one goroutine polls, on behalf of all that wait.
// Open fails with rocl.ErrPolling for a negative n.
func WithPollers(n int) Option { return func(c *config) { c.poll.Pollers = n } }

// WithMailbox sets the byte limit of each mailbox that has no byte limit of its own. The default is
// 16 MiB; the minimum is 64 KiB. Senders wait while a mailbox is full. Each sending context may
// exceed the limit by 64 KiB, which it sends without asking for credit. [MailboxLimit] and
// [MailboxMessages] set exact limits.
func WithMailbox(bytes int) Option { return func(c *config) { c.mailbox = bytes } }

// WithMemory limits the registered memory of the context's buffers, in bytes. There is no limit by
// default. While the limit is reached, messages from other contexts wait on their connections, and
// [Context.Buffer] fails with rocl.ErrLimit.
//
// A part of the memory is kept for incoming messages: an eighth of the limit, and twice the bytes
// for which other contexts hold unused credit. Together that is seldom more than half. A message
// longer than three quarters of the limit is never let in: its sender waits.
func WithMemory(bytes int64) Option { return func(c *config) { c.memory = bytes } }

// WithLinger sets how long Close waits for accepted messages to be delivered. The default is 5 s.
func WithLinger(d time.Duration) Option { return func(c *config) { c.linger = d } }

// WithGiveUp sets how long a context may be out of reach before sends and calls to it fail with
// rocl.ErrUnreachable, and monitors of its resources report their end. The default is 10 s.
//
// Sends fail sooner, with rocl.ErrGone, if gossip declares the context's node dead and the context
// does not answer. In a long partition gossip declares living nodes dead. Their contexts then count
// as ended on the nodes that were told so, although they live. A node that reaches no other member
// declares no node dead.
//
// A context may hold credit for a message larger than a mailbox's limit. It is given up as well if
// nothing arrives from it for three times as long while other senders wait.
//
// WithGiveUp also sets how long a receive waits behind messages that it does not select before it
// fails with rocl.ErrStuck: see [Resource.Recv].
func WithGiveUp(d time.Duration) Option { return func(c *config) { c.giveUp = d } }

// WithCluster sets the name of the cluster. Contexts of different clusters do not link. The default
// is $ROCL_CLUSTER, or else the name that the node's directory has. Open fails with rocl.ErrCluster
// if the directory is in a cluster with another name.
func WithCluster(name string) Option { return func(c *config) { c.cluster = name } }

// A Member describes how a node takes part in a cluster. Package directory/cluster has the
// implementation that programs use. A program links the code for clusters if it imports that package.
type Member interface {
	// Check returns an error that matches directory.ErrMember if the settings are invalid.
	Check() error
	// Paths returns the certificates that the settings name. Links use them too.
	Paths() tls.Paths
	// Option returns the option that makes the server of the node's directory a member of the
	// cluster with the given name, or nil if the settings describe no member. The member uses certs
	// if Paths names no certificates.
	Option(name string, certs tls.Paths, log *slog.Logger) directory.Option
}

// WithMember makes the node a member of a cluster while this context serves the node's directory,
// because no daemon does. Without the option, Open fails with rocl.ErrMember if ROCL_BIND is set
// and the context would serve the directory.
func WithMember(m Member) Option { return func(c *config) { c.member = m } }

// WithCertificates sets PEM files with a certificate, its key, and the authorities whose
// certificates are accepted. Links to other nodes are sealed with these instead of certificates
// that are made from the cluster's key. Either all nodes of a cluster have such certificates or
// none. The default is $ROCL_TLS_CERT, $ROCL_TLS_KEY and $ROCL_TLS_CA.
func WithCertificates(cert, key, ca string) Option {
	return func(c *config) { c.certs = tls.Paths{Cert: cert, Key: key, CA: ca} }
}

// checkRules returns the rules, if they name transports of the context only. TLS is accepted in any
// case, because the terms of a cluster may add it.
func (c *config) checkRules() (*dispatch.Rules, error) {
	for _, r := range c.rules {
		for _, name := range r.Transports() {
			if name != "tls" && !slices.ContainsFunc(c.transports, func(t subsys.Transport) bool { return t.Name() == name }) {
				return nil, fmt.Errorf("%w: over %q, which is no transport of this context", dispatch.ErrRule, name)
			}
		}
	}
	return dispatch.NewRules(c.rules...)
}

// environment takes the cluster's name and the certificates from the environment if no option set
// them.
func (c *config) environment() {
	if c.cluster == "" {
		c.cluster = os.Getenv("ROCL_CLUSTER")
	}
	if !c.certs.Given() {
		c.certs = tls.Paths{Cert: os.Getenv("ROCL_TLS_CERT"), Key: os.Getenv("ROCL_TLS_KEY"), CA: os.Getenv("ROCL_TLS_CA")}
	}
}

// WithLogger sends the library's logs to l. By default they are discarded. One goroutine calls the
// handler of l, one line at a time, and holds no lock: the handler may block, and may use and close
// the context. Meanwhile up to 1,024 lines wait. Further lines are dropped, counted in
// Stats.LogLinesDropped and reported in a log line.
//
// Close waits for the handler as long as [WithLinger] says, and at least a second. The handler's
// method Enabled is called at once, with locks held: it must not block or call the library.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		if l != nil {
			c.logger = l
		}
	}
}

// WithUndelivered calls f for each message that Send accepted and that could not be delivered,
// because its resource or context has ended. A message that was in the mailbox of a killed process
// counts as delivered.
//
// One goroutine makes the calls, one at a time, in the order in which the library learned of the
// losses. No lock is held: f may block, and may use and close the context. Meanwhile up to
// 1,048,576 reports wait. Further reports are dropped, logged once and counted in Stats.Unreported.
// Close waits for the calls as long as [WithLinger] says, and at least a second. A panic in f ends
// the program.
func WithUndelivered(f func(dispatch.Undelivered)) Option {
	return func(c *config) { c.undelivered = f }
}
