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

// The types that programs use most. The documentation of each type is where it is defined.
type (
	Context           = context.Context            // one participant; a process usually opens one
	Resource          = context.Resource           // attributes and a mailbox; sends and receives messages
	Found             = context.Found              // a resource that Find, FindAll or Lookup has found
	Event             = context.Event              // a change that Context.Watch yields
	Stats             = context.Stats              // counts of what a context did; see Context.Stats
	Option            = context.Option             // an option of Open
	RegisterOption    = context.RegisterOption     // an option of Context.Register
	FindOption        = context.FindOption         // an option of Context.Find, FindAll, Await and Watch
	HandleOption      = context.HandleOption       // an option of Resource.Handle
	Op                = resource.Op                // a comparison of two numbers; see At
	GID               = resource.GID               // the identifier of a resource, a context or a node
	List              = resource.List              // a list of attributes; values are any bytes, and names may repeat
	Attributes        = resource.Attributes        // a List, Attrs or Match
	Attrs             = resource.Attrs             // attributes of a resource, as a literal
	Match             = resource.Match             // a pattern to find resources by, as a literal
	Buffer            = buffers.Buffer             // memory for the payload of a message
	Message           = dispatch.Message           // a received message
	Select            = dispatch.Select            // a condition on messages to receive; see From, Tag, Tags, TagMask and Any
	Pending           = context.Pending            // a call that waits for its reply; see Resource.StartCall
	Envelope          = dispatch.Envelope          // a message without its payload, from Resource.Peek
	Undelivered       = dispatch.Undelivered       // an accepted message that could not be delivered; see WithUndelivered
	FlushError        = dispatch.FlushError        // the error of a Flush, with the number of undelivered messages
	Rule              = context.Rule               // the transports that lead to some resources; see WithRules
	Route             = dispatch.Route             // the transport between two contexts; see Context.Routes
	NoConnectionError = dispatch.NoConnectionError // the error of an operation that ended while there was no connection
	PollPolicy        = dispatch.PollPolicy        // how a waiting goroutine polls; see WithPoll
	SendError         = context.SendError          // the error of one target of Resource.SendAll
	SendErrors        = context.SendErrors         // the error of Resource.SendAll: a SendError for each target that has failed
	Member            = context.Member             // the settings of a cluster member; see WithMember
	Coverage          = directory.Coverage         // the nodes that a find has asked; see Covered
	SearchStrategy    = strategy.Strategy          // how a directory asks other members; see Member
)

// A Codec encodes values of type T in a format of the program. See [SendValue].
type Codec[T any] = codec.Codec[T]

// The kinds of events of [Context.Watch]. Messages from a resource may arrive after its event Gone.
const (
	Appeared = directory.Appeared // a resource matches that did not match before
	Changed  = directory.Changed  // the attributes of a matching resource have changed
	Gone     = directory.Gone     // a resource has ended, or matches no more
	Synced   = directory.Synced   // all resources that matched at the beginning have been yielded
)

// The attributes of the library. Contexts and nodes are resources too. A pattern finds them only if
// it names one of these attributes, such as {AttrKind: "node"}.
const (
	AttrKind    = context.AttrKind    // "context" or "node"
	AttrAddr    = context.AttrAddr    // of a context: an address, repeated; of a node in a cluster: HOST:PORT
	AttrPID     = context.AttrPID     // of a context: the number of its process
	AttrOver    = context.AttrOver    // of a resource that was registered with Over: the transports
	AttrContext = context.AttrContext // of any resource: the context that owns it; can be asked for and matched
	AttrNode    = context.AttrNode    // of a node: its number, 12 hexadecimal digits
	AttrHost    = context.AttrHost    // of a node: the name of the machine
	AttrOS      = context.AttrOS      // of a node: the operating system, as GOOS
	AttrArch    = context.AttrArch    // of a node: the architecture, as GOARCH
	AttrCores   = context.AttrCores   // of a node: the number of processors that its directory may use, decimal
	AttrMemory  = context.AttrMemory  // of a node: bytes of memory that its directory may use, decimal
	AttrVersion = context.AttrVersion // of a node: the version of its directory
)

