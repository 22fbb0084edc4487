package cluster

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/search"
	"github.com/rocl-go/rocl/resource"
)

// Config is what a member needs. Node and DB are required.
type Config struct {
	Node   resource.NodeID
	DB     *database.DB
	Name   string   // of the cluster; members of others are not heard
	Bind   string   // host:port for gossip and questions, UDP and TCP
	Join   []string // addresses of members to begin with
	Key    []byte   // seals everything; whoever does not have it is not heard
	Fan    int      // of the spanning trees; 0: search.DefaultFan
	Hop    time.Duration
	Spread time.Duration // how often members are told what is new in the summary; 0: 5 s
	Logger *slog.Logger

	// Settling says that a no would be premature, because what the server before
	// this one knew is being offered again; may be nil.
	Settling func() bool
}

// A Cluster is this node's membership. Its methods may be called concurrently.
type Cluster struct {
	cfg     Config
	log     *slog.Logger
	list    *memberlist.Memberlist
	life    context.Context
	end     context.CancelFunc
	joined  context.Context // done once a member was reached, or none in time
	reached context.CancelFunc
	busy    sync.WaitGroup

	members atomic.Pointer[[]resource.NodeID] // alive, in order
	nmu     sync.Mutex
	nodes   map[resource.NodeID]*memberlist.Node // alive
	known   map[resource.NodeID]met              // ever
	looking map[string]bool                      // at these addresses, for members

	places places

	sent atomic.Uint64 // packets of searches

	mu      sync.Mutex
	filters filters
	search  *search.Node
	timer   *time.Timer
	out     []outgoing // what search wants sent, sent without mu
}

// met is where a member was, and when it was lost if it was.
type met struct {
	addr string
	lost time.Time
}

type outgoing struct {
	to resource.NodeID
	p  []byte
}

// most is what fits one packet of memberlist, with room for its own head.
const most = 1200

// Open makes the node a member. It joins those it is told of, and goes on
// trying in the background.
func Open(cfg Config) (*Cluster, error) {
	c := &Cluster{cfg: cfg, log: cfg.Logger, nodes: map[resource.NodeID]*memberlist.Node{}, known: map[resource.NodeID]met{}, looking: map[string]bool{}}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.cfg.Spread <= 0 {
		c.cfg.Spread = 5 * time.Second
	}
	c.filters.of, c.filters.wants = map[resource.NodeID]*search.Summary{}, map[resource.NodeID]bool{}
	host, port, err := net.SplitHostPort(cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("cluster: binding: %w", err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("cluster: binding to %s: port %q is no number", cfg.Bind, port)
	}
	c.life, c.end = context.WithCancel(context.Background())
	c.joined, c.reached = context.WithTimeout(c.life, time.Second)
	c.members.Store(&[]resource.NodeID{cfg.Node})
	c.search = search.NewNode(search.Config{
		Self: cfg.Node, Fan: cfg.Fan, Hop: cfg.Hop,
		Members: func() []resource.NodeID { return *c.members.Load() },
		Local:   c.local,
		May:     c.may,
		Send:    func(to resource.NodeID, p *search.Packet) { c.out = append(c.out, outgoing{to, p.Append(c.signed())}) },
	})
	c.timer = time.AfterFunc(time.Hour, c.tick)
	m := memberlist.DefaultLANConfig()
	m.Name = fmt.Sprintf("%012x", uint64(cfg.Node))
	m.BindAddr, m.BindPort, m.AdvertisePort = host, int(n), int(n)
	m.Label = "rocl " + cfg.Name
	m.Delegate, m.Events = delegate{c}, events{c}
	m.EnableCompression = false // cost without gain
	// A node that falls silent is suspected after two or three probes' time and
	// dead 0.9 s after three others have found the same, 5.4 s if they have not: so
	// chance losses have time to be denied. Rumours are told often enough that
	// nobody misses one.
	m.ProbeInterval, m.ProbeTimeout = 180*time.Millisecond, 80*time.Millisecond
	m.SuspicionMult = 5
	m.GossipInterval, m.RetransmitMult = 100*time.Millisecond, 8
	m.DeadNodeReclaimTime = 2 * time.Second // a node may come back at another address
	m.PushPullInterval = 5 * time.Second    // what gossip lost; memberlist takes longer where there are many
	m.Logger = slog.NewLogLogger(quiet{c.log.Handler()}, slog.LevelDebug)
	if len(cfg.Key) > 0 {
		h := hmac.New(sha256.New, cfg.Key)
		h.Write([]byte("rocl gossip"))
		m.SecretKey = h.Sum(nil)
	}
	if c.list, err = memberlist.Create(m); err != nil {
		c.end()
		c.timer.Stop()
		return nil, fmt.Errorf("cluster: %w", err)
	}
	if len(cfg.Join) == 0 || len(cfg.Join) == 1 && cfg.Join[0] == c.Addr() {
		c.reached() // nobody to wait for
	}
	c.busy.Add(2)
	go c.keepJoined()
	go c.keepSummary()
	return c, nil
}

// LinkKey is what contexts of the cluster's nodes prove to each other that they
// know. Without a key of the cluster everybody can, who knows its name.
func LinkKey(name string, key []byte) (k [32]byte) {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("rocl link " + name))
	h.Sum(k[:0])
	return k
}

