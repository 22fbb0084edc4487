// SPDX-License-Identifier: Apache-2.0

package context

import (
	stdctx "context"
	"errors"
	"fmt"
	"iter"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/dispatch"
	"github.com/rocl-go/rocl/internal/callqueue"
	"github.com/rocl-go/rocl/internal/logqueue"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
	"github.com/rocl-go/rocl/subsys/tls"
)

// Attributes of the resource that stands for a context, whose identifier is
// the context's own.
const (
	AttrKind    = directory.AttrKind // "context"
	AttrAddr    = directory.AttrAddr // an address, repeated, best first
	AttrPID     = "rocl.pid"         // process
	AttrContext = "rocl.context"     // may be asked for of any resource: its owner
)

// Attributes of the resource that stands for a node: AttrKind, which is "node",
// these, and the labels the operator gave it. AttrAddr is HOST:PORT, if the
// node is a member of a cluster.
const (
	AttrNode    = directory.AttrNode    // number, 12 hexadecimal digits
	AttrHost    = directory.AttrHost    // name of the machine
	AttrOS      = directory.AttrOS      // as GOOS
	AttrArch    = directory.AttrArch    // as GOARCH
	AttrCores   = directory.AttrCores   // processors, a decimal number
	AttrMemory  = directory.AttrMemory  // bytes, likewise
	AttrVersion = directory.AttrVersion // of the node's directory
)

// A Context is one participant: a process usually opens one. All methods may
// be called concurrently.
type Context struct {
	cfg           config
	dir           *directory.Client
	disp          *dispatch.Dispatcher
	pool          *buffers.Pool
	self          resource.GID
	logs          *logqueue.Queue
	asked         atomic.Uint64 // questions put to the directory
	handlerPanics atomic.Uint64 // of functions of Resource.Handle

	at map[string]bool // what was listened at besides; follow's after Open
	// What is said to other nodes is sealed by it; nil: it is not. Follow's, too.
	sealer  subsys.Transport
	secrets *tls.Secrets // of the sealer, if it is made from keys: from these
	sealed  [][]byte

	news chan struct{} // the directory's terms have changed
	life stdctx.Context
	end  stdctx.CancelFunc
	busy sync.WaitGroup

	answering answering

	serial atomic.Uint32
	cache  cache
	asks   asks

	mu        sync.Mutex
	resources map[uint32]*Resource
	closing   bool
	closed    chan struct{}
	closeErr  error
}

// Open joins the node's directory, or serves it if nobody does, and opens a
// port on every transport. ctx bounds the opening only.
func Open(ctx stdctx.Context, opts ...Option) (*Context, error) {
	cfg := defaults()
	for _, o := range opts {
		o(&cfg)
	}
	logs := logqueue.New(cfg.logger)
	cfg.logger = logs.Logger()
	c, err := open(ctx, &cfg)
	if err != nil {
		logs.Drain(ctx)
		return nil, fmt.Errorf("rocl: opening a context: %w", err)
	}
	c.logs = logs
	return c, nil
}

// open is Open with the options applied.
func open(ctx stdctx.Context, cfg *config) (*Context, error) {
	err := cfg.poll.Check()
	var rules *dispatch.Rules
	if err == nil {
		rules, err = cfg.checkRules()
	}
	if err != nil {
		return nil, err
	}
	news := make(chan struct{}, 1)
	dir, err := join(ctx, cfg, news)
	if err != nil {
		return nil, err
	}
	var bopts []buffers.Option
	if cfg.memory > 0 {
		bopts = append(bopts, buffers.WithLimit(cfg.memory))
	}
	c := &Context{
		cfg: *cfg, dir: dir, self: dir.Self(), pool: buffers.New(bopts...), news: news, at: map[string]bool{},
		resources: map[uint32]*Resource{}, closed: make(chan struct{}),
	}
	c.life, c.end = stdctx.WithCancel(stdctx.Background())
	c.cache.init()
	c.disp = dispatch.New(dispatch.Config{
		Self: c.self, Pool: c.pool, Resolve: c.resolve, Trust: c.trust, Rules: rules,
		Poll: cfg.poll, Mailbox: cfg.mailbox, GiveUp: cfg.giveUp, Logger: cfg.logger, Undelivered: cfg.undelivered,
		Ended: c.cache.ended,
	})
	if err := c.open(ctx); err != nil {
		c.end()
		c.disp.Close(ctx)
		dir.Close()
		c.pool.Close()
		return nil, err
	}
	was := dir.Terms()
	c.busy.Go(func() { c.follow(was) })
	return c, nil
}