// The policies of [WithPoll]: how a goroutine that waits for messages polls before it sleeps.
const (
	PollAdaptive = dispatch.PollAdaptive // polls while polling has paid off lately, up to the budget; the default
	PollNever    = dispatch.PollNever    // sleeps at once
	PollAlways   = dispatch.PollAlways   // polls until the message is there
)

// The search strategies of a [Member]: how a directory asks other members. [SearchAuto] chooses by
// the number of members.
const (
	SearchAuto      = strategy.Auto
	SearchUnicast   = strategy.Unicast   // one packet to each member
	SearchBroadcast = strategy.Broadcast // one packet to the group
	SearchTree      = strategy.Tree      // members pass the question on

)

// The comparisons of two numbers, for [At].
const (
	Eq = resource.Eq // equal
	Ne = resource.Ne // not equal
	Lt = resource.Lt // less
	Le = resource.Le // less or equal
	Gt = resource.Gt // greater
	Ge = resource.Ge // greater or equal
)

// The errors of the library. Match them with errors.Is.
var (
	ErrNotFound     = directory.ErrNotFound    // no resource matches
	ErrNoDirectory  = directory.ErrNoDirectory // no directory serves the node
	ErrRevision     = directory.ErrRevision    // the attributes have changed meanwhile
	ErrExists       = directory.ErrExists      // another resource has the values that must be unique; see Unique
	ErrCondition    = resource.ErrCondition    // a comparison, an order or an owner in a pattern is invalid
	ErrPartial      = directory.ErrPartial     // no node that could be asked has a match, and some nodes could not be asked
	ErrNotOwner     = directory.ErrNotOwner    // another context owns the resource
	ErrClosed       = dispatch.ErrClosed       // the context or the resource is closed
	ErrGone         = dispatch.ErrGone         // the target, or the origin that a receive waits for, has ended
	ErrNodeDead     = dispatch.ErrNodeDead     // a monitored resource is taken for ended because gossip says that its node is dead; it may live. Matches ErrGone
	ErrNoReply      = dispatch.ErrNoReply      // the receiver released the request without a reply
	ErrNotCall      = dispatch.ErrNotCall      // the message is not a request, or has been replied to
	ErrUnreachable  = dispatch.ErrUnreachable  // the target's context cannot be reached
	ErrEmpty        = dispatch.ErrEmpty        // no message can be received now
	ErrNotReceived  = dispatch.ErrNotReceived  // PutBack of a message that this resource did not receive
	ErrFull         = dispatch.ErrFull         // TrySend would have to wait
	ErrStuck        = dispatch.ErrStuck        // a receive waits for a message that the full mailbox has no room for
	ErrSelect       = dispatch.ErrSelect       // no message can match the selectors of a receive
	ErrPolling      = dispatch.ErrPolling      // the policy is unknown, or the budget or the number of pollers is invalid
	ErrTooLarge     = sentinel.ErrTooLarge     // a message, a buffer, an attribute or a list of them exceeds its limit, or a size is negative
	ErrRule         = dispatch.ErrRule         // transports are invalid; see WithRules and Over
	ErrCluster      = context.ErrCluster       // the node is in another cluster than WithCluster names
	ErrMember       = directory.ErrMember      // the settings of a Member are invalid, or its key cannot be used
	ErrCertificates = context.ErrCertificates  // certificates are missing, or given where none are used, or cannot be used
	ErrNoTLS        = context.ErrNoTLS         // the cluster needs TLS, and the program was built without it (the build tag roclnotls)
	ErrLimit        = buffers.ErrLimit         // the memory that WithMemory allows, or its default, is used up
	ErrValue        = codec.ErrValue           // a value cannot be encoded, or a payload is not a value of the type
	ErrReadOnly     = buffers.ErrReadOnly      // the memory of a buffer belongs to another process and can only be read
	ErrIncomplete   = directory.ErrIncomplete  // an attribute has no value, or an attribute that must be unique is missing
	ErrEmptyName    = resource.ErrEmptyName    // the name of an attribute is empty
	ErrBadName      = resource.ErrBadName      // the name of an attribute is not UTF-8
	ErrReservedName = resource.ErrReservedName // the name of an attribute begins with "rocl."
	ErrBadGID       = resource.ErrBadGID       // a text is not an identifier; see ParseGID and AttrContext
	ErrWorkers      = context.ErrWorkers       // the number of Workers is less than 1
	ErrIdentifiers  = context.ErrIdentifiers   // the context has used all its identifiers
	ErrAddress      = subsys.ErrAddress        // no transport of the context can listen at an address of WithListen
	ErrUnavailable  = subsys.ErrUnavailable    // this machine gives no transport of the context a port, or not the one of WithListen
	ErrUntrusted    = directory.ErrUntrusted   // another user could have put the directory, or one of its files, at its path
	ErrDenied       = directory.ErrDenied      // the directory refuses this process; for that of another user, fs.ErrPermission matches too
	ErrSilent       = directory.ErrSilent      // the process that serves the directory does not answer
	ErrOccupied     = directory.ErrOccupied    // a foreign file lies at the path of a file of the directory
)