// Addr is where the member is reached.
func (c *Cluster) Addr() string { return c.list.LocalNode().Address() }

// Members are the live nodes, this one among them, in order.
func (c *Cluster) Members() []resource.NodeID { return slices.Clone(*c.members.Load()) }

const (
	rejoin     = 500 * time.Millisecond // how often members that are missed are looked for
	mostMissed = 16                     // of them at a time: one that answers knows the others
	forget     = 72 * time.Hour         // after which a member that is missed is no more looked for
)

// keepJoined joins those it was told of until each was reached once, and looks
// for those it has met for as long as they are not seen alive: memberlist gives
// the dead up, and a cluster that was parted would stay so.
func (c *Cluster) keepJoined() {
	defer c.busy.Done()
	told := map[string]bool{} // and not reached yet
	for _, addr := range c.cfg.Join {
		told[addr] = addr != c.Addr()
	}
	for wait := rejoin / 8; ; wait = min(wait*2, rejoin) {
		c.nmu.Lock()
		for addr := range told {
			if told[addr] {
				c.look(addr, func() { told[addr] = false })
			}
		}
		for _, addr := range c.missed(time.Now()) {
			c.look(addr, func() {})
		}
		c.nmu.Unlock()
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-c.life.Done():
			t.Stop()
			return
		}
	}
}

// missed are some of those it has met and does not see alive. c.nmu is held.
func (c *Cluster) missed(now time.Time) (addrs []string) {
	for id, k := range c.known {
		switch {
		case c.nodes[id] != nil:
		case now.Sub(k.lost) > forget:
			delete(c.known, id)
		case len(addrs) < mostMissed: // in no order: others the next time
			addrs = append(addrs, k.addr)
		}
	}
	return addrs
}

// look joins whoever is at an address, and calls found if somebody is, with
// c.nmu held. A packet goes first: whoever is cut off would hold a connection
// up for seconds, and whoever does not hear packets is no use as a member.
// c.nmu is held.
func (c *Cluster) look(addr string, found func()) {
	if c.looking[addr] {
		return
	}
	c.looking[addr] = true
	c.busy.Go(func() {
		err := c.join(addr)
		c.nmu.Lock()
		defer c.nmu.Unlock()
		delete(c.looking, addr)
		if err == nil {
			c.reached()
			found()
		} else {
			c.log.Debug("cluster: joining", "addr", addr, "err", err)
		}
	})
}