// open listens and makes the context known (paper, section 4.1).
func (c *Context) open(ctx stdctx.Context) error {
	terms := c.dir.Terms()
	if err := c.agrees(&terms); err != nil {
		return err
	}
	if err := c.seal(&terms); err != nil {
		return err
	}
	if err := c.cfg.listens(&terms, c.sealer); err != nil {
		return err
	}
	if err := c.disp.Serve(0, questionsMost, c.answer); err != nil {
		return err
	}
	if err := c.listen(c.cfg.places(&terms, c.sealer)); err != nil {
		return err
	}
	l, err := c.describe()
	if err == nil {
		_, err = c.dir.Register(ctx, c.self, l)
	}
	return err
}

// describe are the attributes of the context's own resource.
func (c *Context) describe() (*resource.List, error) {
	l := new(resource.List)
	if err := errors.Join(
		l.AddString(AttrKind, "context"),
		l.AddString(AttrPID, strconv.Itoa(os.Getpid())),
	); err != nil {
		return nil, err
	}
	for _, a := range c.disp.Addrs() {
		if err := l.AddString(AttrAddr, a); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// ID is the context's identifier, which is that of its context resource.
func (c *Context) ID() resource.GID { return c.self }

// Addrs are the addresses under which other contexts reach this one.
func (c *Context) Addrs() []string { return c.disp.Addrs() }

// Buffer returns memory of n bytes to write a message into, from 0 to
// [dispatch.MaxMessage]. It is not zeroed: it has the bytes of an earlier message that
// this context sent or received, never another process's. Write all of it, or Resize
// it, before it is sent.
//
// The caller owns the buffer. [Resource.Send] takes it over, unless it fails; a buffer that
// is not sent must be released with [buffers.Buffer.Release], or its memory stays in use.
//
// Buffer does not wait. It fails with rocl.ErrTooLarge where n is negative or too
// large, with rocl.ErrLimit where the limit of [WithMemory] is reached (there is no
// limit by default), and with rocl.ErrClosed. More than 7/8 of that limit is never
// given: both rocl.ErrLimit and rocl.ErrTooLarge match that error.
func (c *Context) Buffer(n int) (*buffers.Buffer, error) { return c.disp.Buffer(n) }

// Register makes a resource with the attributes a, or with none if a is nil, and
// gives it a mailbox. Every attribute must have a value. Two resources may have the
// same attributes; [Unique] forbids that. The mailbox stops senders at the limits of
// [MailboxLimit] and [MailboxMessages], by default at that of [WithMailbox], which is 16 MiB
// by default.
//
// A list has at most [resource.MaxAttrs] attributes (4,096) and [resource.MaxList]
// bytes (32 MiB), a name [resource.MaxName] (1 KiB), a value [resource.MaxValue]
// (16 MiB); beyond that Register fails with rocl.ErrTooLarge. It fails with an error of
// package resource for a name that is empty, not UTF-8, or begins with "rocl.".
//
// Register waits for the node's directory until ctx ends. It fails with
// rocl.ErrNoDirectory, rocl.ErrClosed or the cause of ctx's end; then no resource is
// registered.
func (c *Context) Register(ctx stdctx.Context, a resource.Attributes, opts ...RegisterOption) (*Resource, error) {
	var cfg registerConfig
	for _, o := range opts {
		o(&cfg)
	}
	l, err := userList(a)
	if err != nil {
		return nil, fmt.Errorf("rocl: registering: %w", err)
	}
	serial := c.serial.Add(1)
	if serial > dispatch.LastSerial {
		c.serial.Store(dispatch.LastSerial)
		return nil, fmt.Errorf("rocl: registering: the context has used all its identifiers")
	}
	var box *dispatch.Mailbox
	if cfg.mailbox > 0 || cfg.messages > 0 {
		serial |= dispatch.Bounded
		box, err = c.disp.BoundedMailbox(serial, cfg.mailbox, cfg.messages)
	} else {
		box, err = c.disp.Mailbox(serial, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("rocl: registering: %w", err)
	}
	r := &Resource{c: c, id: c.self.WithSerial(serial), box: box}
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		box.Close()
		return nil, fmt.Errorf("rocl: registering: %w", dispatch.ErrClosed)
	}
	c.resources[serial] = r
	c.mu.Unlock()
	rev, err := c.registerAs(ctx, r.id, l, cfg.unique)
	if err != nil {
		c.drop(r)
		box.Close()
		return nil, fmt.Errorf("rocl: registering: %w", c.wrap(err))
	}
	r.rev.Store(rev)
	return r, nil
}

// registerAs makes a resource known.
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

// userList is the list of attributes a user gives a resource; nil means none.
func userList(a resource.Attributes) (*resource.List, error) {
	l := new(resource.List)
	if a != nil {
		if err := a.AppendAttrs(l); err != nil {
			return nil, err
		}
	}
	return l, resource.CheckUser(l)
}

func (c *Context) drop(r *Resource) {
	c.mu.Lock()
	delete(c.resources, r.id.Serial())
	c.mu.Unlock()
}

// A RegisterOption changes one default of Register.
type RegisterOption func(*registerConfig)

type registerConfig struct {
	mailbox, messages int
	unique            []string
}

// MailboxLimit sets the byte limit of the resource's mailbox, which holds no more than that,
// from all senders together; 0 or less is no limit of its own. Each message counts 64 bytes
// more than it has. A sender's message that does not fit waits; senders in other processes
// ask before their first message, which takes a round trip more than without the option.
//
// There are exceptions. A message that is longer than the limit, or that does not fit
// because other senders keep credit which they do not use, is let in while the mailbox is
// empty. While a receive waits for what is not stored, the limit is doubled: see
// [Resource.Recv]. And each context of an older version may send 64 KiB without asking.
func MailboxLimit(bytes int) RegisterOption { return func(c *registerConfig) { c.mailbox = bytes } }

// MailboxMessages sets how many messages the resource's mailbox holds, besides its limit in
// bytes: MailboxLimit, or that of [WithMailbox]. Both hold as MailboxLimit says. Each message
// counts as the limit in bytes divided by n, at least, also against the memory of
// [WithMemory]. 0 or less is no limit.
func MailboxMessages(n int) RegisterOption { return func(c *registerConfig) { c.messages = n } }

// Found is one answer of the directory.
type Found struct {
	ID       resource.GID  // where to send messages
	Context  resource.GID  // who owns it
	Revision uint64        // of its attributes
	Attrs    resource.List // all of them, or those wanted
}

// Event tells of one change to the resources that match a watched pattern. Its
// order with the messages of the resource is not defined: see Context.Watch.
type Event struct {
	Kind directory.EventKind
	Found
}

// A FindOption refines a question.
type FindOption func(*findConfig)

type findConfig struct {
	want       []string
	cov        *directory.Coverage
	conditions []func(*resource.List) error
}

// Want asks for the values of these attributes only. One that a resource lacks
// stays absent, which is not the same as empty.
func Want(names ...string) FindOption {
	return func(c *findConfig) { c.want = append(c.want, names...) }
}

// Covered lets FindAll say, when it has come to its end, and Find with [Least] or [Most],
// which nodes of a cluster were asked. That some could not be is then no error.
func Covered(v *directory.Coverage) FindOption { return func(c *findConfig) { c.cov = v } }

func coverage(opts []FindOption) *directory.Coverage {
	var cfg findConfig
	for _, o := range opts {
		o(&cfg)
	}
	return cfg.cov
}

func (c *Context) pattern(a resource.Attributes, opts []FindOption) (*resource.List, error) {
	if len(opts) == 0 { // nothing is allocated for them
		l, err := resource.NewPattern(a)
		if err != nil {
			return nil, err
		}
		return noOptions.refine(l)
	}
	var cfg findConfig
	for _, o := range opts {
		o(&cfg)
	}
	l, err := resource.NewPattern(a, cfg.want...)
	if err != nil {
		return nil, err
	}
	return cfg.refine(l)
}

// found converts an answer of the directory, and caches where messages to the resource go.
// owner is false if the value of AttrContext was not asked for.
func (c *Context) found(a *directory.Answer, owner bool) Found {
	if owner && wantsOwner(&a.Attrs) {
		_ = a.Attrs.Set(AttrContext, []byte(a.Owner.String()))
	}
	minter := a.ID.Context()
	// An owner is not cached where the method owner knows it, or where the index can be read.
	if (a.Owner != c.self || minter != c.self) && (a.ID.Node() != c.self.Node() || !c.dir.Mapped()) {
		c.cache.own(a.ID, a.Owner)
	}
	if a.ID == minter { // a context's own resource, which has its addresses
		c.cache.reach(a.ID, &a.Attrs, time.Time{})
	}
	return Found{ID: a.ID, Context: a.Owner, Revision: a.Revision, Attrs: a.Attrs}
}

// wantsOwner reports whether a list asks for the value of AttrContext.
func wantsOwner(l *resource.List) bool {
	if l.Complete() {
		return false
	}
	for name := range l.Wanted() {
		if name == AttrContext {
			return true
		}
	}
	return false
}

// Find returns one resource that matches the pattern a. Where several match, which
// one is returned varies, so that work spreads. A nil pattern matches every resource
// but contexts and nodes. All attributes are returned, or those that [Want] names.
// [At] compares numbers; with [Least] or [Most] the resource with the least or the
// greatest number is returned. A pattern with [AttrContext], whose value is the
// identifier of a context, matches what that context has registered.
//
// Find fails with rocl.ErrNotFound if it is certain that no resource matches; with
// rocl.ErrPartial if none was found and some nodes could not be asked; with
// rocl.ErrTooLarge for a pattern beyond the limits of Register; and with
// rocl.ErrNoDirectory, rocl.ErrClosed or the cause of ctx's end. It waits until ctx
// ends: there is no other limit.
func (c *Context) Find(ctx stdctx.Context, a resource.Attributes, opts ...FindOption) (Found, error) {
	p, err := c.pattern(a, opts)
	if err != nil {
		return Found{}, fmt.Errorf("rocl: finding: %w", err)
	}
	c.asked.Add(1)
	var ans directory.Answer
	if _, _, ordered := p.Order(); ordered {
		ans, err = c.dir.Best(ctx, p, coverage(opts))
	} else {
		ans, err = c.dir.Find(ctx, p)
	}
	if err != nil {
		return Found{}, fmt.Errorf("rocl: finding: %w", c.wrap(err))
	}
	return c.found(&ans, true), nil
}

// FindAll yields every resource that matches, each once. Answers come from the directory
// in batches: it keeps the place, and stopping early frees that. A resource that is
// yielded matched when its batch was made; it may have changed since. With [Least] or
// [Most] all answers come before the first is yielded.
func (c *Context) FindAll(ctx stdctx.Context, a resource.Attributes, opts ...FindOption) iter.Seq2[Found, error] {
	return func(yield func(Found, error) bool) {
		p, err := c.pattern(a, opts)
		if err != nil {
			yield(Found{}, fmt.Errorf("rocl: finding: %w", err))
			return
		}
		c.asked.Add(1)
		owner := wantsOwner(p)
		c.dir.FindCovering(ctx, p, coverage(opts))(func(ans directory.Answer, err error) bool {
			if err != nil {
				yield(Found{}, fmt.Errorf("rocl: finding: %w", c.wrap(err)))
				return false
			}
			return yield(c.found(&ans, owner), nil)
		})
	}
}

// Lookup returns the resource with the given identifier, with all its attributes or
// those whose names are given. It fails with rocl.ErrNotFound if there is none, also for
// the zero identifier, and otherwise as Find does.
func (c *Context) Lookup(ctx stdctx.Context, id resource.GID, want ...string) (Found, error) {
	c.asked.Add(1)
	ans, err := c.dir.Lookup(ctx, id, want...)
	if err != nil {
		return Found{}, fmt.Errorf("rocl: looking up %v: %w", id, c.wrap(err))
	}
	return c.found(&ans, true), nil
}

// Watch yields the resources that match as they appear, change and go: first
// those that are there, then an event of kind Synced, then what happens, with
// no gap between. It survives the death of the directory. It ends with ctx.
//
// Events come from the directory, messages over links, and neither waits for the
// other. Gone means that the resource is found no more. Messages that the resource
// sent before may be received after its Gone, and messages may be received before
// its Appeared. [Resource.Monitor] tells of the end of a resource behind its last message.
func (c *Context) Watch(ctx stdctx.Context, a resource.Attributes, opts ...FindOption) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		p, err := c.pattern(a, opts)
		if err != nil {
			yield(Event{}, fmt.Errorf("rocl: watching: %w", err))
			return
		}
		if order, _, ordered := p.Order(); ordered {
			yield(Event{}, fmt.Errorf("rocl: watching: %w: a watch has no order, here by %q", resource.ErrCondition, order))
			return
		}
		c.watch(ctx, p, yield)
	}
}