// MaxMessage is the greatest length of a message in bytes.
const MaxMessage = dispatch.MaxMessage

// Open returns a new context. It joins the node's directory, or serves the directory if no other
// process does. ctx limits the opening only: a later end of ctx does not close the context. Close
// the context with [Context.Close].
//
// Open waits for the directory until ctx ends, and then fails with the cause of ctx's end. It also
// fails with:
//   - ErrNoDirectory, ErrUntrusted, ErrDenied, ErrSilent, ErrOccupied: the directory can neither be
//     joined nor served;
//   - ErrCluster, ErrMember, ErrCertificates: the settings do not fit the cluster;
//   - ErrNoTLS: the cluster needs TLS, and the program was built without it;
//   - ErrAddress, ErrUnavailable: the context cannot listen;
//   - ErrRule, ErrPolling: an option is invalid.
func Open(ctx stdctx.Context, opts ...Option) (*Context, error) { return context.Open(ctx, opts...) }

// SendValue sends the value v as a message from r to the resource with identifier to, as
// [Resource.Send] sends a buffer. The receiver calls [Value] with the same T.
//
// T decides the format. Raw values are sent as they lie in memory: numbers, booleans, arrays and
// structs of these, and slices of them. A []byte and a string are sent as their bytes. All other
// values are sent as CBOR. A codec, of which at most one may be given, replaces this by a format of
// its own; nil stands for none. Package codec has the details.
//
// SendValue waits, until ctx ends, for memory and for credit. It fails with ErrValue if v cannot be
// encoded, with the error of the codec, and as [Context.BufferWait] and Send do. The caller may
// change what v refers to as soon as SendValue returns.
func SendValue[T any](ctx stdctx.Context, r *Resource, to GID, tag uint64, v T, c ...Codec[T]) error {
	return context.SendValue(ctx, r, to, tag, v, c...)
}

// Value returns the value that a message from [SendValue] has as its payload. T, and the codec if
// one was given, must be those of the sender. The value shares no memory with the message, which
// stays the caller's to release.
//
// Value fails with ErrValue if the payload is not a value of type T: it was sent as another type,
// or is too short or too long. With a codec it fails with the error of the codec.
func Value[T any](m *Message, c ...Codec[T]) (T, error) { return context.Value(m, c...) }

// EncodeValue returns a buffer with the payload that [SendValue] would send. It is for methods that
// take a buffer, such as [Resource.Call], [Resource.Reply] and [Resource.SendAll]. The receiver of
// the message calls [Value]. The caller owns the buffer. EncodeValue waits for memory until ctx
// ends, and fails as SendValue does before it sends.
func EncodeValue[T any](ctx stdctx.Context, c *Context, v T, own ...Codec[T]) (*Buffer, error) {
	return context.EncodeValue(ctx, c, v, own...)
}

// From selects messages from any of the resources ids. A receive with From of no identifier fails
// with ErrSelect.
func From(ids ...GID) Select { return dispatch.From(ids...) }

// Tag selects messages with any of the given tags. A receive with Tag of no tag fails with
// ErrSelect.
func Tag(tags ...uint64) Select { return dispatch.Tag(tags...) }

// Tags selects messages with tags from first to last, both included. If first is greater than last,
// a receive fails with ErrSelect.
func Tags(first, last uint64) Select { return dispatch.Tags(first, last) }

// TagMask selects messages whose tag equals value in the bits that are set in mask. If value has a
// bit that is not in mask, a receive fails with ErrSelect.
func TagMask(mask, value uint64) Select { return dispatch.TagMask(mask, value) }