func (c *Cluster) join(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.life, 2*time.Second)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return err
	}
	n, err := net.DefaultResolver.LookupPort(ctx, "udp", port)
	if err != nil {
		return err
	}
	err = fmt.Errorf("%s: nobody", addr)
	for _, ip := range ips {
		at := netip.AddrPortFrom(ip.Unmap(), uint16(n))
		if _, err = c.list.Ping("", net.UDPAddrFromAddrPort(at)); err == nil {
			_, err = c.list.Join([]string{at.String()})
		}
		if err == nil || c.life.Err() != nil {
			break
		}
	}
	return err
}

// quiet passes memberlist's lines on at level debug.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func nodeID(n *memberlist.Node) (resource.NodeID, bool) {
	id, err := strconv.ParseUint(n.Name, 16, 48)
	return resource.NodeID(id), err == nil && len(n.Name) == 12 && id != 0
}

type events struct{ c *Cluster }

func (e events) NotifyJoin(n *memberlist.Node)   { e.c.seen(n, true) }
func (e events) NotifyUpdate(n *memberlist.Node) { e.c.seen(n, true) }
func (e events) NotifyLeave(n *memberlist.Node)  { e.c.seen(n, false) }

func (c *Cluster) seen(n *memberlist.Node, alive bool) {
	id, ok := nodeID(n)
	if !ok {
		return
	}
	c.nmu.Lock()
	defer c.nmu.Unlock()
	switch {
	case alive:
		if len(c.known) > len(c.nodes) {
			for other, k := range c.known {
				if k.addr == n.Address() && c.nodes[other] == nil {
					delete(c.known, other) // a machine that was started anew is another node
				}
			}
		}
		c.nodes[id], c.known[id] = n, met{addr: n.Address()}
	default:
		delete(c.nodes, id)
		c.known[id] = met{n.Address(), time.Now()}
		if n.State == memberlist.StateLeft {
			delete(c.known, id) // it said so
		}
	}
	all := make([]resource.NodeID, 0, len(c.nodes)+1)
	for id := range c.nodes {
		all = append(all, id)
	}
	if c.nodes[c.cfg.Node] == nil {
		all = append(all, c.cfg.Node)
	}
	slices.Sort(all)
	c.members.Store(&all)
	c.mu.Lock()
	c.filters.met(id, alive)
	c.mu.Unlock()
	c.log.Info("cluster: member", "node", n.Name, "addr", n.Address(), "alive", alive)
}

type delegate struct{ c *Cluster }

func (delegate) NodeMeta(int) []byte             { return nil }
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (delegate) LocalState(bool) []byte          { return nil }
func (delegate) MergeRemoteState([]byte, bool)   {}

// NotifyMsg is called for each packet. b is not ours to keep.
func (d delegate) NotifyMsg(b []byte) { d.c.receive(b) }

// signed is the beginning of a message: who sends it.
func (c *Cluster) signed() []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(c.cfg.Node))
}

func (c *Cluster) receive(b []byte) {
	var p search.Packet
	if len(b) < 8 {
		return
	}
	from := resource.NodeID(binary.LittleEndian.Uint64(b))
	if len(b) > 8 && b[8] >= msgDelta {
		c.hearFilter(from, b[8], b[9:])
		return
	}
	if err := p.Parse(b[8:]); err != nil {
		c.log.Debug("cluster: packet", "from", from, "err", err)
		return
	}
	if q, ok := p.Question(); ok && c.cfg.Settling != nil && c.cfg.Settling() {
		if _, ok := c.local(q); !ok {
			return // it may be about to be offered again; who asks will ask again
		}
	}
	c.step(func(now time.Time) { c.search.Receive(now, from, &p) })
}

func (c *Cluster) tick() { c.step(func(now time.Time) { c.search.Tick(now) }) }

