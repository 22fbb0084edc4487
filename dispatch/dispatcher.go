// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rocl-go/rocl/buffers"
	"github.com/rocl-go/rocl/dispatch/internal/credit"
	"github.com/rocl-go/rocl/dispatch/internal/life"
	"github.com/rocl-go/rocl/dispatch/internal/progress"
	"github.com/rocl-go/rocl/dispatch/internal/spin"
	"github.com/rocl-go/rocl/dispatch/internal/wire"
	"github.com/rocl-go/rocl/internal/callqueue"
	"github.com/rocl-go/rocl/internal/lock"
	"github.com/rocl-go/rocl/internal/ratelog"
	"github.com/rocl-go/rocl/internal/sentinel"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys"
)

// Errors of this package. Functions wrap them with the operation and its object.
var (
	// ErrClosed is returned when the context, or the resource, has been closed in this process.
	//
	// Cause: the context or resource is closed, or was closed during the call. Remedy: close it
	// when no goroutine uses it.
	ErrClosed = errors.New("rocl: closed")
	// ErrGone is returned when the resource that a message was for no longer exists, or its context
	// has ended.
	//
	// Cause: the target was deleted, or its process or node has ended. Remedy: find another
	// resource.
	ErrGone = errors.New("rocl: resource is gone")
	// ErrUnreachable is returned when the resource's context could not be reached.
	ErrUnreachable = life.ErrUnreachable
	// ErrEmpty is returned when there is no message to receive.
	//
	// Cause: nothing that is selected has come. Remedy: try later, or wait with `Recv`.
	ErrEmpty = errors.New("rocl: no message")
	// ErrTooLarge is returned when a message exceeds what the library carries.
	ErrTooLarge = sentinel.New("rocl: message too large", sentinel.ErrTooLarge)
	// ErrRefused is returned when a peer did not accept a link: it is of another cluster, of
	// another version, or has another key.
	ErrRefused = wire.ErrRefused
	// ErrProtocol is returned when a peer broke the rules of docs/PROTOCOL.md. The connection that
	// it used is cut.
	ErrProtocol = wire.ErrProtocol
)

// MaxMessage is the longest payload in bytes (1 GiB + 512 MiB).
const MaxMessage = credit.MaxMessage

// A Resolver returns the addresses of a context. An error that matches ErrGone says that the
// context has ended: its links end at once, whatever GiveUp is.
//
// ErrNodeDead matches ErrGone too, but a link ends only after its dialling has failed. With
// ErrNodeDead a Resolver returns the addresses that it knew last, if any. In a long partition,
// gossip declares living nodes dead. Links with their contexts end, though the contexts live.
type Resolver func(ctx context.Context, peer resource.GID) (addrs []string, err error)

// Undelivered reports a message that was accepted and could not be delivered. As far as is known,
// it did not reach its mailbox, or was there unread when the resource was deleted or its context
// closed. A message that was in the mailbox of a process that is killed is not reported.
type Undelivered struct {
	From, To resource.GID // the origin and the target of the message
	Tag      uint64       // the number that the sender gave the message
	Bytes    int          // the length of the payload
	Err      error        // matches ErrGone, ErrUnreachable or ErrClosed
}

// reportsMost is how many reports may wait for Config.Undelivered.
const reportsMost = 1 << 20

// maxKeys is how many keys a context may have at once.
const maxKeys = wire.MaxKeys

// Trust says with which contexts a context links: those of the same cluster that know one of the
// keys. A change of Trust does not end existing links.
type Trust struct {
	Cluster string   // the name of the cluster
	Keys    [][]byte // from the directory; keys beyond maxKeys are not used
	// CheckTransport returns why there may be no link with a context over a transport, or nil if
	// there may be one. A nil CheckTransport allows all transports.
	CheckTransport func(peer resource.GID, transport string) error
}

// checkTransport returns why there may be no link with peer over a transport, or nil.
func (t *Trust) checkTransport(peer resource.GID, transport string) error {
	if t.CheckTransport == nil {
		return nil
	}
	if err := t.CheckTransport(peer, transport); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return nil
}

// admits returns why there may be no link with a peer whose Trust is o: the peer is of another
// cluster, or knows none of the keys. It returns nil if there may be one.
func (t *Trust) admits(o *Trust, peer resource.GID) error {
	if t.Cluster != o.Cluster {
		return fmt.Errorf("%w: %v is of another cluster", ErrRefused, peer)
	}
	for _, k := range t.Keys {
		if slices.ContainsFunc(o.Keys, func(o []byte) bool { return bytes.Equal(k, o) }) {
			return nil
		}
	}
	return fmt.Errorf("%w: %v has another key", ErrRefused, peer)
}

