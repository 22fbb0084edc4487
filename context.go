// SPDX-License-Identifier: Apache-2.0

package rocl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
	icontext "github.com/rocl-go/rocl/context"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/callqueue"
	"github.com/rocl-go/rocl/internal/logqueue"
	"github.com/rocl-go/rocl/internal/os/cgroup"
	"github.com/rocl-go/rocl/resource"
)

// Attributes of the resource that stands for a context. The identifier of that resource is the
// identifier of the context.
const (
	AttrKind    = directory.AttrKind   // "context"
	AttrAddr    = directory.AttrAddr   // an address of the context; repeated, best first
	AttrPID     = icontext.AttrPID     // the number of the process
	AttrProgram = icontext.AttrProgram // the name of its executable
	AttrContext = icontext.AttrContext // of any resource, if asked for: the identifier of the context that owns it
	AttrOver    = icontext.AttrOver    // of a resource that was registered with Over: the transports, with commas
)

// Attributes of the resource that stands for a node. The resource also has AttrKind, which is
// "node", and the labels that the operator gave the node. If the node is a member of a cluster,
// AttrAddr is its HOST:PORT.
const (
	AttrNode    = directory.AttrNode    // the number of the node, 12 hexadecimal digits
	AttrHost    = directory.AttrHost    // the name of the machine
	AttrOS      = directory.AttrOS      // the operating system, as GOOS
	AttrArch    = directory.AttrArch    // the architecture, as GOARCH
	AttrCores   = directory.AttrCores   // the number of processors that the directory may use, decimal
	AttrMemory  = directory.AttrMemory  // bytes of memory that the directory may use, decimal
	AttrVersion = directory.AttrVersion // the version of the node's directory
)

// A Context is one participant: it registers, finds and watches resources, and its resources
// exchange messages. A process usually opens one, with [Open]. [Context.Close] ends it. All methods
// may be called concurrently.
type Context struct {
	cfg           config
	self          GID // identifier of the context
	life          *icontext.Lifetime
	dir           *icontext.Directory  // of the node
	disp          *dispatch.Dispatcher // links and mailboxes
	pool          *buffers.Pool
	ports         *icontext.Ports
	targets       *icontext.Targets
	questions     *icontext.Questions
	logs          *logqueue.Queue
	handlerPanics atomic.Uint64 // panics of functions of Resource.Handle
	serial        atomic.Uint32 // of the last identifier that was made
	opened        time.Time
	active        sync.Map // GID → *Resource: resources with an Activity or a Handle

	closed   chan struct{} // closed when Close has ended
	closeErr error         // set before closed is closed
}

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
func Open(ctx context.Context, opts ...Option) (*Context, error) {
	if ctx == nil {
		return nil, errors.New("rocl: open a context: no context.Context")
	}
	cfg := icontext.Defaults()
	apply(&cfg, opts)
	logs := logqueue.New(cfg.Logger)
	cfg.Logger = logs.Logger()
	c, err := open(ctx, &cfg, logs)
	if err != nil {
		logs.Drain(ctx)
		return nil, fmt.Errorf("rocl: open a context: %w", err)
	}
	return c, nil
}

// apply sets what the options set in cfg. An option may be nil.
func apply[C any, O ~func(*C)](cfg *C, opts []O) {
	for _, o := range opts {
		if o != nil {
			o(cfg)
		}
	}
}

// open opens a context with the given configuration, whose log lines go through logs. Others may
// ask the context questions before open returns.
func open(ctx context.Context, cfg *config, logs *logqueue.Queue) (*Context, error) {
	rules, err := cfg.Check()
	if err != nil {
		return nil, err
	}
	termsChanged := make(chan struct{}, 1)
	var itself atomic.Pointer[Context]
	cfg.Summary = func(ctx context.Context, contexts []GID) ([]byte, error) {
		c := itself.Load()
		if c == nil {
			return nil, directory.ErrNoSummary // the context is being opened
		}
		return c.Summarize(ctx, contexts)
	}
	client, err := cfg.Join(ctx, termsChanged)
	if err != nil {
		return nil, err
	}
	if cfg.Memory <= 0 {
		cfg.Memory = defaultMemory(cgroup.Read())
	}
	var bopts []buffers.Option
	if cfg.Memory > 0 {
		cfg.Memory = max(cfg.Memory, leastMemory)
		bopts = append(bopts, buffers.WithLimit(cfg.Memory))
	}
	c := &Context{cfg: *cfg, self: client.Self(), life: icontext.NewLifetime(), pool: buffers.New(bopts...), logs: logs, closed: make(chan struct{}), opened: time.Now()}
	c.dir = icontext.NewDirectory(client, c.life)
	c.ports = icontext.NewPorts(&c.cfg, c.self, client, termsChanged)
	c.targets = icontext.NewTargets(c.dir, rules, c.ports.Usable)
	c.disp = dispatch.New(dispatch.Config{
		Self: c.self, Pool: c.pool, Resolve: c.targets.Resolve, Trust: c.ports.Trust,
		Poll: cfg.Poll, Mailbox: cfg.Mailbox, Folder: cfg.Folder(), GiveUp: cfg.GiveUp, Logger: cfg.Logger, Trace: cfg.Trace, Undelivered: cfg.Undelivered,
		Ended: c.targets.Ended,
	})
	c.targets.UseFlows(c.disp)
	if c.questions, err = icontext.NewQuestions(c.dir, c.disp, cfg.Logger, c.snapshotJSON); err == nil {
		err = c.ports.Open(ctx, c.disp)
	}
	if err != nil {
		c.life.End()
		c.disp.Close(ctx)
		client.Close()
		c.pool.Close()
		return nil, err
	}
	itself.Store(c)
	c.life.Go(func() { c.ports.Follow(c.life.Context()) })
	return c, nil
}