// step lets the search go on, and sends what it wants sent.
func (c *Cluster) step(f func(now time.Time)) {
	c.mu.Lock()
	now := time.Now()
	f(now)
	out := c.out
	c.out = nil
	if at := c.search.Next(); !at.IsZero() && c.life.Err() == nil {
		c.timer.Reset(max(at.Sub(now), 0))
	}
	c.mu.Unlock()
	c.sent.Add(uint64(len(out)))
	for _, o := range out {
		c.send(o)
	}
}

func (c *Cluster) send(o outgoing) {
	c.nmu.Lock()
	n := c.nodes[o.to]
	c.nmu.Unlock()
	if n == nil {
		return // patience will end
	}
	if len(o.p) > most {
		c.busy.Add(1)
		go func() { // it dials
			defer c.busy.Done()
			if err := c.list.SendReliable(n, o.p); err != nil {
				c.log.Debug("cluster: sending", "to", n.Name, "err", err)
			}
		}()
		return
	}
	if err := c.list.SendBestEffort(n, o.p); err != nil {
		c.log.Debug("cluster: sending", "to", n.Name, "err", err)
	}
}

// Kinds of questions.
const (
	kindFind = 1 + iota
	kindLookup
	kindNext // the next answer of several; the identifier's place holds cursor and step
)

// local answers a question of another node.
func (c *Cluster) local(q []byte) ([]byte, bool) {
	if len(q) < 17 {
		return nil, false
	}
	id := resource.GetGID(q[1:])
	pattern, err := resource.ParseList(q[17:])
	if err != nil {
		return nil, false
	}
	var r database.Record
	var ok bool
	switch q[0] {
	case kindFind:
		r, ok = c.cfg.DB.Find(&pattern)
	case kindLookup:
		r, ok = c.cfg.DB.Get(id)
	case kindNext:
		var lost bool
		if r, ok, lost = c.places.next(c.cfg.DB, binary.BigEndian.Uint64(q[1:]), binary.BigEndian.Uint64(q[9:]), &pattern, time.Now()); lost {
			return nil, true
		}
	}
	if !ok {
		return nil, false
	}
	return directory.AppendAnswer(nil, &r, &pattern), true
}

func question(kind byte, id resource.GID, pattern *resource.List) []byte {
	q := make([]byte, 17, 17+len(pattern.Wire()))
	q[0] = kind
	resource.PutGID(q[1:], id)
	return append(q, pattern.Wire()...)
}

func parseAnswer(b []byte) (database.Record, error) {
	if len(b) == 0 {
		return database.Record{}, fmt.Errorf("%w: a member was started anew and has forgotten the place", directory.ErrPartial)
	}
	a, err := directory.ParseAnswer(b)
	if err != nil {
		err = fmt.Errorf("%w: %w", search.ErrMalformed, err)
	}
	return database.Record(a), err
}

// Find asks the other members for a resource that matches. ErrNotFound is
// definite; ErrPartial names those that could not be asked.
func (c *Cluster) Find(ctx context.Context, pattern *resource.List) (database.Record, error) {
	return c.ask(ctx, question(kindFind, resource.GID{}, pattern), 0)
}

// Lookup asks the node on which the identifier was minted, and nobody else.
func (c *Cluster) Lookup(ctx context.Context, id resource.GID, pattern *resource.List) (database.Record, error) {
	return c.ask(ctx, question(kindLookup, id, pattern), id.Node())
}

// patience is how long a member that is seen alive may leave a question without
// an answer: as long as its death takes to be seen, or its next server to come.
const patience = 2 * time.Second

