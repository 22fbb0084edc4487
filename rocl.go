// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	stdctx "context"
	"log/slog"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/codec"
	"github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/sentinel"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// The everyday names; each is documented where it is defined.
type (
	Context        = context.Context        // one participant; a process usually opens one
	Resource       = context.Resource       // an origin and a target of messages
	Found          = context.Found          // an answer of Find, FindAll and Lookup
	Event          = context.Event          // what a Watch tells
	Stats          = context.Stats          // what a context did, in numbers
	Option         = context.Option         // of Open
	RegisterOption = context.RegisterOption // of Context.Register
	FindOption     = context.FindOption     // of Context.Find, FindAll, Await and Watch
	HandleOption   = context.HandleOption   // of Resource.Handle
	Op             = resource.Op            // compares numbers; see At
	GID            = resource.GID           // identifies a resource
	List           = resource.List          // attributes, of any bytes, repeated names allowed
	Attributes     = resource.Attributes    // a List, Attrs or Match
	Attrs          = resource.Attrs         // attributes as a literal
	Match          = resource.Match         // a pattern as a literal
	Buffer         = buffers.Buffer         // memory of a message
	Message        = dispatch.Message       // a received message
	Select         = dispatch.Select        // a condition on messages to receive; see From, Tag, Tags, TagMask and Any
	Pending        = context.Pending        // a call that waits for its reply: Resource.StartCall
	Envelope       = dispatch.Envelope      // what Resource.Peek tells of a message
	Posted         = dispatch.Posted        // memory that waits for one message; see Resource.Post
	Undelivered    = dispatch.Undelivered   // tells of a message that was accepted in vain
	FlushError     = dispatch.FlushError    // says how many messages a Flush found undelivered
	Rule           = dispatch.Rule          // over what messages go; see WithRules
	TagRange       = dispatch.TagRange      // of a Rule
	Route          = dispatch.Route         // over what two contexts talk; see Context.Routes
	PollPolicy     = dispatch.PollPolicy    // see WithPoll
	SendError      = context.SendError      // why one target of SendAll has failed
	SendErrors     = context.SendErrors     // the error of SendAll: a SendError for each target that has failed
	Member         = context.Member         // see WithMember
	Coverage       = directory.Coverage     // which nodes were asked; see Covered
	SearchStrategy = strategy.Strategy      // see Member
)

// A Codec is a format of a program's own for values of type T; see [SendValue].
type Codec[T any] = codec.Codec[T]

// Kinds of events of a Watch. Messages that a resource sent may be received after
// its Gone: see Context.Watch.
const (
	Appeared = directory.Appeared
	Changed  = directory.Changed
	Gone     = directory.Gone
	Synced   = directory.Synced
)

// Attributes that are the library's. Contexts and nodes are resources too; they
// are found by patterns that name one of these, such as {AttrKind: "node"}.
const (
	AttrKind    = context.AttrKind    // "context" or "node"
	AttrAddr    = context.AttrAddr    // of a context, repeated; of a node in a cluster, HOST:PORT
	AttrPID     = context.AttrPID     // of a context: its process
	AttrContext = context.AttrContext // of any resource, its owner: may be asked for, and matched
	AttrNode    = context.AttrNode    // of a node: its number, 12 hexadecimal digits
	AttrHost    = context.AttrHost    // of a node: the name of the machine
	AttrOS      = context.AttrOS      // of a node, as GOOS
	AttrArch    = context.AttrArch    // of a node, as GOARCH
	AttrCores   = context.AttrCores   // of a node: processors, a decimal number
	AttrMemory  = context.AttrMemory  // of a node: bytes, likewise
	AttrVersion = context.AttrVersion // of a node's directory
)

// What waiters do before they sleep; see WithPoll.
const (
	PollAdaptive = dispatch.PollAdaptive
	PollNever    = dispatch.PollNever
	PollAlways   = dispatch.PollAlways
)