// ID returns the context's identifier, which is also that of the resource that stands for it.
func (c *Context) ID() GID { return c.self }

// Buffer returns memory of n bytes for the payload of a message. n is from 0 to
// [MaxMessage]. The memory is not zeroed: it holds bytes of an earlier message that this
// context sent or received, never those of another process. Write all of it, or call Resize, before
// sending it.
//
// The caller owns the buffer. [Resource.Send] takes it over, unless it fails. A buffer that is not
// sent must be released with [buffers.Buffer.Release], or its memory stays in use.
//
// Buffer does not wait. It fails with ErrTooLarge if n is negative or too large, with
// ErrLimit if the limit of [WithMemory] is reached, and with ErrClosed. A buffer larger
// than three quarters of that limit is never given: that error matches both ErrLimit and
// ErrTooLarge.
func (c *Context) Buffer(n int) (*Buffer, error) { return c.disp.Buffer(n) }

// Register returns a new resource with the attributes a, or with none if a is nil, and a mailbox.
// Every attribute must have a value. Two resources may have the same attributes, unless [Unique]
// forbids that. The limits of the mailbox are those of [MailboxLimit] and [MailboxMessages].
// Without these options the limit is that of [WithMailbox], 16 MiB by default.
//
// A list has at most [resource.MaxAttrs] attributes (4,096) and [resource.MaxList] bytes (32 MiB),
// a name [resource.MaxName] bytes (1 KiB), a value [resource.MaxValue] bytes (16 MiB). Beyond these
// limits Register fails with ErrTooLarge. It fails with ErrEmptyName, ErrBadName or
// ErrReservedName for a name that is empty, is not UTF-8, or begins with "rocl.", and with
// ErrIncomplete if an attribute has no value, or one that [Unique] names is missing.
//
// Register waits for the node's directory until ctx ends. It fails with ErrNoDirectory,
// ErrClosed or the cause of ctx's end, and with ErrExists or ErrPartial as [Unique]
// says. It fails with ErrRule if the transports of [Over] are invalid, and with
// ErrIdentifiers after a billion resources of the context. If Register fails, no resource is
// registered. If it fails because ctx has ended, a find may see the resource for a moment, but not
// after the context's next Register, Update or Delete has returned.
//
// The resource stays registered when the process that serves the directory ends: the next directory
// gets it, with its identifier, attributes and revision, from this context.
func (c *Context) Register(ctx context.Context, a Attributes, opts ...RegisterOption) (*Resource, error) {
	r, err := c.register(ctx, a, opts)
	if err != nil {
		return nil, fmt.Errorf("rocl: register a resource: %w", err)
	}
	return r, nil
}

// register is Register without the text of its errors.
func (c *Context) register(ctx context.Context, a Attributes, opts []RegisterOption) (*Resource, error) {
	if c == nil {
		return nil, errNil
	}
	var cfg registerConfig
	apply(&cfg, opts)
	l, err := userList(a)
	if err != nil {
		return nil, err
	}
	if c.life.HasEnded() {
		return nil, dispatch.ErrClosed
	}
	lane, err := icontext.LaneOver(cfg.over, c.cfg.Transports)
	if err == nil && lane != "" {
		err = l.AddString(AttrOver, string(lane))
	}
	if err != nil {
		return nil, err
	}
	serial, box, err := c.newMailbox(cfg.mailbox, cfg.messages, lane != "")
	if err != nil {
		return nil, err
	}
	r := &Resource{c: c, id: c.self.WithSerial(serial), box: box, lane: lane}
	rev, err := c.dir.Register(ctx, r.id, l, cfg.unique...)
	if err != nil {
		box.Close()
		return nil, err
	}
	r.rev.Store(rev)
	return r, nil
}