// Config is what a Dispatcher needs. Self, Pool and Resolve are required.
type Config struct {
	Self        resource.GID                // the identifier of the context
	Pool        *buffers.Pool               // the memory of messages
	Resolve     Resolver                    // finds the addresses of other contexts
	Trust       func() Trust                // called at each handshake; nil: no cluster and no key
	Poll        Polling                     // a value that Check allows
	Mailbox     int                         // default byte limit of a mailbox; 0: 16 MiB
	Folder      string                      // folder of the directory's socket, for transports; "" if there is none
	GiveUp      time.Duration               // how long a peer may be unreachable; 0: 10 s
	Logger      *slog.Logger                // may be called with locks held; nil: no log
	Ended       func(peer resource.GID)     // called without locks held when a link with peer has ended; may be nil
	Trace       func(context.Context) Trace // returns the trace of what is sent with a context, see trace.go; may be nil
	Undelivered func(Undelivered)           // called by a goroutine of its own, one call at a time; may be nil
}

// A Dispatcher is the message half of a context: its links to other contexts, its mailboxes, and
// the progress of both. All methods may be called concurrently.
type Dispatcher struct {
	cfg   Config
	self  resource.GID
	log   *slog.Logger
	often *ratelog.Logger // for lines that peers can cause
	oneP  bool
	made  time.Time
	count subsys.Counters

	progress progress.Engine
	stop     chan struct{} // closed to end the goroutines
	done     chan struct{} // closed when Close has finished
	running  sync.WaitGroup
	ctx      context.Context
	cancel   context.CancelFunc
	paced    pacedLinks
	deferred deferredLinks
	watched  watched

	messagePool
	budget  credit.Budget
	waiters sync.Pool
	numbers atomic.Uint64 // of waiters that snapshots have seen

	mu      lock.RWMutex[levelContext]
	closing bool
	closed  bool
	ports   []subsys.Port
	links   map[resource.GID][]*link // by peer: one link for each lane
	former  map[linkKey]wire.Past    // sessions that this context has given up last
	boxes   map[uint32]*Mailbox
	passages
	calls  calls
	lost   atomic.Uint64
	losses losses
	// lossesAtClose has what is lost after Close has closed the mailboxes.
	lossesAtClose losses
	reports       callqueue.Queue[Undelivered]
	// unreported counts messages of lost whose report was dropped.
	unreported atomic.Uint64
	past       traffic            // of links that have ended
	handshakes *subsys.Handshakes // accepted connections whose handshakes have not finished

	complained sync.Map // transports that were logged as not working
}