// How everybody is asked who could know, by a Member; [SearchAuto] is by how many
// there are.
const (
	SearchAuto      = strategy.Auto
	SearchUnicast   = strategy.Unicast   // one packet to each member
	SearchBroadcast = strategy.Broadcast // one packet to the group
	SearchTree      = strategy.Tree      // members pass the question on

	SearchCast = SearchBroadcast // Deprecated: use SearchBroadcast.
	SearchEach = SearchUnicast   // Deprecated: use SearchUnicast.
)

// Comparisons of two numbers; see [At].
const (
	Eq = resource.Eq // equal
	Ne = resource.Ne // not equal
	Lt = resource.Lt // less
	Le = resource.Le // less or equal
	Gt = resource.Gt // greater
	Ge = resource.Ge // greater or equal
)

// Errors, to be matched with errors.Is.
var (
	ErrNotFound     = directory.ErrNotFound    // no resource matches
	ErrNoDirectory  = directory.ErrNoDirectory // no directory serves the node
	ErrRevision     = directory.ErrRevision    // the attributes have changed meanwhile
	ErrExists       = directory.ErrExists      // another resource has the values that are to be unique; see Unique
	ErrCondition    = resource.ErrCondition    // a comparison, an order or an owner makes no sense
	ErrPartial      = directory.ErrPartial     // nobody who could be asked has it, and some nodes could not be
	ErrNotOwner     = directory.ErrNotOwner    // the resource is another context's
	ErrClosed       = dispatch.ErrClosed       // the context or the resource has been closed
	ErrGone         = dispatch.ErrGone         // the target, or what a receive waits for, has ended
	ErrNoReply      = dispatch.ErrNoReply      // a request was received, and released without a reply
	ErrNotCall      = dispatch.ErrNotCall      // the message is no request, or has been replied to
	ErrUnsupported  = dispatch.ErrUnsupported  // a call to a context of a version without calls
	ErrUnreachable  = dispatch.ErrUnreachable  // the target's context cannot be reached
	ErrEmpty        = dispatch.ErrEmpty        // nothing to receive
	ErrNotReceived  = dispatch.ErrNotReceived  // PutBack of a message that was not received there
	ErrFull         = dispatch.ErrFull         // TrySend would have to wait
	ErrStuck        = dispatch.ErrStuck        // a receive waits for what the full mailbox has no room for
	ErrSelect       = dispatch.ErrSelect       // no message can match the selectors of a receive
	ErrPolling      = dispatch.ErrPolling      // no such policy, or a budget that makes no sense
	ErrTooLarge     = sentinel.ErrTooLarge     // a message, a buffer, an attribute or a list of them exceeds its limit, or a size is negative
	ErrRule         = dispatch.ErrRule         // the rules make no sense; see WithRules
	ErrCluster      = context.ErrCluster       // the node is in another cluster than the one that was named
	ErrMember       = directory.ErrMember      // the settings of a Member make no sense, or its key cannot be used
	ErrCertificates = context.ErrCertificates  // certificates are wanted and not given, or given and not wanted, or cannot be used
	ErrLimit        = buffers.ErrLimit         // the memory given to buffers is used up
	ErrValue        = codec.ErrValue           // a value cannot be encoded, or a payload is no value of the type
	ErrReadOnly     = buffers.ErrReadOnly      // the memory of a buffer can only be read: it is another process's
)

// MaxMessage is the longest message in bytes.
const MaxMessage = dispatch.MaxMessage

// Open joins the node's directory, or serves it if nobody does, and returns a
// new context. ctx bounds the opening only.
func Open(ctx stdctx.Context, opts ...Option) (*Context, error) { return context.Open(ctx, opts...) }

// SendValue sends the value v as [Resource.Send] sends a buffer; the receiver calls [Value]
// with the same T. Raw values, which are numbers, booleans, arrays and structs of these, and
// slices of them, are sent as they lie in memory; []byte and string as their bytes; all others
// as CBOR. A codec, of which at most one is given, has a format of its own. Package codec has
// the details.
//
// SendValue waits, until ctx ends, for memory and for credit. It fails with ErrValue if v
// cannot be encoded, with the error of the codec, and as [Context.BufferWait] and Send do.
func SendValue[T any](ctx stdctx.Context, r *Resource, to GID, tag uint64, v T, c ...Codec[T]) error {
	return context.SendValue(ctx, r, to, tag, v, c...)
}