// Any selects messages that match at least one of the selectors sel. If a receive is given several
// selectors, a message must match all of them; [All] makes such a conjunction within Any:
//
//	m, err := me.Recv(ctx, rocl.Any(
//		rocl.All(rocl.From(server), rocl.Tag(reply)),
//		rocl.Tag(cancelled),
//	))
func Any(sel ...Select) Select { return dispatch.Any(sel...) }

// RecvAny receives from several resources of one context. It returns the first message that matches
// all selectors, and the resource that received the message. If several resources have such a
// message, RecvAny chooses one of them at random, so none starves. Its time grows with the number
// of resources.
//
// RecvAny fails with ErrClosed if a resource is closed and no resource has a message; the error
// names that resource, which is returned too. It fails with ErrSelect if no message can match, if
// rs is empty or has a nil, or if rs belong to several contexts. Otherwise it fails as
// [Resource.Recv] does. A message that arrives as RecvAny fails, or for a resource that RecvAny
// does not return, stays for the next receive.
func RecvAny(ctx stdctx.Context, rs []*Resource, sel ...Select) (*Resource, *Message, error) {
	return context.RecvAny(ctx, rs, sel...)
}

// All selects messages that match each of the selectors sel.
func All(sel ...Select) Select { return dispatch.All(sel...) }

// Want limits the attributes of the answers to those with the given names. An attribute that a
// resource lacks is absent from the answer, which is not the same as an empty value.
func Want(names ...string) FindOption { return context.Want(names...) }

// Covered makes a find fill in v with the nodes of the cluster that it has asked. FindAll fills in
// v when its loop has ended, Find only with [Least] or [Most]. With Covered a node that could not
// be asked is no error; without it FindAll ends with ErrPartial.
func Covered(v *Coverage) FindOption { return context.Covered(v) }

// At narrows a pattern to the resources whose attribute is a number for which op holds. At("cores",
// rocl.Ge, 4) matches resources with 4 cores or more. Several conditions must all hold. A pattern
// has at most 16. A number n that is not finite is an error.
//
// The attribute's value is a decimal text of at most 128 bytes, such as 4, -0.25 or 1e9, and is
// compared without rounding. An attribute that is missing, or is not a number, does not match, not
// even rocl.Ne. If several attributes have the name, the first counts.
//
// Each node compares the resources that are registered there. A find by the node's index in shared
// memory compares in this process, and so do a watch and Await.
func At[N context.Number](name string, op Op, n N) FindOption { return context.At(name, op, n) }

// Least orders the answers by the number in an attribute, the least first. Find with Least("load")
// returns the resource with the least load. A resource whose attribute is missing, or is not a
// number, comes last. Among equal resources the choice of the first varies. A pattern has one
// order.
//
// Find asks every node for its first resource and returns the first among the answers. So it takes
// as long as the slowest node: some seconds if a node does not answer and is not known to be dead.
// Find without an order returns the first answer that comes. Nodes that could not be asked are left
// out; [Covered] tells which.
//
// FindAll with an order yields nothing before all answers have come, and then yields them in that
// order. Await returns the resources in that order. Watch refuses an order.
func Least(name string) FindOption { return context.Least(name) }

// Most orders the answers by the number in an attribute, the greatest first. Otherwise it is like
// [Least].
func Most(name string) FindOption { return context.Most(name) }

// ParseGID returns the identifier that the text s describes, in the form that GID.String returns.
// It fails with ErrBadGID.
func ParseGID(s string) (GID, error) { return resource.ParseGID(s) }

// WithSocket sets the path of the Unix socket of the node's directory. The default is $ROCL_SOCKET,
// or else a socket in the user's runtime directory.
func WithSocket(path string) Option { return context.WithSocket(path) }

// JoinOnly forbids the context to serve the node's directory. Open fails with ErrNoDirectory if no
// process serves it. If the process that serves it ends and no other one takes over, questions of
// the context wait, and contexts that have ended are given up after the time of [WithGiveUp].
func JoinOnly() Option { return context.JoinOnly() }

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
func WithTransports(t ...subsys.Transport) Option { return context.WithTransports(t...) }

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
func WithRules(r ...Rule) Option { return context.WithRules(r...) }