// errNil is the reason why a nil Context registers and finds nothing. Packages that stand on this
// one are given a Context by their users, and begin by one of both.
var errNil = fmt.Errorf("%w: the context is nil", fs.ErrInvalid)

// ErrIdentifiers is returned by [Context.Register] and [Context.RoutesOf] when the context has used
// all identifiers that it may give to resources. None is given twice, so the program must open
// another context.
//
// Cause: it has registered a billion resources. Remedy: open another context.
var ErrIdentifiers = errors.New("rocl: the context has used all its identifiers")

// newMailbox returns a mailbox for a new identifier, with limits of its own, in bytes and messages,
// if one of them is above 0. isRouted says that the resource is registered with Over.
func (c *Context) newMailbox(limit, messages int, isRouted bool) (serial uint32, box *dispatch.Mailbox, err error) {
	if serial, err = c.newSerial(); err != nil {
		return 0, nil, err
	}
	if isRouted {
		serial |= dispatch.Routed
	}
	if limit > 0 || messages > 0 {
		serial |= dispatch.Bounded
		box, err = c.disp.BoundedMailbox(serial, limit, messages)
	} else {
		box, err = c.disp.Mailbox(serial, 0)
	}
	return serial, box, err
}

// newSerial returns the serial number of a new identifier. No number is returned twice.
func (c *Context) newSerial() (uint32, error) {
	serial := c.serial.Add(1)
	if serial > dispatch.LastSerial {
		c.serial.Store(dispatch.LastSerial)
		return 0, ErrIdentifiers
	}
	return serial, nil
}

// userList returns the attributes that a program gives a resource as a checked list. A nil a is an
// empty list.
func userList(a Attributes) (*List, error) {
	l := new(List)
	if a != nil {
		if err := a.AppendAttrs(l); err != nil {
			return nil, err
		}
	}
	return l, resource.CheckUser(l)
}

// A RegisterOption changes a default of [Context.Register].
type RegisterOption func(*registerConfig)

type registerConfig struct {
	mailbox, messages int
	unique            []string
	over              []string // nil: Over was not given
}

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
func MailboxLimit(bytes int) RegisterOption { return func(c *registerConfig) { c.mailbox = bytes } }

// MailboxMessages limits how many messages the mailbox of the resource that is being registered
// holds. All senders share the limit. The limit in bytes of [MailboxLimit] or [WithMailbox] applies
// too, and so do the exceptions of MailboxLimit. While the mailbox is full, Send waits and TrySend
// fails with ErrFull. Each message counts at least the limit in bytes divided by n, also against
// [WithMemory]. An n of 0 or less is no limit.
func MailboxMessages(n int) RegisterOption { return func(c *registerConfig) { c.messages = n } }

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
func Unique(names ...string) RegisterOption {
	return func(c *registerConfig) { c.unique = append(c.unique, names...) }
}

// A Rule says which transports carry the messages that this context sends to resources of other
// contexts. See [WithRules].
type Rule struct {
	Match Match    // attributes of the target; none: every target
	Over  []string // transports, best first, as in [Over]; none: as without rules
}

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
func Over(transports ...string) RegisterOption {
	return func(c *registerConfig) { c.over = append([]string{}, transports...) }
}

// Found is a resource that the directory has found.
type Found struct {
	ID       GID    // identifier of the resource: the target for messages
	Context  GID    // the context that owns the resource
	Revision uint64 // number of the version of the attributes
	Attrs    List   // all attributes, or those that Want names
}

// Event is one change to the resources that match a watched pattern. An event and the messages of
// its resource may arrive in any order: see [Context.Watch].
type Event struct {
	Kind directory.EventKind
	Found
}

// A FindOption changes what [Context.Find], [Context.FindAll], [Context.Await] or [Context.Watch]
// looks for, or how it answers.
type FindOption func(*findConfig)

type findConfig struct {
	want       []string
	cov        *Coverage
	conditions []func(*List) error
}

// Want limits the attributes of the answers to those with the given names. An attribute that a
// resource lacks is absent from the answer, which is not the same as an empty value.
func Want(names ...string) FindOption {
	return func(c *findConfig) { c.want = append(c.want, names...) }
}