// Value returns the value in a message from [SendValue]: a copy, that shares no memory with
// the message. It fails with ErrValue if the payload is no value of type T.
func Value[T any](m *Message, c ...Codec[T]) (T, error) { return context.Value(m, c...) }

// EncodeValue returns a buffer with what [SendValue] would send, for methods that take a buffer,
// such as [Resource.Call], [Resource.Reply] and [Resource.SendAll]. The caller owns it.
func EncodeValue[T any](ctx stdctx.Context, c *Context, v T, own ...Codec[T]) (*Buffer, error) {
	return context.EncodeValue(ctx, c, v, own...)
}

// From selects messages from any of ids. A receive with From of no identifier fails with
// ErrSelect.
func From(ids ...GID) Select { return dispatch.From(ids...) }

// Tag selects messages with any of tags. A receive with Tag of no tag fails with ErrSelect.
func Tag(tags ...uint64) Select { return dispatch.Tag(tags...) }

// Tags selects messages with tags from first to last, both included. If first is greater than
// last, a receive fails with ErrSelect.
func Tags(first, last uint64) Select { return dispatch.Tags(first, last) }

// TagMask selects messages whose tag has, in the bits that are set in mask, the bits of
// value. If value has a bit that is not in mask, a receive fails with ErrSelect.
func TagMask(mask, value uint64) Select { return dispatch.TagMask(mask, value) }

// Any selects messages that match at least one of sel. Several selectors that are given
// to a receive must all match; [All] is such a conjunction within Any:
//
//	m, err := me.Recv(ctx, rocl.Any(
//		rocl.All(rocl.From(server), rocl.Tag(reply)),
//		rocl.Tag(cancelled),
//	))
func Any(sel ...Select) Select { return dispatch.Any(sel...) }

// RecvAny receives from several resources of one context; see [context.RecvAny].
func RecvAny(ctx stdctx.Context, rs []*Resource, sel ...Select) (*Resource, *Message, error) {
	return context.RecvAny(ctx, rs, sel...)
}

// All selects messages that match each of sel.
func All(sel ...Select) Select { return dispatch.All(sel...) }

// Want asks for the values of these attributes only. One that a resource lacks
// stays absent, which is not the same as empty.
func Want(names ...string) FindOption { return context.Want(names...) }

// Covered lets FindAll say, when it has come to its end, and Find with Least or Most,
// which nodes of a cluster were asked. That some could not be is then no error; otherwise
// FindAll ends with ErrPartial.
func Covered(v *Coverage) FindOption { return context.Covered(v) }

// At narrows a pattern to the resources whose attribute is a decimal number for which op
// holds: At("cores", rocl.Ge, 4) matches what has 4 cores or more. Numbers are compared
// without rounding; an attribute that is no number, or missing, never matches. See
// [context.At].
func At[N context.Number](name string, op Op, n N) FindOption { return context.At(name, op, n) }

// Least orders by the number in an attribute, the least first: Find with Least("load")
// returns the resource with the least load in the cluster. Every node is asked, so this
// takes as long as the slowest one; nodes that could not be asked are left out. See
// [context.Least].
func Least(name string) FindOption { return context.Least(name) }

// Most is Least with the greatest number first.
func Most(name string) FindOption { return context.Most(name) }

// ParseGID reads an identifier as GID.String writes it.
func ParseGID(s string) (GID, error) { return resource.ParseGID(s) }

// WithSocket names the Unix socket of the node's directory. The default is
// $ROCL_SOCKET, else a socket in the user's runtime directory.
func WithSocket(path string) Option { return context.WithSocket(path) }

// JoinOnly makes Open fail with ErrNoDirectory where no directory serves the
// node, rather than serve it.
func JoinOnly() Option { return context.JoinOnly() }

