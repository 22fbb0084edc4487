// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"log/slog"
	"math"
	"time"

	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/internal/os/cgroup"
	"github.com/rocl-go/rocl/subsys"
)

// config is what the options of Open set.
type config = icontext.Config

// An Option changes a default of [Open].
type Option func(*config)

// WithSocket sets the path of the Unix socket of the node's directory. The default is $ROCL_SOCKET,
// or else a socket in the user's runtime directory.
func WithSocket(path string) Option { return func(c *config) { c.Socket = path } }

// JoinOnly forbids the context to serve the node's directory. Open fails with ErrNoDirectory if no
// process serves it. If the process that serves it ends and no other one takes over, questions of
// the context wait, and contexts that have ended are given up after the time of [WithGiveUp].
func JoinOnly() Option { return func(c *config) { c.JoinOnly = true } }

// WithTransports sets the transports on which the context opens a port, best first. The default is
// in-process, shared memory and TCP. TCP listens on the loopback interface (127.0.0.1, or else ::1)
// and, on a node in a cluster, at the address by which other nodes know the node. In a cluster with
// a key, TLS listens at that address instead. The context adds TLS behind TCP if TCP is among the
// given transports and TLS is not. With no transport, no other context reaches this one. Open fails
// if a transport is nil.
//
// If the machine does not give a transport its port, for whatever reason, the context logs that and
// goes on without. Open fails with ErrUnavailable only if no port can be opened, or if WithListen
// names the address.
//
// Without transports the context opens no port. It can use the directory, and sends and receives
// messages within itself only.
//
// A received message above 2 KiB that came over shared memory is read-only: see [Message.Writable].
func WithTransports(t ...subsys.Transport) Option {
	return func(c *config) { c.Transports = t }
}

// WithRules sets which transports the messages to resources of other contexts use, by the
// attributes of these resources. For example, one network carries control while another carries
// data. The first rule that matches a resource counts. The entries of Over are those of [Over]. A
// resource that was registered with Over, or that matches no rule, is reached as without rules. The
// other contexts need no rules, and reply over the same transports.
//
//	rocl.WithRules(
//		rocl.Rule{Match: rocl.Match{"role": "control"}, Over: []string{"tcp"}},           // only over TCP
//		rocl.Rule{Match: rocl.Match{"role": "data"}, Over: []string{"shm", "tls", "*"}}, // or any other
//	)
//
// All messages to one resource use the same transports, so they keep their order. The rule is
// chosen when the context first sends to the resource: a later change of the attributes does not
// matter. For that the context asks the directory for the attributes of each new target. Messages
// to different resources over different transports have no order among them. Open fails with
// ErrRule if the rules are invalid or name transports that the context does not have.
func WithRules(r ...Rule) Option {
	return func(c *config) {
		c.Rules = nil
		for _, one := range r {
			c.Rules = append(c.Rules, icontext.Rule(one))
		}
	}
}

// WithListen sets addresses at which the context listens, such as tcp://10.0.0.7:0. They replace
// the address that the transport would choose. In a cluster with a key, TCP serves only this node.
// Open fails with ErrAddress if no transport of the context listens at an address, and for TCP
// addresses in such a cluster that are not on the loopback interface. It fails with ErrUnavailable
// if this machine does not give the address, for example because it is in use.
func WithListen(urls ...string) Option { return func(c *config) { c.Listen = urls } }

// WithPoll sets whether a goroutine that waits for messages polls before it sleeps. The default is
// [PollAdaptive]. Open fails with ErrPolling for an unknown policy.
func WithPoll(p PollPolicy) Option { return func(c *config) { c.Poll.Policy = p } }

// WithPollBudget limits how long a goroutine polls with [PollAdaptive] before it sleeps. The
// default, also for 0, is 50 µs. Open fails with ErrPolling for a negative budget or one above a
// second.
func WithPollBudget(d time.Duration) Option { return func(c *config) { c.Poll.Budget = d } }

// WithPollers limits how many goroutines in this process may poll at once, whichever contexts they
// wait in. A waiter of this context over the limit sleeps instead. The default, also for 0, is
// GOMAXPROCS less one, but at least one, with [PollAdaptive], and no limit with [PollAlways]. In
// one context at most one goroutine polls, on behalf of all that wait. Open fails with ErrPolling
// for a negative n.
func WithPollers(n int) Option { return func(c *config) { c.Poll.Pollers = n } }

// WithMailbox sets the byte limit of each mailbox that has no byte limit of its own. The default is
// 16 MiB; the minimum is 64 KiB. Senders wait while a mailbox is full. Each sending context may
// exceed the limit by 64 KiB, which it sends without asking for credit. [MailboxLimit] and
// [MailboxMessages] set exact limits.
func WithMailbox(bytes int) Option { return func(c *config) { c.Mailbox = bytes } }

// defaultMemory returns the limit of WithMemory that a process in a control group has by default: a
// half of the group's memory, because the process needs memory for other things too. It returns 0,
// which is no limit, if the group has none.
func defaultMemory(l cgroup.Limits) int64 {
	return int64(min(l.Memory/2, math.MaxInt64))
}

// leastMemory is the smallest limit of WithMemory. Less would not hold the buffers of connections
// and what waits for acknowledgements beside a message.
const leastMemory = 1 << 20