// Covered makes a find fill in v with the nodes of the cluster that it has asked. FindAll fills in
// v when its loop has ended, Find only with [Least] or [Most]. With Covered a node that could not
// be asked is no error; without it FindAll ends with ErrPartial. It ends with ErrPartial in either
// case while the cluster may have nodes that this one has not met.
func Covered(v *Coverage) FindOption { return func(c *findConfig) { c.cov = v } }

// newPattern returns the pattern of a question, the attributes a with what the options add, and the
// argument of Covered among the options, or nil.
func newPattern(a Attributes, opts []FindOption) (*List, *Coverage, error) {
	cfg := &noOptions // so a find without options allocates no findConfig
	if len(opts) > 0 {
		cfg = new(findConfig)
		apply(cfg, opts)
	}
	l, err := icontext.NewPattern(a, cfg.want, cfg.conditions...)
	return l, cfg.cov, err
}

// found converts an answer of the directory, and puts the owner and the addresses that it contains
// into the caches.
func (c *Context) found(a *resource.Record) Found {
	c.targets.Remember(a)
	return newFound(a)
}

// newFound converts a record of the directory.
func newFound(a *resource.Record) Found {
	if !a.Attrs.Complete() && icontext.Wants(&a.Attrs, AttrContext) {
		_ = a.Attrs.Set(AttrContext, []byte(a.Owner.String()))
	}
	return Found{ID: a.ID, Context: a.Owner, Revision: a.Revision, Attrs: a.Attrs}
}

// Find returns one resource that matches the pattern a. If several match, the choice varies, so
// that work spreads. A nil pattern matches every resource except contexts and nodes. The answer has
// all attributes, or those that [Want] names. [At] compares numbers. With [Least] or [Most], Find
// returns the resource with the least or greatest number. A pattern with [AttrContext], whose value
// is the identifier of a context, matches the resources of that context.
//
// Find fails with ErrNotFound if it is certain that no resource matches. It fails with
// ErrPartial if it found none and some nodes could not be asked. For an invalid pattern it
// fails with ErrTooLarge, ErrEmptyName or ErrBadName, as [Context.Register] does,
// and with ErrCondition, or ErrBadGID for a value of AttrContext that is no identifier.
// It also fails with ErrNoDirectory, ErrClosed or the cause of ctx's end.
//
// Find does not wait for a match: [Context.Await] and [Context.Watch] do. It waits for the
// directory's answer until ctx ends: there is no other limit.
func (c *Context) Find(ctx context.Context, a Attributes, opts ...FindOption) (Found, error) {
	f, err := c.find(ctx, a, opts)
	if err != nil {
		return Found{}, fmt.Errorf("rocl: find a resource: %w", err)
	}
	return f, nil
}

// find is Find without the text of its errors.
func (c *Context) find(ctx context.Context, a Attributes, opts []FindOption) (f Found, err error) {
	if c == nil {
		return f, errNil
	}
	p, cov, err := newPattern(a, opts)
	if err != nil {
		return f, err
	}
	ans, err := c.dir.Find(ctx, p, cov)
	if err != nil {
		return f, err
	}
	return c.found(&ans), nil
}

// FindAll yields every resource that matches the pattern a, each once. Its errors are those of
// [Context.Find], but no match is no error. The directory sends answers in batches and remembers
// how far it has come; ending the loop early frees that state. A resource matched when its batch
// was made, and may have changed since. With [Least] or [Most], FindAll yields nothing before all
// answers have come.
func (c *Context) FindAll(ctx context.Context, a Attributes, opts ...FindOption) iter.Seq2[Found, error] {
	return func(yield func(Found, error) bool) {
		p, cov, err := newPattern(a, opts)
		if err != nil {
			yield(Found{}, fmt.Errorf("rocl: find a resource: %w", err))
			return
		}
		for ans, err := range c.dir.FindAll(ctx, p, cov) {
			if err != nil {
				yield(Found{}, fmt.Errorf("rocl: find a resource: %w", err))
				return
			}
			if !yield(c.found(&ans), nil) {
				return
			}
		}
	}
}

// Lookup returns the resource with the identifier id, with all its attributes or those that want
// names. It fails with ErrNotFound if no resource has the identifier, also for the zero
// identifier. Its other errors are those of [Context.Find].
func (c *Context) Lookup(ctx context.Context, id GID, want ...string) (Found, error) {
	ans, err := c.dir.Lookup(ctx, id, want...)
	if err != nil {
		return Found{}, fmt.Errorf("rocl: look up %v: %w", id, err)
	}
	return c.found(&ans), nil
}