func (c *Cluster) ask(ctx context.Context, q []byte, only resource.NodeID) (database.Record, error) {
	if err := c.begun(ctx); err != nil {
		return database.Record{}, err
	}
	end := time.Now().Add(patience)
	r, err := c.await(ctx, func(now time.Time, done func(search.Result)) uint64 {
		if only != 0 {
			return c.search.SearchAmong(now, []resource.NodeID{only}, q, done)
		}
		return c.search.Search(now, q, done)
	})
	for pause := 25 * time.Millisecond; err == nil && !r.Definite() && time.Now().Before(end); pause = min(pause*2, 200*time.Millisecond) {
		if !slices.ContainsFunc(r.Failed, c.alive) {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		case <-c.life.Done():
		}
		covered, who := r.Covered, r.Failed
		r, err = c.await(ctx, func(now time.Time, done func(search.Result)) uint64 {
			return c.search.SearchAmong(now, who, q, done)
		})
		r.Covered += covered
	}
	switch {
	case err != nil:
		return database.Record{}, err
	case r.Found:
		return parseAnswer(r.Answer)
	case r.Definite():
		return database.Record{}, directory.ErrNotFound
	}
	return database.Record{}, fmt.Errorf("%w: %d of %d nodes: %x", directory.ErrPartial, len(r.Failed), len(r.Failed)+r.Covered, r.Failed)
}

func (c *Cluster) alive(n resource.NodeID) bool {
	_, ok := slices.BinarySearch(*c.members.Load(), n)
	return ok
}

// begun waits a moment for the first members to be reached: what a member that
// has just started does not find may be elsewhere.
func (c *Cluster) begun(ctx context.Context) error {
	select {
	case <-c.joined.Done():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await begins a search and waits for its end. When it returns, the search has
// ended or is forgotten.
func (c *Cluster) await(ctx context.Context, begin func(now time.Time, done func(search.Result)) uint64) (search.Result, error) {
	if c.life.Err() != nil {
		return search.Result{}, directory.ErrClosed
	}
	got := make(chan search.Result, 1)
	var id uint64
	c.step(func(now time.Time) { id = begin(now, func(r search.Result) { got <- r }) })
	var err error
	select {
	case r := <-got:
		return r, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-c.life.Done():
		err = directory.ErrClosed
	}
	c.step(func(time.Time) { c.search.Cancel(id) })
	return search.Result{}, err
}

// All yields what the other members hold that matches: each keeps the place
// (paper, section 3.4) and gives one at a time. At the end it says, with
// ErrPartial, if some member could not be asked.
func (c *Cluster) All(ctx context.Context, pattern *resource.List) iter.Seq2[database.Record, error] {
	return func(yield func(database.Record, error) bool) {
		var cur [8]byte
		_, _ = rand.Read(cur[:]) // nobody else's
		q := question(kindNext, resource.GID{}, pattern)
		copy(q[1:], cur[:])
		var failed []resource.NodeID
		if err := c.begun(ctx); err != nil {
			yield(database.Record{}, err)
			return
		}
		for _, m := range c.Members() {
			if m == c.cfg.Node {
				continue
			}
			for step := uint64(1); ; step++ {
				q := slices.Clone(q)
				binary.BigEndian.PutUint64(q[9:], step)
				r, err := c.ask(ctx, q, m)
				if errors.Is(err, directory.ErrNotFound) {
					break
				}
				if errors.Is(err, directory.ErrPartial) {
					failed = append(failed, m)
					break
				}
				if !yield(r, err) || err != nil {
					return
				}
			}
		}
		if len(failed) > 0 {
			yield(database.Record{}, fmt.Errorf("%w: %x", directory.ErrPartial, failed))
		}
	}
}

// Close leaves the cluster.
func (c *Cluster) Close() error { return c.stop(true) }

// Stop ends the membership without a word: the node's contexts go on, and its
// next server is about to take its place. If none does, the others see the node
// dead in a moment.
func (c *Cluster) Stop() error { return c.stop(false) }

func (c *Cluster) stop(leave bool) (err error) {
	if c.life.Err() != nil {
		return nil
	}
	c.end()
	c.busy.Wait()
	if leave {
		err = c.list.Leave(time.Second)
	}
	c.mu.Lock()
	c.timer.Stop()
	c.mu.Unlock()
	if e := c.list.Shutdown(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("cluster: leaving: %w", err)
	}
	return nil
}
