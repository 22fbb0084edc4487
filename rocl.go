// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/codec"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/sentinel"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// The types that programs use most. The documentation of each type is where it is defined.
type (
	Op                = resource.Op                // a comparison of two numbers; see At
	GID               = resource.GID               // the identifier of a resource, a context or a node
	List              = resource.List              // a list of attributes; values are any bytes, and names may repeat
	Attributes        = resource.Attributes        // a List, Attrs or Match
	Attrs             = resource.Attrs             // attributes of a resource, as a literal
	Match             = resource.Match             // a pattern to find resources by, as a literal
	Buffer            = buffers.Buffer             // memory for the payload of a message
	Message           = dispatch.Message           // a received message
	Select            = dispatch.Select            // a condition on messages to receive; see From, Tag, Tags, TagMask and Any
	Envelope          = dispatch.Envelope          // a message without its payload, from Resource.Peek
	Undelivered       = dispatch.Undelivered       // an accepted message that could not be delivered; see WithUndelivered
	FlushError        = dispatch.FlushError        // the error of a Flush, with the number of undelivered messages
	Route             = dispatch.Route             // the transport between two contexts; see Context.Routes
	NoConnectionError = dispatch.NoConnectionError // the error of an operation that ended while there was no connection
	PollPolicy        = dispatch.PollPolicy        // how a waiting goroutine polls; see WithPoll
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
const ()

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
	ErrCluster      = icontext.ErrCluster      // the node is in another cluster than WithCluster names
	ErrCertificates = icontext.ErrCertificates // certificates are missing, or given where none are used, or cannot be used
	ErrNoTLS        = icontext.ErrNoTLS        // the cluster needs TLS, and the program was built without it (the build tag roclnotls)
	ErrMember       = directory.ErrMember      // the settings of a Member are invalid, or its key cannot be used
	ErrLimit        = buffers.ErrLimit         // the memory that WithMemory allows, or its default, is used up
	ErrValue        = codec.ErrValue           // a value cannot be encoded, or a payload is not a value of the type
	ErrReadOnly     = buffers.ErrReadOnly      // the memory of a buffer belongs to another process and can only be read
	ErrIncomplete   = directory.ErrIncomplete  // an attribute has no value, or an attribute that must be unique is missing
	ErrEmptyName    = resource.ErrEmptyName    // the name of an attribute is empty
	ErrBadName      = resource.ErrBadName      // the name of an attribute is not UTF-8
	ErrReservedName = resource.ErrReservedName // the name of an attribute begins with "rocl."
	ErrBadGID       = resource.ErrBadGID       // a text is not an identifier; see ParseGID and AttrContext
	ErrAddress      = subsys.ErrAddress        // no transport of the context can listen at an address of WithListen
	ErrUnavailable  = subsys.ErrUnavailable    // this machine gives no transport of the context a port, or not the one of WithListen
	ErrUntrusted    = directory.ErrUntrusted   // another user could have put the directory, or one of its files, at its path
	ErrDenied       = directory.ErrDenied      // the directory refuses this process; for that of another user, fs.ErrPermission matches too
	ErrSilent       = directory.ErrSilent      // the process that serves the directory does not answer
	ErrNoSummary    = directory.ErrNoSummary   // the directory of a node makes no summary; see Context.Summaries
	ErrOccupied     = directory.ErrOccupied    // a foreign file lies at the path of a file of the directory
)

// MaxMessage is the greatest length of a message in bytes.
const MaxMessage = dispatch.MaxMessage

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

// All selects messages that match each of the selectors sel.
func All(sel ...Select) Select { return dispatch.All(sel...) }

// ParseGID returns the identifier that the text s describes, in the form that GID.String returns.
// It fails with ErrBadGID.
func ParseGID(s string) (GID, error) { return resource.ParseGID(s) }
