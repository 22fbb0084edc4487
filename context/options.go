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

type config struct {
	socket      string
	noImages    bool
	joinOnly    bool
	dial        func(stdctx.Context) (net.Conn, error)
	transports  []subsys.Transport
	listen      []string
	rules       []dispatch.Rule
	poll        dispatch.Polling
	mailbox     int
	memory      int64
	linger      time.Duration
	giveUp      time.Duration
	cluster     string
	member      Member // nil: not given
	certs       tls.Paths
	logger      *slog.Logger
	undelivered func(dispatch.Undelivered)
}

func defaults() config {
	return config{
		transports: []subsys.Transport{inproc.New(), shm.New(), tcp.New()},
		linger:     5 * time.Second,
		logger:     slog.New(slog.DiscardHandler),
	}
}

// An Option changes one default of Open.
type Option func(*config)

// WithSocket names the Unix socket of the node's directory. The default is
// $ROCL_SOCKET, else a socket in the user's runtime directory.
func WithSocket(path string) Option { return func(c *config) { c.socket = path } }

// JoinOnly makes Open fail with ErrNoDirectory where no directory serves the
// node, rather than serve it.
func JoinOnly() Option { return func(c *config) { c.joinOnly = true } }

// WithoutImages lets the context ask its directory over the socket also where
// the node's image could be read in place. It is for measuring.
func WithoutImages() Option { return func(c *config) { c.noImages = true } }

// WithDirectory reaches the directory through dial instead of a socket; it
// implies JoinOnly. Tests use it to stay in memory.
func WithDirectory(dial func(stdctx.Context) (net.Conn, error)) Option {
	return func(c *config) { c.dial = dial }
}

// WithTransports names the transports to open a port on, best first. The
// default is in-process, then shared memory, then TCP on the loopback interface
// and, on a node that is in a cluster, at the address by which the other nodes
// know it. In a cluster with a key that is TLS, which takes its place behind TCP
// if there is TCP and no TLS among those named.
//
// What is above 2 KiB and comes over shared memory can be read only: see
// [dispatch.Message.Writable].
func WithTransports(t ...subsys.Transport) Option {
	return func(c *config) { c.transports = t }
}

// WithRules says over what messages go to other contexts, by tag, by size or all
// of them: see [dispatch.Rule]. The others need no rules. Open fails with
// [dispatch.ErrRule] if the rules make no sense or name transports that the
// context has not.
func WithRules(r ...dispatch.Rule) Option { return func(c *config) { c.rules = r } }

// WithListen names addresses to listen at, such as tcp://10.0.0.7:0, in place
// of the one its transport would choose. In a cluster with a key TCP is for this
// node alone, and Open refuses other addresses of it.
func WithListen(urls ...string) Option { return func(c *config) { c.listen = urls } }

// WithPoll says whether those who wait for messages poll before they sleep. Open
// refuses a policy that there is not.
func WithPoll(p dispatch.PollPolicy) Option { return func(c *config) { c.poll.Policy = p } }

// WithPollBudget says how long PollAdaptive polls at most before it sleeps, up to a
// second; 50 µs if not given, or 0.
func WithPollBudget(d time.Duration) Option { return func(c *config) { c.poll.Budget = d } }

// WithPollers says how many goroutines of this process, whichever contexts they
// wait in, poll at once; who of this context is one too many sleeps. If not given, or
// 0, it is one less than GOMAXPROCS for PollAdaptive, and any number for
// PollAlways. In one context no more than one ever polls, for all who wait.
func WithPollers(n int) Option { return func(c *config) { c.poll.Pollers = n } }

// WithMailbox sets the byte limit of mailboxes; 16 MiB if not given, and never less than
// 64 KiB. Beyond it senders wait, but each context that sends may have 64 KiB more in a
// mailbox: it sends so much without asking. MailboxLimit and MailboxMessages are exact.
func WithMailbox(bytes int) Option { return func(c *config) { c.mailbox = bytes } }