// New makes a Dispatcher without ports; Listen opens them.
func New(cfg Config) *Dispatcher {
	if cfg.Mailbox <= 0 {
		cfg.Mailbox = 16 << 20
	}
	if cfg.GiveUp <= 0 {
		cfg.GiveUp = 10 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Dispatcher{
		cfg: cfg, self: cfg.Self.Context(), log: cfg.Logger, often: ratelog.New(cfg.Logger),
		oneP:  runtime.GOMAXPROCS(0) < 2,
		made:  time.Now(),
		stop:  make(chan struct{}),
		done:  make(chan struct{}),
		links: map[resource.GID][]*link{},
		boxes: map[uint32]*Mailbox{},

		passages: passages{byPeer: map[resource.GID]*passageEnd{}, flows: map[*Mailbox]*Flow{}},
	}
	d.calls.box, d.calls.watched = newMailbox(d, wire.Replies, 0, 0), map[*Flow]struct{}{}
	d.calls.box.calls = &d.calls
	d.boxes[wire.Replies] = d.calls.box
	d.reports.Call, d.reports.Most = cfg.Undelivered, reportsMost
	d.budget.Init(cfg.Pool, func() { go d.grantAll() })
	cfg.Pool.SetWaiter(d)
	d.handshakes = subsys.NewHandshakes(maxPending)
	d.progress.Init(progress.Config{
		Work: written{d}, Count: &d.count, OneProc: d.oneP,
		Spin: func() spin.Machine { return cfg.Poll.machine(runtime.GOMAXPROCS(0)) },
	})
	d.paced.wake = make(chan struct{}, 1)
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.waiters.New = func() any {
		w := &waiter{}
		w.Init(&d.progress)
		return w
	}
	d.watched.wake = make(chan struct{}, 1)
	d.running.Add(2)
	go d.flusher()
	go d.watchLinks()
	return d
}

// trust returns what cfg.Trust says now. Contexts without a key have the empty key in common.
func (d *Dispatcher) trust() (t Trust) {
	if d.cfg.Trust != nil {
		t = d.cfg.Trust()
	}
	if len(t.Keys) == 0 {
		t.Keys = [][]byte{nil}
	}
	t.Keys = t.Keys[:min(len(t.Keys), maxKeys)]
	return t
}

// Buffer returns a buffer of n bytes of the dispatcher's pool. It fails with ErrTooLarge for more
// than a message may have, with ErrClosed, or as [buffers.Pool.Get] does.
func (d *Dispatcher) Buffer(n int) (*buffers.Buffer, error) {
	return d.bufferWithin(context.Background(), n)
}

// bufferWithin is Buffer that fails with the cause of ctx's end if ctx ends while the pool maps new
// memory.
func (d *Dispatcher) bufferWithin(ctx context.Context, n int) (*buffers.Buffer, error) {
	if n > MaxMessage {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, n, MaxMessage)
	}
	b, err := d.cfg.Pool.GetWithin(ctx, n)
	if errors.Is(err, buffers.ErrClosed) {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return b, err
}

// Listen opens a port of t at addr, or at an address that t chooses if addr is "". Links prefer
// ports that were opened earlier.
func (d *Dispatcher) Listen(t subsys.Transport, addr string) error {
	p, err := t.Listen(addr, subsys.Config{
		Pool: d.cfg.Pool, Poller: d.startPoller, Logger: d.log, Count: &d.count, Key: d.self, Here: d, Progress: d.progress.PortLock(),
		Folder: d.cfg.Folder,
		Spin:   d.cfg.Poll.spin(runtime.GOMAXPROCS(0)),
		Accept: func(c subsys.Conn) subsys.Sink { return d.welcome(c) },
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	closing := d.closing
	if !closing {
		d.ports = append(d.ports[:len(d.ports):len(d.ports)], p)
	}
	d.mu.Unlock()
	if closing {
		p.Close() // waits for the goroutine that accepts connections, which may need mu
		return ErrClosed
	}
	return nil
}

// Reconsider looks once for better routes of all links. It is called when ports have been opened
// and other contexts can know of them.
func (d *Dispatcher) Reconsider() {
	d.eachLink(func(l *link) {
		l.mu.Lock()
		l.actLocked(l.life.Improve())
		l.mu.Unlock()
	})
}

// Addrs returns the addresses of the ports, in order of preference.
func (d *Dispatcher) Addrs() []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	out := make([]string, len(d.ports))
	for i, p := range d.ports {
		out[i] = p.Addr()
	}
	return out
}

// startPoller returns the poller, and makes it on first use. It returns nil
// when the dispatcher is closed or descriptors ran out.
func (d *Dispatcher) startPoller() *subsys.Poller {
	if p := d.progress.Poller(); p != nil {
		return p
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.progress.Poller(); p != nil || d.closed {
		return p
	}
	p, err := d.progress.Start()
	if err != nil {
		// Cause: the kernel gave no epoll set. Remedy: raise `ulimit -n`.
		d.log.Error("dispatch: no poller", "err", err)
		return nil
	}
	return p
}

// Mailbox makes the mailbox of the resource with the given serial. limit is in bytes; 0 means the
// default.
func (d *Dispatcher) Mailbox(serial uint32, limit int) (*Mailbox, error) {
	return d.publish(newMailbox(d, serial, limit, 0))
}

// publish lets messages come to a new mailbox, which is complete, and returns it.
func (d *Dispatcher) publish(m *Mailbox) (*Mailbox, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return nil, ErrClosed
	}
	if d.boxes[m.serial] != nil {
		return nil, fmt.Errorf("dispatch: mailbox %d exists", m.serial)
	}
	d.boxes[m.serial] = m
	return m, nil
}

// Serve passes the messages for the resource with the given serial to handle, one at a time. The
// resource has no receivers. If handle returns false, the sender is told that the resource does not
// exist. handle may not keep the message.
func (d *Dispatcher) Serve(serial uint32, limit int, handle func(*Message) bool) error {
	m := newMailbox(d, serial, limit, 0)
	m.handle = handle
	m.handlesAtOnce.Store(true)
	_, err := d.publish(m)
	return err
}

// hasBegunClosing reports whether Close has been called.
func (d *Dispatcher) hasBegunClosing() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.closing
}

// mailbox returns the mailbox of the resource with the given serial, or nil.
func (d *Dispatcher) mailbox(serial uint32) *Mailbox {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.boxes[serial]
}

// forget takes a mailbox that is closed from the table.
func (d *Dispatcher) forget(m *Mailbox) {
	d.mu.Lock()
	if d.boxes[m.serial] == m {
		delete(d.boxes, m.serial)
	}
	d.mu.Unlock()
}

// Flow returns a Flow over the common lane to the resource with serial dst of context owner. The
// caller keeps it for as long as it works. After an error of Send that matches ErrGone or
// ErrUnreachable, the caller asks for a new one.
func (d *Dispatcher) Flow(owner resource.GID, dst uint32) (*Flow, error) {
	return d.FlowOver(owner, dst, "")
}

// FlowOver returns a Flow as [Dispatcher.Flow] does, over the given lane. All flows to one resource
// should use one lane: messages over several lanes have no order.
func (d *Dispatcher) FlowOver(owner resource.GID, dst uint32, lane Lane) (*Flow, error) {
	k := linkKey{owner.Context(), lane}
	o := neighbour{Dispatcher: d}
	if k.peer != d.self {
		o, _ = d.neighbour(k)
	}
	if o.Dispatcher != nil {
		return d.directly(o, dst)
	}
	l, err := d.linkOf(k)
	if err != nil {
		return nil, err
	}
	return l.flow(dst), nil
}

// link returns the common link with peer.
func (d *Dispatcher) link(peer resource.GID) (*link, error) { return d.linkOf(linkKey{peer: peer}) }

// unlink takes a link that has ended from the table, and keeps its counts.
func (d *Dispatcher) unlink(l *link) {
	l.mu.Lock() // a goroutine that writes may still count
	defer l.mu.Unlock()
	l.flushCountersLocked()
	d.mu.Lock()
	all := d.links[l.peer]
	if i := slices.Index(all, l); i >= 0 {
		if all = slices.Delete(all, i, i+1); len(all) == 0 {
			delete(d.links, l.peer)
		} else {
			d.links[l.peer] = all
		}
		d.past.add(&l.traffic)
	}
	d.mu.Unlock()
}

// inBackground calls f in a goroutine that Close waits for.
func (d *Dispatcher) inBackground(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		go f()
		return
	}
	d.running.Go(f)
}

