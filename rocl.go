package rocl

import (
	stdctx "context"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/resource"
)

// The everyday names; each is documented where it is defined.
type (
	Context     = context.Context
	Resource    = context.Resource
	Found       = context.Found
	Event       = context.Event
	Stats       = context.Stats
	Option      = context.Option
	GID         = resource.GID
	List        = resource.List
	Attributes  = resource.Attributes
	Attrs       = resource.Attrs
	Match       = resource.Match
	Buffer      = buffers.Buffer
	Message     = dispatch.Message
	Select      = dispatch.Select
	Undelivered = dispatch.Undelivered
	PollPolicy  = dispatch.PollPolicy
)

// Kinds of events of a Watch.
const (
	Appeared = directory.Appeared
	Changed  = directory.Changed
	Gone     = directory.Gone
	Synced   = directory.Synced
)

// What waiters do before they sleep; see WithPoll.
const (
	PollAdaptive = dispatch.PollAdaptive
	PollOff      = dispatch.PollOff
	PollAlways   = dispatch.PollAlways
)

// Errors, to be matched with errors.Is.
var (
	ErrNotFound    = directory.ErrNotFound    // no resource matches
	ErrNoDirectory = directory.ErrNoDirectory // no directory serves the node
	ErrRevision    = directory.ErrRevision    // the attributes have changed meanwhile
	ErrNotOwner    = directory.ErrNotOwner    // the resource is another context's
	ErrClosed      = dispatch.ErrClosed       // the context or the resource has been closed
	ErrGone        = dispatch.ErrGone         // the target does not exist any more
	ErrUnreachable = dispatch.ErrUnreachable  // the target's context cannot be reached
	ErrEmpty       = dispatch.ErrEmpty        // nothing to receive
	ErrTooLarge    = dispatch.ErrTooLarge     // the message is longer than MaxMessage
	ErrLimit       = buffers.ErrLimit         // the memory given to buffers is used up
)

// MaxMessage is the longest message in bytes.
const MaxMessage = dispatch.MaxMessage

// Open joins the node's directory, or serves it if nobody does, and returns a
// new context. ctx bounds the opening only.
func Open(ctx stdctx.Context, opts ...Option) (*Context, error) { return context.Open(ctx, opts...) }

// From selects messages of one origin.
func From(id GID) Select { return dispatch.From(id) }

// Tag selects messages with one tag.
func Tag(t uint64) Select { return dispatch.Tag(t) }

// Want asks for the values of these attributes only.
func Want(names ...string) context.FindOption { return context.Want(names...) }

// ParseGID reads an identifier as GID.String writes it.
func ParseGID(s string) (GID, error) { return resource.ParseGID(s) }

// Options of Open and Register; see package context for their defaults.
var (
	WithSocket      = context.WithSocket
	JoinOnly        = context.JoinOnly
	WithTransports  = context.WithTransports
	WithListen      = context.WithListen
	WithPoll        = context.WithPoll
	WithMailbox     = context.WithMailbox
	WithMemory      = context.WithMemory
	WithLinger      = context.WithLinger
	WithGiveUp      = context.WithGiveUp
	WithCluster     = context.WithCluster
	WithLogger      = context.WithLogger
	WithUndelivered = context.WithUndelivered
	MailboxLimit    = context.MailboxLimit
)