// WithMemory bounds the registered memory of the context's buffers, in bytes. Where it
// is used up, other contexts' messages wait on their connections until some is released,
// and [Context.Buffer] fails with ErrLimit. An eighth of it, and twice what other
// contexts have been promised and have not sent yet, together seldom more than half, is
// kept for what comes. A message longer than three quarters of it is never let in: its
// sender waits.
func WithMemory(bytes int64) Option { return func(c *config) { c.memory = bytes } }

// WithLinger says how long Close waits for accepted messages to be delivered;
// 5 s if not given.
func WithLinger(d time.Duration) Option { return func(c *config) { c.linger = d } }

// WithGiveUp sets the time after which sends to a context that is out of reach fail with
// ErrUnreachable; 10 s if not given. They fail sooner, with ErrGone, if gossip declares the
// context's node dead and the context does not answer. In a long partition gossip declares
// living nodes dead: their contexts have ended for those that were told, though they live. A
// node that reaches no other member declares no node dead. A context that was granted credit for a
// message larger than a mailbox's limit, and of which nothing comes for three times as
// long while other senders wait, is given up too.
func WithGiveUp(d time.Duration) Option { return func(c *config) { c.giveUp = d } }

// WithCluster names the cluster; contexts of different clusters do not link. The
// default is $ROCL_CLUSTER, else the name that the node's directory gives. Open
// fails with ErrCluster if the directory is in another cluster.
func WithCluster(name string) Option { return func(c *config) { c.cluster = name } }

// A Member says how a node takes part in a cluster. Package directory/cluster has the one that programs
// use; it is not linked into programs that do not name it.
type Member interface {
	// Check returns an error that matches directory.ErrMember if the settings are not valid.
	Check() error
	// Paths returns the certificates that the settings name, for links too.
	Paths() tls.Paths
	// Option returns what makes the server of the node's directory a member of the cluster with a
	// name; nil if the settings describe no member. certs are used if Paths names none.
	Option(name string, certs tls.Paths, log *slog.Logger) directory.Option
}

// WithMember makes the node a member of a cluster while this context serves it,
// because no daemon does. Without it a context that serves the node fails to open if ROCL_BIND is set.
func WithMember(m Member) Option { return func(c *config) { c.member = m } }

// WithCertificates names PEM files with a certificate, its key, and the
// authorities whose certificates are accepted, with which links to other nodes
// are sealed in place of certificates that are made from the cluster's key. All
// nodes of the cluster must have some. The default is $ROCL_TLS_CERT,
// $ROCL_TLS_KEY and $ROCL_TLS_CA.
func WithCertificates(cert, key, ca string) Option {
	return func(c *config) { c.certs = tls.Paths{Cert: cert, Key: key, CA: ca} }
}

// checkRules checks the rules against the transports. TLS may come with the terms
// of a cluster.
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

// environment fills in what was not given.
func (c *config) environment() {
	if c.cluster == "" {
		c.cluster = os.Getenv("ROCL_CLUSTER")
	}
	if !c.certs.Given() {
		c.certs = tls.Paths{Cert: os.Getenv("ROCL_TLS_CERT"), Key: os.Getenv("ROCL_TLS_KEY"), CA: os.Getenv("ROCL_TLS_CA")}
	}
}

// WithLogger sends the library's logs to l. They are discarded otherwise. One goroutine
// calls the handler of l, one line at a time. No lock is held: the handler may block, and
// may use and close the context. Lines wait meanwhile, up to 1,024; further ones are
// dropped, and counted in Stats.LogLinesDropped and in a line of their own. Close waits
// for the handler as long as WithLinger says, and at least a second. The handler's Enabled
// is called at once, with locks held: it must neither block nor call the library.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) {
		if l != nil {
			c.logger = l
		}
	}
}

// WithUndelivered calls f for each message that Send accepted and that could not
// be delivered, because its resource or context is gone. A message that was in the
// mailbox of a process that is killed counts as delivered. One goroutine makes the
// calls, one at a time, in the order in which the library learned of them. No lock
// is held: f may block, and may use and close the context. Reports wait
// meanwhile, up to 1,048,576; further ones are dropped, logged once and counted in
// Stats.Unreported. Close waits for the calls as long as WithLinger says, and at
// least a second. A panic in f ends the program.
func WithUndelivered(f func(dispatch.Undelivered)) Option {
	return func(c *config) { c.undelivered = f }
}