// Over sets the transports by which other contexts reach the resource that is being registered,
// best first. Requests, replies and messages use them, whatever the rules of the sender. A last
// entry "*" stands for all other transports; without it, the resource is unreachable
// (ErrUnreachable) for contexts that none of the transports reaches. An entry tcp://10.2.0.0/16 is
// TCP to addresses in that network, at which the context must listen ([WithListen]). So control and
// data use two networks:
//
//	control, err := c.Register(ctx, a, rocl.Over("tcp://10.1.0.0/16"))
//	data, err := c.Register(ctx, b, rocl.Over("tcp://10.2.0.0/16", "*"))
//
// The list is the attribute [AttrOver] of the resource. It tells senders where to connect; it does
// not keep anything out. Messages within the context use no transport. Register fails with ErrRule
// if an entry is invalid, or names a transport that the context does not have.
func Over(transports ...string) RegisterOption { return context.Over(transports...) }

// WithListen sets addresses at which the context listens, such as tcp://10.0.0.7:0. They replace
// the address that the transport would choose. In a cluster with a key, TCP serves only this node.
// Open fails with ErrAddress if no transport of the context listens at an address, and for TCP
// addresses in such a cluster that are not on the loopback interface. It fails with ErrUnavailable
// if this machine does not give the address, for example because it is in use.
func WithListen(urls ...string) Option { return context.WithListen(urls...) }

// WithPoll sets whether a goroutine that waits for messages polls before it sleeps. The default is
// [PollAdaptive]. Open fails with ErrPolling for an unknown policy.
func WithPoll(p PollPolicy) Option { return context.WithPoll(p) }

// WithPollBudget limits how long a goroutine polls with [PollAdaptive] before it sleeps. The
// default, also for 0, is 50 µs. Open fails with ErrPolling for a negative budget or one above a
// second.
func WithPollBudget(d time.Duration) Option { return context.WithPollBudget(d) }

// WithPollers limits how many goroutines in this process may poll at once, whichever contexts they
// wait in. A waiter of this context over the limit sleeps instead. The default, also for 0, is
// GOMAXPROCS less one, but at least one, with [PollAdaptive], and no limit with [PollAlways]. In
// one context at most one goroutine polls, on behalf of all that wait. Open fails with ErrPolling
// for a negative n.
func WithPollers(n int) Option { return context.WithPollers(n) }

// WithMailbox sets the byte limit of each mailbox that has no byte limit of its own. The default is
// 16 MiB; the minimum is 64 KiB. Senders wait while a mailbox is full. Each sending context may
// exceed the limit by 64 KiB, which it sends without asking for credit. [MailboxLimit] and
// [MailboxMessages] set exact limits.
func WithMailbox(bytes int) Option { return context.WithMailbox(bytes) }

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
func WithMemory(bytes int64) Option { return context.WithMemory(bytes) }

// WithLinger sets how long Close waits for accepted messages to be delivered. The default is 5 s.
func WithLinger(d time.Duration) Option { return context.WithLinger(d) }

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
func WithGiveUp(d time.Duration) Option { return context.WithGiveUp(d) }

// WithCluster sets the name of the cluster. Contexts of different clusters do not link. The default
// is $ROCL_CLUSTER, or else the name that the node's directory has. Open fails with ErrCluster if
// the directory is in a cluster with another name.
func WithCluster(name string) Option { return context.WithCluster(name) }

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
func WithMember(m Member) Option { return context.WithMember(m) }

// WithCertificates sets PEM files with a certificate, its key, and the authorities whose
// certificates are accepted. Links to other nodes are sealed with these instead of certificates
// that are made from the cluster's key. Either all nodes of a cluster have such certificates or
// none. The default is $ROCL_TLS_CERT, $ROCL_TLS_KEY and $ROCL_TLS_CA.
func WithCertificates(cert, key, ca string) Option { return context.WithCertificates(cert, key, ca) }

// WithLogger sends the library's logs to l. By default they are discarded. One goroutine calls the
// handler of l, one line at a time, and holds no lock: the handler may block, and may use and close
// the context. Meanwhile up to 1,024 lines wait. Further lines are dropped, counted in
// Stats.LogLinesDropped and reported in a log line.
//
// Close waits for the handler as long as [WithLinger] says, and at least a second. The handler's
// method Enabled is called at once, with locks held: it must not block or call the library.
func WithLogger(l *slog.Logger) Option { return context.WithLogger(l) }