// WithTransports names the transports to open a port on, best first. The
// default is in-process, then shared memory, then TCP on the loopback interface
// and, on a node that is in a cluster, at the address by which the other nodes
// know it. In a cluster with a key that is TLS, which takes its place behind TCP
// if there is TCP and no TLS among those named.
//
// What is above 2 KiB and comes over shared memory can be read only: see
// [Message.Writable].
func WithTransports(t ...subsys.Transport) Option { return context.WithTransports(t...) }

// WithRules says over what messages go to other contexts: control over one
// transport and data over another at once, by tag or by size. What no rule fits
// goes as without rules. The other contexts need none.
//
//	rocl.WithRules(
//		rocl.Rule{Tags: []rocl.TagRange{{First: 0, Last: 99}}, Over: []string{"tcp"}, Only: true}, // control
//		rocl.Rule{Min: 64 << 10, Over: []string{"shm", "tls"}},                                      // large payloads
//	)
//
// Messages of one tag from one resource to another keep their order; those of
// different tags that take different transports have none among them. Open fails
// with ErrRule if the rules make no sense or name transports that the context has
// not.
func WithRules(r ...Rule) Option { return context.WithRules(r...) }

// WithListen names addresses to listen at, such as tcp://10.0.0.7:0, in place
// of the one its transport would choose. In a cluster with a key TCP is for this
// node alone, and Open refuses other addresses of it.
func WithListen(urls ...string) Option { return context.WithListen(urls...) }

// WithPoll says whether those who wait for messages poll before they sleep. Open
// refuses a policy that there is not.
func WithPoll(p PollPolicy) Option { return context.WithPoll(p) }

// WithPollBudget says how long PollAdaptive polls at most before it sleeps, up to a
// second; 50 µs if not given, or 0.
func WithPollBudget(d time.Duration) Option { return context.WithPollBudget(d) }

// WithPollers says how many goroutines of this process, whichever contexts they
// wait in, poll at once; who of this context is one too many sleeps. If not given, or
// 0, it is one less than GOMAXPROCS for PollAdaptive, and any number for
// PollAlways. In one context no more than one ever polls, for all who wait.
func WithPollers(n int) Option { return context.WithPollers(n) }

// WithMailbox sets the byte limit of mailboxes; 16 MiB if not given, and never less than
// 64 KiB. Beyond it senders wait, but each context that sends may have 64 KiB more in a
// mailbox: it sends so much without asking. MailboxLimit and MailboxMessages are exact.
func WithMailbox(bytes int) Option { return context.WithMailbox(bytes) }

// WithMemory bounds the registered memory of the context's buffers, in bytes. Where it
// is used up, other contexts' messages wait on their connections until some is released,
// and [Context.Buffer] fails with ErrLimit. An eighth of it, and twice what other
// contexts have been promised and have not sent yet, together seldom more than half, is
// kept for what comes. A message longer than three quarters of it is never let in: its
// sender waits.
func WithMemory(bytes int64) Option { return context.WithMemory(bytes) }

// WithLinger says how long Close waits for accepted messages to be delivered;
// 5 s if not given.
func WithLinger(d time.Duration) Option { return context.WithLinger(d) }

// WithGiveUp sets the time after which sends and calls to a context that is out of reach fail
// with ErrUnreachable, and monitors of its resources tell of their end; 10 s if not given.
// That comes sooner, with ErrGone, if gossip declares the context's node dead and the context
// does not answer. In a long partition gossip declares living nodes dead: their contexts have
// ended for those that were told, though they live. A node that reaches no other member
// declares no node dead. WithGiveUp is also how long a receive waits behind messages that it does not select before it fails
// with ErrStuck: see [Resource.Recv].
func WithGiveUp(d time.Duration) Option { return context.WithGiveUp(d) }

// WithCluster names the cluster; contexts of different clusters do not link. The
// default is $ROCL_CLUSTER, else the name that the node's directory gives. Open
// fails with ErrCluster if the directory is in another cluster.
func WithCluster(name string) Option { return context.WithCluster(name) }