// WithMemory limits the registered memory of the context's buffers, in bytes. A limit below 1 MiB
// is raised to 1 MiB. The default, also for 0 and less, is a half of the smallest memory limit of
// the control groups of this process, which are read by Open. If they have none, there is no limit.
// math.MaxInt64 is no limit in any case. A process with several contexts, or several such processes
// in one group, should set the limit of each. While the limit is reached, messages from other
// contexts wait on their connections, and [Context.Buffer] fails with ErrLimit. It never gives a
// buffer of more than three quarters of the limit.
//
// A part of the memory is kept for incoming messages: an eighth of the limit, and twice the bytes
// for which other contexts hold unused credit. Together that is at most half, except while a
// message comes for which that is too little. A message longer than three quarters of the limit is
// never let in: its sender, or the caller whose reply it is, gets ErrTooLarge at once. A reply that
// comes to memory of the program ([Resource.CallInto]) does not count against the limit. While a
// message of this context waits for its receiver's memory, as many bytes as it has may come beyond
// the limit, so that contexts that send to each other do not wait for each other.
func WithMemory(bytes int64) Option { return func(c *config) { c.Memory = bytes } }

// WithLinger sets how long Close waits for accepted messages to be delivered. The default is 5 s.
func WithLinger(d time.Duration) Option { return func(c *config) { c.Linger = d } }

// WithGiveUp sets how long a context may be out of reach before sends and calls to it fail with
// ErrUnreachable, and monitors of its resources report their end. The default is 10 s, also for a
// time of 0 or less. The error is a *[NoConnectionError], which says why the context was not
// reached. No operation waits longer for a connection to a context. [Resource.SendTo] may try
// several contexts, one after another.
//
// Sends fail sooner, with ErrGone, if gossip declares the context's node dead and the context does
// not answer. In a long partition gossip declares living nodes dead. Their contexts then count as
// ended on the nodes that were told so, although they live. A node that reaches no other member
// declares no node dead.
//
// A context may hold credit for a message larger than a mailbox's limit. It is given up as well if
// nothing arrives from it for three times as long while other senders wait.
//
// WithGiveUp also sets how long a receive waits behind messages that it does not select before it
// fails with ErrStuck: see [Resource.Recv].
func WithGiveUp(d time.Duration) Option { return func(c *config) { c.GiveUp = d } }

// WithCluster sets the name of the cluster. Contexts of different clusters do not link. The default
// is $ROCL_CLUSTER, or else the name that the node's directory has. Open fails with ErrCluster if
// the directory is in a cluster with another name.
func WithCluster(name string) Option { return func(c *config) { c.Cluster = name } }

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
// because no daemon does. It does what dirserver --bind --join --key-file does.
//
//	rocl.WithMember(cluster.Member{ // package directory/cluster
//		Bind:    "10.0.0.7:7946",                            // this node, UDP and TCP
//		Join:    []string{"10.0.0.7:7946", "10.0.0.8:7946"}, // or Group, a multicast group
//		KeyFile: "cluster.key",                              // no other user may read it; without it nothing is sealed
//	})
//
// When the context ends, another context of the node with this option takes over.
// cluster.Environment returns the member that $ROCL_BIND and other environment variables describe.
//
// The import of package directory/cluster links the code for clusters. With [JoinOnly] the settings
// are neither used nor checked, except for their certificates. Without WithMember Open fails with
// ErrMember if $ROCL_BIND is set and the context would serve the directory.
func WithMember(m Member) Option { return func(c *config) { c.Member = m } }

// WithCertificates sets PEM files with a certificate, its key, and the authorities whose
// certificates are accepted. Links to other nodes are sealed with these instead of certificates
// that are made from the cluster's key. Either all nodes of a cluster have such certificates or
// none. The default is $ROCL_TLS_CERT, $ROCL_TLS_KEY and $ROCL_TLS_CA.
func WithCertificates(cert, key, ca string) Option {
	return func(c *config) { c.Certificates = directory.CertificateFiles{Cert: cert, Key: key, CA: ca} }
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
			c.Logger = l
		}
	}
}

// WithTrace makes messages and requests carry the trace that f returns for the context.Context with
// which they are sent, if it is valid: the receiver gets it by [dispatch.Message.Trace]. Package
// otelrocl, a module of its own, has such an f for OpenTelemetry. Without WithTrace nothing is sent
// in addition. A message with a trace is a copy of its payload, or a buffer, as always, and has 81
// bytes ahead of it. Replies carry none, nor does what [Resource.TrySend] sends. A trace is lost
// when a message is taken over by another session; the message is not.
//
// f is called by the sending goroutine. It must not block, and must not use the context.
func WithTrace(f func(context.Context) Trace) Option {
	return func(c *config) { c.Trace = f }
}

// WithUndelivered calls f for each message that Send accepted and that could not be delivered,
// because its resource or context has ended. A message that was in the mailbox of a killed process
// counts as delivered. f is not called for messages of [Resource.SendAndForget].
//
// One goroutine makes the calls, one at a time, in the order in which the library learned of the
// losses. No lock is held: f may block, and may use and close the context. Meanwhile up to
// 1,048,576 reports wait. Further reports are dropped, logged once and counted in Stats.Unreported.
// Close waits for the calls as long as [WithLinger] says, and at least a second. A panic in f ends
// the program.
func WithUndelivered(f func(Undelivered)) Option {
	return func(c *config) { c.Undelivered = f }
}