// WithUndelivered calls f for each message that Send accepted and that could not be delivered,
// because its resource or context has ended. A message that was in the mailbox of a killed process
// counts as delivered. f is not called for messages of [Resource.SendAndForget].
//
// One goroutine makes the calls, one at a time, in the order in which the library learned of the
// losses. No lock is held: f may block, and may use and close the context. Meanwhile up to
// 1,048,576 reports wait. Further reports are dropped, logged once and counted in Stats.Unreported.
// Close waits for the calls as long as [WithLinger] says, and at least a second. A panic in f ends
// the program.
func WithUndelivered(f func(Undelivered)) Option { return context.WithUndelivered(f) }

// MailboxLimit sets the byte limit of the mailbox of the resource that is being registered. All
// senders share it. Each message counts 64 bytes more than its length. While the mailbox is full,
// Send waits and TrySend fails with ErrFull. Senders in other processes ask before their first
// message, which takes one more round trip. A limit of 0 or less is ignored: the limit of
// [WithMailbox] applies.
//
// There are three exceptions. While the mailbox is empty, it takes in a message that is longer than
// the limit, or that does not fit because other senders hold unused credit. [Resource.Recv] doubles
// the limit while it waits for a message that is not in the mailbox. Each context of an older
// version may send 64 KiB without asking.
func MailboxLimit(bytes int) RegisterOption { return context.MailboxLimit(bytes) }

// MailboxMessages limits how many messages the mailbox of the resource that is being registered
// holds. All senders share the limit. The limit in bytes of [MailboxLimit] or [WithMailbox] applies
// too, and so do the exceptions of MailboxLimit. While the mailbox is full, Send waits and TrySend
// fails with ErrFull. Each message counts at least the limit in bytes divided by n, also against
// [WithMemory]. An n of 0 or less is no limit.
func MailboxMessages(n int) RegisterOption { return context.MailboxMessages(n) }

// Workers makes [Resource.Handle] handle up to n messages at the same time, in n goroutines. They
// receive the messages in order, but calls of the function that overlap have no order. Further
// messages wait in the mailbox, whose limit stops senders. Handle fails with ErrWorkers if n is
// less than 1.
func Workers(n int) HandleOption { return context.Workers(n) }

// EachInOwn makes [Resource.Handle] handle each message in a new goroutine. The number of
// goroutines has no limit. Messages are received as they come, so the mailbox's limit does not stop
// senders. [Workers] limits both.
func EachInOwn() HandleOption { return context.EachInOwn() }

// Handling makes [Resource.Handle] handle only the messages that match every selector.
func Handling(sel ...Select) HandleOption { return context.Handling(sel...) }

// OnPanic makes [Resource.Handle] call f when its function panics, with the message and the value
// of the panic, in the goroutine that panicked. f may reply to the message, and must not release
// it. Then Handle goes on with the next message. Without OnPanic the panic and its stack are logged
// at level error, which is seen only with [WithLogger]. Stats.HandlerPanics counts panics in either
// case.
//
// A panic of f itself is not contained: it ends the program.
func OnPanic(f func(m *Message, value any)) HandleOption { return context.OnPanic(f) }

// Unique makes [Context.Register] fail with ErrExists if another resource in reach has the same
// values of these attributes, whichever context registered it and with whichever options. The new
// resource must have each of these attributes.
//
// Of several registrations with Unique and the same values at once, at most one succeeds, on one
// node and across a cluster. If none of their contexts ends meanwhile, exactly one succeeds. The
// resource is found only when it is certain that it is the only one. Register waits for that: it
// asks every node three times. It fails with ErrPartial if a node of the cluster could not be
// asked.
//
// Unique holds only for the moment of the registration. Registrations without Unique, Set and
// Update do not look for a resource with the same values. Neither do the two sides of a partition,
// once each side has declared the other dead: each may register a resource, and both resources stay
// when the sides meet again. A program that must prevent this watches for a second resource.
func Unique(names ...string) RegisterOption { return context.Unique(names...) }
