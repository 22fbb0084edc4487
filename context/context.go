// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/callqueue"
	"github.com/rocl-go/rocl/internal/logqueue"
	"github.com/rocl-go/rocl/internal/os/cgroup"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// Protocol: Contexts
//
// A context registers itself, serial 0, before others can send to it or it sends: `rocl.kind` =
// `context`, `rocl.pid` = the process number in decimal, and `rocl.addr` = its addresses, one
// attribute each, the best first, such as `tcp://127.0.0.1:4711`, `tls://…`, `shm://…`. A context
// that only dials has no address. To send to a resource, look up all attributes of its context (the
// identifier with serial 0), since addresses repeat, dial one that both can use, and shake hands.
// Contexts of one node use TCP over loopback, and shared memory.
//
// A node is a resource too: its context number and serial are 0. It has `rocl.kind` = `node`,
// `rocl.node`, `rocl.host`, `rocl.os`, `rocl.arch`, `rocl.cores`, `rocl.memory`, `rocl.version`,
// `rocl.addr` in a cluster, and labels.

// Attributes of the resource that stands for a context. The identifier of that resource is the
// identifier of the context.
const (
	AttrKind    = directory.AttrKind // "context"
	AttrAddr    = directory.AttrAddr // an address of the context; repeated, best first
	AttrPID     = "rocl.pid"         // the number of the process
	AttrContext = "rocl.context"     // of any resource, if asked for: the identifier of the context that owns it
	AttrOver    = "rocl.over"        // of a resource that was registered with Over: the transports, with commas
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
	rules         *rules               // of WithRules
	dir           *directory.Client    // of the node's directory
	disp          *dispatch.Dispatcher // ports, links and mailboxes
	pool          *buffers.Pool
	self          resource.GID // identifier of the context
	logs          *logqueue.Queue
	questions     atomic.Uint64 // questions put to the directory
	handlerPanics atomic.Uint64 // panics of functions of Resource.Handle

	// listening has the keys of the addresses at which the context listens, and of those whose
	// transport the machine lacks. Open uses it, and later follow alone.
	listening map[string]bool
	// lacking is the address at which the context should listen for other nodes and cannot, or "".
	// Open uses it, and later follow alone.
	lacking string
	// sealer is the transport that seals links to other nodes; nil if they are not sealed. Open
	// sets it, and later follow alone uses it. The same holds for secrets and sealed.
	sealer  subsys.Transport
	secrets keySet   // of the sealer if it is made from keys, else nil
	sealed  [][]byte // the keys from which secrets was made

	termsChanged chan struct{}  // capacity 1; receives when the directory's terms have changed
	life         stdctx.Context // ends when Close begins
	endLife      stdctx.CancelCauseFunc
	goroutines   sync.WaitGroup // goroutines of the context

	serial atomic.Uint32 // of the last identifier that was made
	cache  cache

	mu       sync.Mutex                      // guards the next three fields
	closing  bool                            // Close has begun
	answers  map[resource.GID]int            // answers to questions for routes under way, by the context that asked
	lookups  map[resource.GID]*pendingLookup // what goroutines ask on behalf of calls that do not wait, by target
	closed   chan struct{}                   // closed when Close has ended
	closeErr error                           // set before closed is closed
}