// eachLink calls f for each link. No lock is held during the calls.
func (d *Dispatcher) eachLink(f func(*link)) {
	d.mu.RLock()
	ls := d.allLinksLocked()
	d.mu.RUnlock()
	for _, l := range ls {
		f(l)
	}
}

// allLinksLocked returns all links. mu must be held.
func (d *Dispatcher) allLinksLocked() []*link {
	all := make([]*link, 0, len(d.links))
	for _, ls := range d.links {
		all = append(all, ls...)
	}
	return all
}

// random64 returns a random number.
func random64() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// Close stops accepting messages. It waits until everything that was accepted has been
// acknowledged, or ctx ends. Then it tells the peers, and frees everything. If messages could not
// be delivered, its error has a *FlushError with their number and their targets. Messages of
// [Flow.SendAndForget] are not waited for, and are no error.
//
// Close returns after the last call of Config.Undelivered, unless that does not return before ctx
// ends, with a grace of a second. Then the reports that wait are dropped, and the error says how
// many. Config.Undelivered may call Close, which then does not wait for reports, nor for another
// Close. The same holds for any function that package callqueue calls.
func (d *Dispatcher) Close(ctx context.Context) error {
	d.mu.Lock()
	if d.closing {
		d.mu.Unlock()
		if !callqueue.InCall() {
			<-d.done
		}
		return nil
	}
	d.closing = true
	boxes := slices.Collect(maps.Values(d.boxes))
	d.mu.Unlock()
	for _, m := range boxes {
		m.Close()
	}
	d.lossesAtClose.take(nil) // messages to the context's own resources, which nothing can receive any more
	d.eachLink(func(l *link) { l.drain(ctx) })
	// A message may have been received whose frame is not worked on to the end. After that the
	// goodbye acknowledges it; otherwise the sender would report it as undelivered.
	d.progress.Settle()
	d.eachLink(func(l *link) { l.sayGoodbye() })
	d.leaveProcess()
	d.cancel()
	d.budget.Close()

	d.mu.Lock()
	ports := d.ports
	d.closed = true
	d.mu.Unlock()
	for _, p := range ports {
		p.Close()
	}
	close(d.stop)
	d.running.Wait()
	d.progress.Close()
	dropped := d.reports.Drain(ctx)
	close(d.done)
	var errs []error
	if err := d.lossesAtClose.flushError(nil, nil, nil); err != nil {
		errs = append(errs, err)
	}
	if dropped > 0 {
		d.unreported.Add(uint64(dropped))
		errs = append(errs, fmt.Errorf("%d reports of undelivered messages dropped, because the function for them did not return", dropped))
	}
	return errors.Join(errs...)
}