// WatchIDs is Watch of the resources with these identifiers, up to a million, over one
// connection to the node's directory: first those that there are, then Synced, then what
// becomes of them. An identifier of which nothing was yielded before Synced is that of no
// resource: it has ended, or is on a node that could not be asked. Events have all
// attributes. As with any watch, Gone may come before the last messages of the resource:
// [Resource.Monitor] keeps the order. Contexts and nodes can be watched too. It fails with
// rocl.ErrTooLarge for more than 1,048,576 identifiers, and as Watch does.
func (c *Context) WatchIDs(ctx stdctx.Context, ids ...resource.GID) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		p, err := resource.NewIDs(ids...)
		if err != nil {
			yield(Event{}, fmt.Errorf("rocl: watching: %w", err))
			return
		}
		c.watch(ctx, p, yield)
	}
}

func (c *Context) watch(ctx stdctx.Context, pattern *resource.List, yield func(Event, error) bool) {
	c.asked.Add(1)
	for ev, err := range c.dir.Watch(ctx, pattern) {
		if err != nil {
			yield(Event{}, fmt.Errorf("rocl: watching: %w", c.wrap(err)))
			return
		}
		if ev.Kind == directory.Gone {
			c.cache.forget(ev.ID)
		}
		e := Event{Kind: ev.Kind}
		if ev.Kind != directory.Synced {
			e.Found = Found{ID: ev.ID, Context: ev.Owner, Revision: ev.Revision, Attrs: ev.Attrs}
		}
		if !yield(e, nil) {
			return
		}
	}
}