// Watch yields the resources that match the pattern a as they appear, change and go. First it
// yields the resources that match now, then an event of kind Synced, then each change, without a
// gap. The watch goes on when another process takes over the directory. The loop ends when ctx
// ends.
//
// Events come from the directory and messages over links, and neither waits for the other. Gone
// means that the resource is not found any more. Messages from the resource may still be received
// after its Gone, and before its Appeared. [Resource.Monitor] reports the end of a resource behind
// its last message.
func (c *Context) Watch(ctx context.Context, a Attributes, opts ...FindOption) iter.Seq2[Event, error] {
	p, _, err := newPattern(a, opts)
	if err == nil {
		if order, _, ordered := p.Order(); ordered {
			err = fmt.Errorf("%w: a watch has no order, here by %q", resource.ErrCondition, order)
		}
	}
	return c.watch(ctx, p, err)
}

// WatchIDs watches the resources with these identifiers, as [Context.Watch] watches those that
// match a pattern. It takes up to 1,048,576 identifiers, also those of contexts and nodes, and uses
// one connection to the node's directory. First it yields the resources that exist, then Synced,
// then their changes. Events have all attributes.
//
// If nothing was yielded for an identifier before Synced, its resource has ended, or is on a node
// that could not be asked. As with any watch, Gone may come before the last messages of the
// resource: [Resource.Monitor] keeps the order. WatchIDs fails with ErrTooLarge for too many
// identifiers, and as Watch does.
func (c *Context) WatchIDs(ctx context.Context, ids ...GID) iter.Seq2[Event, error] {
	p, err := resource.NewIDs(ids...)
	return c.watch(ctx, p, err)
}

// watch yields the events for a pattern or, if err is not nil, that error.
func (c *Context) watch(ctx context.Context, pattern *List, err error) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if err != nil {
			yield(Event{}, fmt.Errorf("rocl: watch: %w", err))
			return
		}
		for ev, err := range c.events(ctx, pattern) {
			if err != nil {
				err = fmt.Errorf("rocl: watch: %w", err)
			}
			if !yield(ev, err) {
				return
			}
		}
	}
}

// events yields the events of the directory for a pattern. It puts what they say into the caches,
// and drops the entries of resources that are gone. An error is the last that it yields.
func (c *Context) events(ctx context.Context, pattern *List) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for ev, err := range c.dir.Watch(ctx, pattern) {
			if err != nil {
				yield(Event{}, err)
				return
			}
			e := Event{Kind: ev.Kind}
			switch ev.Kind {
			case directory.Synced:
			case directory.Gone:
				c.targets.Forget(ev.ID)
				e.Found = newFound(&ev.Record)
			default:
				e.Found = c.found(&ev.Record)
			}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// Close ends the context. It withdraws the context's resources, waits until every accepted message
// has been delivered or the time of [WithLinger] is over, and frees ports, goroutines and memory.
// Blocked calls return ErrClosed. Messages and buffers that the program holds stay readable
// until they are released.
//
// Close waits up to a second for the directory, and at least a second, if necessary, for the
// function of [WithUndelivered] and the handler of [WithLogger], also if the linger time is
// shorter. It does not wait for functions of [Resource.Handle]: they end as their calls fail.
//
// Close returns an error with a *[FlushError], which names the targets, if accepted
// messages could not be delivered. Messages of [Resource.SendAndForget] are no such messages. A
// second call waits for the first and returns the same error. Only a second call by the function of
// WithUndelivered or by the handler of WithLogger, of any context, returns nil at once: functions
// of two contexts that close each other's context would wait for ever.
func (c *Context) Close() error {
	if !c.life.End() {
		if callqueue.InCall() {
			return nil
		}
		<-c.closed
		return c.closeErr
	}
	ctx, cancel := icontext.Within(context.Background(), c.cfg.Linger)
	defer cancel()
	// The resources are withdrawn first, so that searches end. Messages under way still need the
	// addresses.
	wctx, wcancel := icontext.Within(context.Background(), icontext.WithdrawTime)
	err := c.dir.Withdraw(wctx)
	if wcancel(); err != nil {
		// Cause: it did not answer at `Close`, and removes the resources later.
		c.cfg.Logger.Info("rocl: the directory did not withdraw the resources", "err", err)
	}
	err = c.disp.Close(ctx)
	c.dir.Close()
	if perr := c.pool.Close(); perr != nil && !errors.Is(perr, buffers.ErrLeaked) {
		err = errors.Join(err, perr)
	}
	if err != nil {
		c.closeErr = fmt.Errorf("rocl: close %v: %w", c.self, err)
	}
	c.logs.Drain(ctx)
	close(c.closed)
	return c.closeErr
}