// Open returns a new context. See rocl.Open.
func Open(ctx stdctx.Context, opts ...Option) (*Context, error) {
	if ctx == nil {
		return nil, errors.New("rocl: open a context: no context.Context")
	}
	cfg := defaults()
	apply(&cfg, opts)
	logs := logqueue.New(cfg.logger)
	cfg.logger = logs.Logger()
	c, err := open(ctx, &cfg)
	if err != nil {
		logs.Drain(ctx)
		return nil, fmt.Errorf("rocl: open a context: %w", err)
	}
	c.logs = logs
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

// open opens a context with the given configuration.
func open(ctx stdctx.Context, cfg *config) (*Context, error) {
	err := cfg.checkTransports()
	if err == nil {
		err = cfg.poll.Check()
	}
	var rules *rules
	if err == nil {
		rules, err = newRules(cfg.rules, cfg.transports)
	}
	if err != nil {
		return nil, err
	}
	termsChanged := make(chan struct{}, 1)
	dir, err := join(ctx, cfg, termsChanged)
	if err != nil {
		return nil, err
	}
	if cfg.memory <= 0 {
		cfg.memory = defaultMemory(cgroup.Read())
	}
	var bopts []buffers.Option
	if cfg.memory > 0 {
		cfg.memory = max(cfg.memory, leastMemory)
		bopts = append(bopts, buffers.WithLimit(cfg.memory))
	}
	c := &Context{
		cfg: *cfg, rules: rules, dir: dir, self: dir.Self(), pool: buffers.New(bopts...), termsChanged: termsChanged, listening: map[string]bool{},
		answers: map[resource.GID]int{}, lookups: map[resource.GID]*pendingLookup{}, closed: make(chan struct{}),
	}
	c.life, c.endLife = stdctx.WithCancelCause(stdctx.Background())
	c.cache.init()
	c.disp = dispatch.New(dispatch.Config{
		Self: c.self, Pool: c.pool, Resolve: c.resolve, Trust: c.trust,
		Poll: cfg.poll, Mailbox: cfg.mailbox, Folder: cfg.folder(), GiveUp: cfg.giveUp, Logger: cfg.logger, Undelivered: cfg.undelivered,
		Ended: c.cache.ended,
	})
	addrs, err := c.open(ctx)
	if err != nil {
		c.endLife(dispatch.ErrClosed)
		c.disp.Close(ctx)
		dir.Close()
		c.pool.Close()
		return nil, err
	}
	was := dir.Terms()
	c.goroutines.Go(func() { c.follow(was, addrs) })
	return c, nil
}

// open opens the ports and registers the resource that stands for the context (section 4.1 of the
// paper). It returns the addresses that it has registered.
func (c *Context) open(ctx stdctx.Context) ([]string, error) {
	terms := c.dir.Terms()
	if err := c.checkTerms(&terms); err != nil {
		return nil, err
	}
	if err := c.seal(&terms); err != nil {
		return nil, err
	}
	if err := c.cfg.checkListen(&terms, c.sealer); err != nil {
		return nil, err
	}
	if err := c.disp.Serve(0, maxQuestionBytes, c.answerQuestion); err != nil {
		return nil, err
	}
	if err := c.listen(c.cfg.listenAddrs(&terms, c.sealer)); err != nil {
		return nil, err
	}
	addrs := c.Addrs()
	l, err := c.describe(addrs)
	if err == nil {
		_, err = c.dir.Register(ctx, c.self, l)
	}
	return addrs, err
}

// describe returns the attributes of the resource that stands for the context, which is reached at
// the addresses addrs.
func (c *Context) describe(addrs []string) (*resource.List, error) {
	l := new(resource.List)
	err := errors.Join(l.AddString(AttrKind, "context"), l.AddString(AttrPID, strconv.Itoa(os.Getpid())))
	for _, a := range addrs {
		err = errors.Join(err, l.AddString(AttrAddr, a))
	}
	return l, err
}

// ID returns the context's identifier, which is also that of the resource that stands for it.
func (c *Context) ID() resource.GID { return c.self }

// Buffer returns memory of n bytes for the payload of a message. n is from 0 to
// [dispatch.MaxMessage]. The memory is not zeroed: it holds bytes of an earlier message that this
// context sent or received, never those of another process. Write all of it, or call Resize, before
// sending it.
//
// The caller owns the buffer. [Resource.Send] takes it over, unless it fails. A buffer that is not
// sent must be released with [buffers.Buffer.Release], or its memory stays in use.
//
// Buffer does not wait. It fails with rocl.ErrTooLarge if n is negative or too large, with
// rocl.ErrLimit if the limit of [WithMemory] is reached, and with rocl.ErrClosed. A buffer larger
// than three quarters of that limit is never given: that error matches both rocl.ErrLimit and
// rocl.ErrTooLarge.
func (c *Context) Buffer(n int) (*buffers.Buffer, error) { return c.disp.Buffer(n) }

// Register returns a new resource with the attributes a, or with none if a is nil, and a mailbox.
// Every attribute must have a value. Two resources may have the same attributes, unless [Unique]
// forbids that. The limits of the mailbox are those of [MailboxLimit] and [MailboxMessages].
// Without these options the limit is that of [WithMailbox], 16 MiB by default.
//
// A list has at most [resource.MaxAttrs] attributes (4,096) and [resource.MaxList] bytes (32 MiB),
// a name [resource.MaxName] bytes (1 KiB), a value [resource.MaxValue] bytes (16 MiB). Beyond these
// limits Register fails with rocl.ErrTooLarge. It fails with rocl.ErrEmptyName, rocl.ErrBadName or
// rocl.ErrReservedName for a name that is empty, is not UTF-8, or begins with "rocl.", and with
// rocl.ErrIncomplete if an attribute has no value, or one that [Unique] names is missing.
//
// Register waits for the node's directory until ctx ends. It fails with rocl.ErrNoDirectory,
// rocl.ErrClosed or the cause of ctx's end, and with rocl.ErrExists or rocl.ErrPartial as [Unique]
// says. It fails with rocl.ErrRule if the transports of [Over] are invalid, and with
// rocl.ErrIdentifiers after a billion resources of the context. If Register fails, no resource is
// registered. If it fails because ctx has ended, a find may see the resource for a moment, but not
// after the context's next Register, Update or Delete has returned.
//
// The resource stays registered when the process that serves the directory ends: the next directory
// gets it, with its identifier, attributes and revision, from this context.
func (c *Context) Register(ctx stdctx.Context, a resource.Attributes, opts ...RegisterOption) (*Resource, error) {
	r, err := c.register(ctx, a, opts)
	if err != nil {
		return nil, fmt.Errorf("rocl: register a resource: %w", err)
	}
	return r, nil
}

// register is Register without the text of its errors.
func (c *Context) register(ctx stdctx.Context, a resource.Attributes, opts []RegisterOption) (*Resource, error) {
	if c == nil {
		return nil, errNil
	}
	var cfg registerConfig
	apply(&cfg, opts)
	l, err := userList(a)
	if err != nil {
		return nil, err
	}
	if c.isClosing() {
		return nil, dispatch.ErrClosed
	}
	lane, err := laneOver(cfg.over, c.cfg.transports)
	if err == nil {
		err = addOver(l, lane)
	}
	if err != nil {
		return nil, err
	}
	serial, box, err := c.newMailbox(cfg.mailbox, cfg.messages, lane != "")
	if err != nil {
		return nil, err
	}
	r := &Resource{c: c, id: c.self.WithSerial(serial), box: box, lane: lane}
	rev, err := c.registerAs(ctx, r.id, l, cfg.unique)
	if err != nil {
		box.Close()
		return nil, c.wrap(err)
	}
	r.rev.Store(rev)
	return r, nil
}

// errNil is the reason why a nil Context registers and finds nothing. Packages that stand on this
// one are given a Context by their users, and begin by one of both.
var errNil = fmt.Errorf("%w: the context is nil", fs.ErrInvalid)

// ErrIdentifiers is returned by [Context.Register] and [RoutesOf] when the context has used
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

// registerAs registers the resource id with the attributes l in the directory. With names in unique
// it fails if another resource has the same values of these.
func (c *Context) registerAs(ctx stdctx.Context, id resource.GID, l *resource.List, unique []string) (rev uint64, err error) {
	if len(unique) == 0 {
		return c.dir.Register(ctx, id, l)
	}
	k, err := newClaim(c, id, l, unique)
	if err != nil {
		return 0, err
	}
	return k.register(ctx, l)
}

// userList returns the attributes that a program gives a resource as a checked list. A nil a is an
// empty list.
func userList(a resource.Attributes) (*resource.List, error) {
	l := new(resource.List)
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

// MailboxLimit sets the byte limit of the mailbox of the resource that is being registered. See
// rocl.MailboxLimit.
func MailboxLimit(bytes int) RegisterOption { return func(c *registerConfig) { c.mailbox = bytes } }

// MailboxMessages limits how many messages the mailbox of the resource that is being registered
// holds. See rocl.MailboxMessages.
func MailboxMessages(n int) RegisterOption { return func(c *registerConfig) { c.messages = n } }

// Found is a resource that the directory has found.
type Found struct {
	ID       resource.GID  // identifier of the resource: the target for messages
	Context  resource.GID  // the context that owns the resource
	Revision uint64        // number of the version of the attributes
	Attrs    resource.List // all attributes, or those that Want names
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
	cov        *directory.Coverage
	conditions []func(*resource.List) error
}

// Want limits the attributes of the answers to those with the given names. See rocl.Want.
func Want(names ...string) FindOption {
	return func(c *findConfig) { c.want = append(c.want, names...) }
}

// Covered makes a find fill in v with the nodes of the cluster that it has asked. See rocl.Covered.
func Covered(v *directory.Coverage) FindOption { return func(c *findConfig) { c.cov = v } }

// newPattern returns the pattern of a question, the attributes a with what the options add, and the
// argument of Covered among the options, or nil.
func newPattern(a resource.Attributes, opts []FindOption) (*resource.List, *directory.Coverage, error) {
	cfg := &noOptions // so a find without options allocates no findConfig
	if len(opts) > 0 {
		cfg = new(findConfig)
		apply(cfg, opts)
	}
	l, err := resource.NewPattern(a, cfg.want...)
	if err == nil {
		l, err = cfg.refine(l)
	}
	return l, cfg.cov, err
}

// found converts an answer of the directory, and puts the owner and the addresses that it contains
// into the caches.
func (c *Context) found(a *resource.Record) Found {
	c.remember(a)
	return newFound(a)
}

// newFound converts a record of the directory.
func newFound(a *resource.Record) Found {
	if !a.Attrs.Complete() && wants(&a.Attrs, AttrContext) {
		_ = a.Attrs.Set(AttrContext, []byte(a.Owner.String()))
	}
	return Found{ID: a.ID, Context: a.Owner, Revision: a.Revision, Attrs: a.Attrs}
}

// wants reports whether a list asks for the value of the attribute with the given name.
func wants(l *resource.List, name string) bool {
	for w := range l.Wanted() {
		if w == name {
			return true
		}
	}
	return false
}

// remember puts the owner and the addresses that an answer of the directory contains into the
// caches.
func (c *Context) remember(a *resource.Record) {
	minter := a.ID.Context()
	// An owner is not cached where the method owner knows it, or where the index can be read.
	if (a.Owner != c.self || minter != c.self) && (a.ID.Node() != c.self.Node() || !c.dir.Mapped()) {
		c.cache.own(a.ID, a.Owner)
	}
	if a.ID == minter { // a context's own resource, which has its addresses
		c.cache.reach(a.ID, &a.Attrs, time.Time{})
	}
}

// Find returns one resource that matches the pattern a. If several match, the choice varies, so
// that work spreads. A nil pattern matches every resource except contexts and nodes. The answer has
// all attributes, or those that [Want] names. [At] compares numbers. With [Least] or [Most], Find
// returns the resource with the least or greatest number. A pattern with [AttrContext], whose value
// is the identifier of a context, matches the resources of that context.
//
// Find fails with rocl.ErrNotFound if it is certain that no resource matches. It fails with
// rocl.ErrPartial if it found none and some nodes could not be asked. For an invalid pattern it
// fails with rocl.ErrTooLarge, rocl.ErrEmptyName or rocl.ErrBadName, as [Context.Register] does,
// and with rocl.ErrCondition, or rocl.ErrBadGID for a value of AttrContext that is no identifier.
// It also fails with rocl.ErrNoDirectory, rocl.ErrClosed or the cause of ctx's end.
//
// Find does not wait for a match: [Context.Await] and [Context.Watch] do. It waits for the
// directory's answer until ctx ends: there is no other limit.
func (c *Context) Find(ctx stdctx.Context, a resource.Attributes, opts ...FindOption) (Found, error) {
	f, err := c.find(ctx, a, opts)
	if err != nil {
		return Found{}, fmt.Errorf("rocl: find a resource: %w", err)
	}
	return f, nil
}

// find is Find without the text of its errors.
func (c *Context) find(ctx stdctx.Context, a resource.Attributes, opts []FindOption) (f Found, err error) {
	if c == nil {
		return f, errNil
	}
	p, cov, err := newPattern(a, opts)
	if err != nil {
		return f, err
	}
	c.questions.Add(1)
	var ans resource.Record
	if _, _, ordered := p.Order(); ordered {
		ans, err = c.dir.Best(ctx, p, cov)
	} else {
		ans, err = c.dir.Find(ctx, p)
	}
	if err != nil {
		return f, c.wrap(err)
	}
	return c.found(&ans), nil
}

// FindAll yields every resource that matches the pattern a, each once. Its errors are those of
// [Context.Find], but no match is no error. The directory sends answers in batches and remembers
// how far it has come; ending the loop early frees that state. A resource matched when its batch
// was made, and may have changed since. With [Least] or [Most], FindAll yields nothing before all
// answers have come.
func (c *Context) FindAll(ctx stdctx.Context, a resource.Attributes, opts ...FindOption) iter.Seq2[Found, error] {
	return func(yield func(Found, error) bool) {
		p, cov, err := newPattern(a, opts)
		if err != nil {
			yield(Found{}, fmt.Errorf("rocl: find a resource: %w", err))
			return
		}
		c.questions.Add(1)
		for ans, err := range c.dir.FindCovering(ctx, p, cov) {
			if err != nil {
				yield(Found{}, fmt.Errorf("rocl: find a resource: %w", c.wrap(err)))
				return
			}
			if !yield(c.found(&ans), nil) {
				return
			}
		}
	}
}

// Lookup returns the resource with the identifier id, with all its attributes or those that want
// names. It fails with rocl.ErrNotFound if no resource has the identifier, also for the zero
// identifier. Its other errors are those of [Context.Find].
func (c *Context) Lookup(ctx stdctx.Context, id resource.GID, want ...string) (Found, error) {
	c.questions.Add(1)
	ans, err := c.dir.Lookup(ctx, id, want...)
	if err != nil {
		return Found{}, fmt.Errorf("rocl: look up %v: %w", id, c.wrap(err))
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
func (c *Context) Watch(ctx stdctx.Context, a resource.Attributes, opts ...FindOption) iter.Seq2[Event, error] {
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
// resource: [Resource.Monitor] keeps the order. WatchIDs fails with rocl.ErrTooLarge for too many
// identifiers, and as Watch does.
func (c *Context) WatchIDs(ctx stdctx.Context, ids ...resource.GID) iter.Seq2[Event, error] {
	p, err := resource.NewIDs(ids...)
	return c.watch(ctx, p, err)
}

// watch yields the events for a pattern or, if err is not nil, that error.
func (c *Context) watch(ctx stdctx.Context, pattern *resource.List, err error) iter.Seq2[Event, error] {
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
func (c *Context) events(ctx stdctx.Context, pattern *resource.List) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		c.questions.Add(1)
		for ev, err := range c.dir.Watch(ctx, pattern) {
			if err != nil {
				yield(Event{}, c.wrap(err))
				return
			}
			e := Event{Kind: ev.Kind}
			switch ev.Kind {
			case directory.Synced:
			case directory.Gone:
				c.cache.forget(ev.ID)
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

// isClosing reports whether Close has begun.
func (c *Context) isClosing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing
}

// wrap makes an error of the directory match rocl.ErrClosed if the context is closing.
func (c *Context) wrap(err error) error {
	if c.isClosing() && !errors.Is(err, dispatch.ErrClosed) {
		return fmt.Errorf("%w: %w", dispatch.ErrClosed, err)
	}
	return err
}

// withdrawTime limits how long Close waits for the directory to withdraw the context's resources. A
// directory that does not answer must not use up the linger time.
const withdrawTime = time.Second

// errTime is the cause of the end of a context.Context of this package whose time has passed. It
// does not match context.DeadlineExceeded: the caller has set no deadline.
var errTime = errors.New("no answer in time")

// within returns a context.Context that ends after d.
func within(parent stdctx.Context, d time.Duration) (stdctx.Context, stdctx.CancelFunc) {
	return stdctx.WithTimeoutCause(parent, d, fmt.Errorf("%w: waited for %v", errTime, d))
}

// Close ends the context. It withdraws the context's resources, waits until every accepted message
// has been delivered or the time of [WithLinger] is over, and frees ports, goroutines and memory.
// Blocked calls return rocl.ErrClosed. Messages and buffers that the program holds stay readable
// until they are released.
//
// Close waits up to a second for the directory, and at least a second, if necessary, for the
// function of [WithUndelivered] and the handler of [WithLogger], also if the linger time is
// shorter. It does not wait for functions of [Resource.Handle]: they end as their calls fail.
//
// Close returns an error with a *[dispatch.FlushError], which names the targets, if accepted
// messages could not be delivered. Messages of [Resource.SendAndForget] are no such messages. A
// second call waits for the first and returns the same error. Only a second call by the function of
// WithUndelivered or by the handler of WithLogger, of any context, returns nil at once: functions
// of two contexts that close each other's context would wait for ever.
func (c *Context) Close() error {
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		if callqueue.InCall() {
			return nil
		}
		<-c.closed
		return c.closeErr
	}
	c.closing = true
	c.mu.Unlock()
	c.endLife(dispatch.ErrClosed)
	c.goroutines.Wait()
	ctx, cancel := within(stdctx.Background(), c.cfg.linger)
	defer cancel()
	// The resources are withdrawn first, so that searches end. Messages under way still need the
	// addresses.
	wctx, wcancel := within(stdctx.Background(), withdrawTime)
	err := c.dir.Withdraw(wctx)
	if wcancel(); err != nil {
		// Cause: it did not answer at `Close`, and removes the resources later.
		c.cfg.logger.Info("rocl: the directory did not withdraw the resources", "err", err)
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

// path returns the address of the node's directory, unless the program dials it.
func (cfg *config) path() string {
	if cfg.socket != "" {
		return cfg.socket
	}
	return directory.DefaultSocket()
}

// folder returns the folder of the directory's socket, or "" if the directory has none.
func (cfg *config) folder() string {
	if cfg.dial != nil || directory.IsTCP(cfg.path()) {
		return ""
	}
	return filepath.Dir(cfg.path())
}

// join returns a client of the directory that cfg names. The client signals termsChanged when the
// directory's terms have changed.
func join(ctx stdctx.Context, cfg *config, termsChanged chan struct{}) (*directory.Client, error) {
	opts := []directory.ClientOption{directory.WithClientLogger(cfg.logger), directory.WithTerms(func(directory.Terms) {
		select {
		case termsChanged <- struct{}{}:
		default: // a signal is pending already
		}
	})}
	if cfg.noIndex {
		opts = append(opts, directory.WithoutClientIndex())
	}
	if !cfg.certs.Given() && cfg.member != nil {
		cfg.certs = cfg.member.Paths()
	}
	if cfg.dial == nil {
		cfg.environment()
	}
	if err := cfg.certs.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCertificates, err)
	}
	if cfg.dial != nil {
		return directory.Join(ctx, cfg.dial, opts...)
	}
	path := cfg.path()
	if cfg.joinOnly {
		return directory.Join(ctx, directory.DialSocket(path), opts...)
	}
	serve, isMember, err := cfg.membership()
	if err != nil {
		return nil, err
	}
	if isMember {
		opts = append(opts, directory.AsMember())
	}
	return directory.JoinNode(ctx, path, cfg.logger, serve, opts...)
}