// WithMember makes the node a member of the cluster while this context serves
// it, because no daemon does: what dirserver --bind --join --key-file does.
//
//	rocl.WithMember(cluster.Member{ // package directory/cluster
//		Bind:    "10.0.0.7:7946",                            // this node, UDP and TCP
//		Join:    []string{"10.0.0.7:7946", "10.0.0.8:7946"}, // or Group, a multicast group
//		KeyFile: "cluster.key",                              // mode 0600; without it nothing is sealed
//	})
//
// If the context ends, another one of the node with this option goes on in its
// place. cluster.Environment returns the member that the environment describes: $ROCL_BIND and others. Programs
// that do not pass WithMember do not link what clusters need; such a program does not serve a node where
// $ROCL_BIND is set: ErrMember.
func WithMember(m Member) Option { return context.WithMember(m) }

// WithCertificates names PEM files with a certificate, its key, and the
// authorities whose certificates are accepted, with which links to other nodes
// are sealed in place of certificates that are made from the cluster's key. All
// nodes of the cluster must have some. The default is $ROCL_TLS_CERT,
// $ROCL_TLS_KEY and $ROCL_TLS_CA.
func WithCertificates(cert, key, ca string) Option { return context.WithCertificates(cert, key, ca) }

// WithLogger sends the library's logs to l. They are discarded otherwise. The handler of l
// is called by a goroutine of its own, without locks: see [context.WithLogger].
func WithLogger(l *slog.Logger) Option { return context.WithLogger(l) }

// WithUndelivered calls f for each message that Send accepted and that could not
// be delivered, because its resource or context is gone. A message that was in the
// mailbox of a process that is killed counts as delivered. One goroutine makes the
// calls, one at a time, in the order in which the library learned of them. No lock
// is held: f may block, and may use and close the context. Reports wait
// meanwhile, up to 1,048,576; further ones are dropped, logged once and counted in
// Stats.Unreported. Close waits for the calls as long as WithLinger says, and at
// least a second. A panic in f ends the program.
func WithUndelivered(f func(Undelivered)) Option { return context.WithUndelivered(f) }

// MailboxLimit sets the byte limit of the mailbox of the resource that is being
// registered. It is for all senders together. While the mailbox is full Send waits, and TrySend
// fails with ErrFull: see [context.MailboxLimit].
func MailboxLimit(bytes int) RegisterOption { return context.MailboxLimit(bytes) }

// MailboxMessages sets how many messages the mailbox of the resource that is being
// registered holds, for all senders together. While the mailbox is full Send waits, and TrySend
// fails with ErrFull: see [context.MailboxMessages].
func MailboxMessages(n int) RegisterOption { return context.MailboxMessages(n) }

// Workers has [Resource.Handle] handle up to n messages at the same time, by n goroutines.
// Further messages wait in the mailbox. Calls that overlap have no order. Handle fails if n is
// less than 1.
func Workers(n int) HandleOption { return context.Workers(n) }

// EachInOwn has [Resource.Handle] handle each message in a goroutine of its own. The number of
// goroutines has no limit, and the mailbox's limit does not stop senders; see [Workers].
func EachInOwn() HandleOption { return context.EachInOwn() }

// Handling has [Resource.Handle] handle only the messages that every selector wants.
func Handling(sel ...Select) HandleOption { return context.Handling(sel...) }

// OnPanic has f called where the function of [Resource.Handle] panics, with the message and
// the value of the panic. f may reply to the message, and must not release it. Without OnPanic
// the panic is logged at level error, which is seen only with [WithLogger]. Handle goes on in
// either case. A panic of f itself is not contained: like any panic it ends the program.
func OnPanic(f func(m *Message, value any)) HandleOption { return context.OnPanic(f) }

// Unique lets Register fail with ErrExists where another resource in reach has the same
// values of these attributes, on any node. It fails with ErrPartial where a node could
// not be asked. It says nothing about later registrations without Unique, about Set and
// Update, or about the two sides of a partition: see [context.Unique].
func Unique(names ...string) RegisterOption { return context.Unique(names...) }