// wrap makes the directory's closing ours.
func (c *Context) wrap(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing && !errors.Is(err, dispatch.ErrClosed) {
		return fmt.Errorf("%w: %w", dispatch.ErrClosed, err)
	}
	return err
}

// withdrawTime is how long Close waits for the directory to withdraw the context's
// resources. A directory that stands still must not use up the linger time.
const withdrawTime = time.Second

// Close withdraws the context's resources, waits until every message accepted
// has been delivered (or the linger time is over), and frees everything: ports,
// goroutines, memory. Blocked calls return ErrClosed. Messages and buffers
// still held remain readable until released. It returns an error if accepted
// messages could not be delivered. Later calls wait for the first, but not those that
// the function of WithUndelivered or the handler of WithLogger makes.
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
	c.end()
	c.busy.Wait()
	ctx, cancel := stdctx.WithTimeout(stdctx.Background(), c.cfg.linger)
	defer cancel()
	// First nobody finds us any more; what is under way still needs our addresses.
	wctx, wcancel := stdctx.WithTimeout(ctx, withdrawTime)
	err := c.dir.Withdraw(wctx)
	if wcancel(); err != nil {
		c.cfg.logger.Info("rocl: closing: withdrawing resources", "err", err)
	}
	c.closeErr = c.disp.Close(ctx)
	c.dir.Close()
	if err := c.pool.Close(); err != nil && !errors.Is(err, buffers.ErrLeaked) {
		c.closeErr = errors.Join(c.closeErr, err)
	}
	c.logs.Drain(ctx)
	close(c.closed)
	return c.closeErr
}

// join reaches the directory as cfg says. Into news goes that its terms have
// changed.
func join(ctx stdctx.Context, cfg *config, news chan struct{}) (*directory.Client, error) {
	opts := []directory.ClientOption{directory.WithClientLogger(cfg.logger), directory.WithTerms(func(directory.Terms) {
		select {
		case news <- struct{}{}:
		default: // not seen yet
		}
	})}
	if cfg.noImages {
		opts = append(opts, directory.WithoutImages())
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
	path := cfg.socket
	if path == "" {
		path = directory.DefaultSocket()
	}
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
