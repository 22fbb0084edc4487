// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory/database"
	"github.com/rocl-go/rocl/directory/mux"
	"github.com/rocl-go/rocl/directory/search"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/tls"
)

// Config has the settings of a member. Node and DB are required.
type Config struct {
	Node resource.NodeID
	DB   *database.DB
	// Name is the cluster's name. Members of clusters with other names are not heard.
	Name string
	// Bind is HOST:PORT for everything, UDP and TCP.
	Bind string
	// Join lists HOST:PORT, addresses or DNS names, of members to begin with.
	Join []string
	// Group is HOST:PORT of a multicast group or a broadcast address, by which members find each
	// other and search.
	Group string
	// Keys are the cluster's keys: the first seals, all open. Without a key only accidents are kept
	// out.
	Keys [][]byte
	// Credentials are for the streams between members, which are sealed if there are credentials.
	// Nil means that they are made from Keys.
	Credentials tls.Credentials
	// Serve takes over the streams of other members to the node's directory. It may be nil.
	Serve    func(net.Conn)
	Strategy strategy.Strategy
	Fan      int // fan-out of the spanning trees; 0: search.DefaultFan
	// Hop is the Hop of search.Config; 0: search.DefaultHop.
	Hop    time.Duration
	Spread time.Duration // how often members are told what is new in the summary; 0: 5 s
	// Patience is how long a question waits for members that cannot be asked and are not known to
	// be dead; 0: 3 s.
	Patience time.Duration
	// Poll is how long an asking goroutine reads the sockets itself before it sleeps, and how long
	// the keeper reads on after an answer; 0: not at all.
	Poll time.Duration
	// Sure reports whether a resource that DB lacks does not exist on the node. A no would be
	// premature while the contexts offer again what the previous server knew. Nil means always
	// true.
	Sure func() bool
	// Follows means that the node has been a member before. Even if Join is empty, other members
	// may exist, which know the node and look for it.
	Follows bool
	// Opening bounds Open, which may look Bind's name up; nil: no bound.
	Opening  context.Context
	Resolver *net.Resolver // resolves the names in Join; nil: the system's resolver
	Logger   *slog.Logger

	gossip func(*memberlist.Config) // changes memberlist's settings; nil, except in tests
}

// A Cluster is this node's membership. Its methods may be called concurrently.
type Cluster struct {
	cfg   Config
	log   *slog.Logger
	port  *mux.Mux
	list  *memberlist.Memberlist
	ring  *memberlist.Keyring // nil without a key
	certs *tls.Secrets        // made from the keys; nil without a key, or with Config.Credentials
	life  context.Context
	end   context.CancelFunc
	busy  sync.WaitGroup
	going atomic.Bool // another server will take this one's place
	// former means that some member knows a former life of this one: see NotifyMerge.
	former atomic.Bool
	// told means that a member that was joined has given its account: see absent.go.
	told  atomic.Bool
	ended sync.Once // guards halt

	// joined is done when the members are known, or after firstTime. Questions and watches wait for
	// it.
	joined context.Context
	waited context.CancelFunc
	// known means that this member knows all members, so that a no of all of them is definite: see
	// settled and waitedLongEnough.
	known atomic.Bool
	met   time.Time // when the first other member was seen alive; guarded by nmu

	members atomic.Pointer[[]resource.NodeID] // sorted; alive, or away for a moment
	roll    atomic.Pointer[roll]              // the same members, in the form that other members are told
	kmu     sync.Mutex                        // held by SetKeys
	// nmu guards met and the fields down to exchanges.
	nmu       sync.Mutex
	nodes     map[resource.NodeID]*node // every member that was met or heard of
	changed   chan struct{}             // closed and replaced when members change
	looking   map[string]bool           // addresses at which join is under way
	untold    map[resource.NodeID]bool  // members that have not acknowledged that this one is away
	heard     chan struct{}             // closed when all members have acknowledged
	conflict  string                    // the conflict that was logged last: two places of one node
	wanting   map[string]*wanting       // by address: members to join that were not reached yet
	agreed    map[resource.NodeID]agreement
	exchanges map[resource.NodeID]*exchange // under way

	large   chan struct{} // one slot for each question by stream that is being answered
	places  places
	watches watches
	count   counts

	// mu guards filters, search and the fields from due to silent, and setting the timer.
	mu      sync.Mutex
	filters *search.Filters
	born    time.Time // only its monotonic part is used: reading half the clock is half the price
	search  *search.Node
	timer   *time.Timer
	due     time.Time // when timer fires; zero: not set
	out     []mux.Out // datagrams that search wants sent; they are sent without mu
	spare   []mux.Out // an empty slice to be used as out again, with the buffers of its payloads
	said    []byte    // buffer of the last answer to another member
	casts   [][]byte
	silent  []resource.NodeID // members that did not answer, for which mend is called without mu
}

// maxName limits the name of a cluster, in bytes: with "rocl " before it, the name is the label of
// memberlist's packets.
const maxName = memberlist.LabelMaxSize - len(labelMark)

// Open makes the node a member. It joins the members in cfg.Join, and goes on trying in the
// background.
func Open(cfg Config) (*Cluster, error) {
	if err := CheckName(cfg.Name); err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, log: cfg.Logger, nodes: map[resource.NodeID]*node{}, changed: make(chan struct{}), looking: map[string]bool{}, wanting: map[string]*wanting{},
		agreed: map[resource.NodeID]agreement{}, exchanges: map[resource.NodeID]*exchange{}, large: make(chan struct{}, mostLarge)}
	c.count.init()
	c.watches.all, c.watches.links = map[uint64]*watching{}, map[resource.NodeID]*link{}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.cfg.Spread <= 0 {
		c.cfg.Spread = 5 * time.Second
	}
	if c.cfg.Patience <= 0 {
		c.cfg.Patience = 3 * time.Second
	}
	c.filters = search.NewFilters()
	c.life, c.end = context.WithCancel(context.Background())
	c.joined, c.waited = context.WithTimeout(c.life, firstTime)
	c.members.Store(&[]resource.NodeID{cfg.Node})
	c.roll.Store(c.newRoll(*c.members.Load()))
	c.timer = time.AfterFunc(time.Hour, c.tick)
	scfg := search.Config{
		Self: cfg.Node, Strategy: cfg.Strategy, Fan: cfg.Fan, Hop: cfg.Hop,
		Members: func() []resource.NodeID { return *c.members.Load() },
		Local:   c.local,
		May:     c.may,
		Silent:  func(m resource.NodeID) { c.silent = append(c.silent, m) },
		Send: func(to resource.NodeID, p *search.Packet) {
			c.asks(to, p)
			if p.Covered > 0 {
				p.Known = c.roll.Load().knownTo(to)
			}
			var room []byte
			if n := len(c.out); n < cap(c.out) {
				room = c.out[:n+1][n].Payload[:0]
			}
			c.out = append(c.out, mux.Out{To: to, Payload: p.AppendTo(slices.Grow(room, p.Size()), cfg.Node, to)})
		},
	}
	if cfg.Group != "" {
		scfg.Room = mux.MaxPayload
		scfg.Cast = func(p *search.Packet) {
			c.castsOne(p)
			c.casts = append(c.casts, p.Append(nil))
		}
	}
	c.born = time.Now()
	c.search = search.NewNode(scfg)
	seal, err := c.streams()
	if err == nil {
		c.port, err = mux.Open(mux.Config{
			Self: cfg.Node, Bind: cfg.Bind, Cluster: cfg.Name, Keys: cfg.Keys, Group: cfg.Group, TLS: seal, Opening: cfg.Opening, Spin: cfg.Poll, Logger: cfg.Logger,
			Receive: c.receive, Stream: c.serve, Beacon: c.heardBeacon,
		})
	}
	if err == nil {
		if err = c.gossip(); err != nil {
			c.port.Close()
		}
	}
	if err != nil {
		c.end()
		c.timer.Stop()
		return nil, fmt.Errorf("cluster: %w", err)
	}
	c.port.Start()
	if !cfg.Follows && (len(cfg.Join) == 0 && cfg.Group == "" || len(cfg.Join) == 1 && cfg.Join[0] == c.Addr()) {
		c.reached() // there is no member to wait for
	}
	c.busy.Add(3)
	go c.keepJoined()
	go c.keepLinks()
	go c.keepSummary()
	return c, nil
}

// LinkKey returns the key that contexts of the cluster's nodes prove to each other to have. If the
// cluster has no key, the name alone gives it.
func LinkKey(name string, key []byte) (k [32]byte) {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("rocl link " + name))
	h.Sum(k[:0])
	return k
}

// SetKeys replaces the keys of the cluster: the first seals, all open. To change a key, add the new
// one on every node, then put it first on every node, then remove the old one. Open streams stay
// open.
func (c *Cluster) SetKeys(of ...[]byte) error {
	c.kmu.Lock() // two concurrent calls take effect in one order everywhere
	defer c.kmu.Unlock()
	err := c.rekey(of)
	if err == nil && c.certs != nil {
		err = c.certs.Set(streamKeys(of)...)
	}
	if err != nil {
		return fmt.Errorf("cluster: changing keys: %w", err)
	}
	c.port.SetKeys(of)
	return nil
}

// streamProto names the streams between members in TLS (ALPN).
const streamProto = "rocl-dir/1"

// streamKeys derives the secrets that only members have. Contexts are given other keys (LinkKey),
// so a context cannot pass for a member.
func streamKeys(of [][]byte) (all [][]byte) {
	for _, k := range of {
		h := hmac.New(sha256.New, k)
		h.Write([]byte("rocl stream"))
		all = append(all, h.Sum(nil))
	}
	return all
}

// streams returns how the streams between members are sealed: not at all without credentials and
// keys.
func (c *Cluster) streams() (seal mux.TLS, err error) {
	cred := c.cfg.Credentials
	if cred == nil {
		if len(c.cfg.Keys) == 0 {
			return mux.TLS{}, nil
		}
		if c.certs, err = tls.FromSecrets(c.cfg.Name, streamKeys(c.cfg.Keys)...); err != nil {
			return mux.TLS{}, err
		}
		cred = c.certs
	}
	return mux.TLS{
		Client: func(ctx context.Context, nc net.Conn) (net.Conn, error) {
			return tls.Client(ctx, nc, cred, streamProto, c.log)
		},
		Server: func(ctx context.Context, nc net.Conn) (net.Conn, error) {
			return tls.Server(ctx, nc, cred, streamProto, c.log)
		},
	}, nil
}

// Addr returns the address at which the member is reached.
func (c *Cluster) Addr() string { return c.port.Addr().String() }

// receive handles a datagram from another member. b is lent for the call. at is where the sender
// awaits an answer; nil means at its port. The port may call receive concurrently.
func (c *Cluster) receive(from resource.NodeID, at *net.UDPAddr, b []byte) {
	if search.IsFilter(b) {
		c.hearFilter(from, b)
		return
	}
	if len(b) == 1 && b[0] >= msgHeard && b[0] <= msgLeaving {
		c.parting(from, at, b[0])
		return
	}
	if len(b) == 1+absentLen && b[0] == msgOther {
		c.heardOther(b[1:])
		return
	}
	if len(b) == 9 && b[0] == msgStop {
		c.places.stop(binary.BigEndian.Uint64(b[1:]))
		return
	}
	var p search.Packet
	if err := p.ParseFrom(b, from, c.cfg.Node); err != nil {
		c.log.Debug("cluster: packet", "from", from, "err", err)
		return
	}
	if q, ok := p.Question(); ok && !c.answers(q) {
		c.log.Debug("cluster: a question that cannot be answered, or not yet", "from", from, "bytes", len(q))
		return
	}
	out := c.advanced(nil, func() bool { return !c.search.Timeless(&p) }, func(now time.Time) {
		c.hears(from, &p)
		c.search.Receive(now, from, &p)
	})
	for i := range out {
		if out[i].To == from {
			out[i].At = at
		}
	}
	c.send(out)
}

// answers reports whether a no of this member to the question q would be true.
func (c *Cluster) answers(q []byte) bool {
	if _, ok := parseQuestion(q); !ok {
		return false // a question of a later version: this member may hold what it asks for
	}
	if q[0] == kindRoll || c.cfg.Sure == nil || c.cfg.Sure() {
		return true
	}
	if q[0] == kindNext {
		return false // a place kept from now on would lack what is about to be offered again
	}
	_, ok := c.answer(nil, q, mostPacked)
	return ok // a no is not sure: the resource may be about to be offered again; the asker will ask again
}

// tick lets the search handle what was not answered in time. The timer calls it in a goroutine of
// its own.
func (c *Cluster) tick() {
	c.step(func(now time.Time) {
		c.due = time.Time{}
		c.search.Tick(now)
	})
}

// step runs f on the search, and sends the datagrams that the search wants sent.
func (c *Cluster) step(f func(now time.Time)) {
	c.send(c.advance(f))
}

// send sends the datagrams that advance returned.
func (c *Cluster) send(out []mux.Out) {
	if len(out) > 0 {
		c.port.Send(out...)
		c.sentOff(out)
	}
}

// sentOff takes back the slice that advance returned, to be used again.
func (c *Cluster) sentOff(out []mux.Out) {
	out = emptied(out)
	c.mu.Lock()
	if cap(c.spare) < cap(out) {
		c.spare = out
	}
	c.mu.Unlock()
}

// emptied returns out without its datagrams, but with the buffers of their payloads, except those
// larger than is often needed.
func emptied(out []mux.Out) []mux.Out {
	if cap(out) > 64 {
		return nil
	}
	for i := range out {
		room := out[i].Payload[:0]
		if cap(room) > mux.MaxPayload {
			room = nil
		}
		out[i] = mux.Out{Payload: room}
	}
	return out[:0]
}

// advance runs f on the search, and returns the datagrams that the search wants sent: see send.
func (c *Cluster) advance(f func(now time.Time)) []mux.Out {
	return c.advanced(nil, func() bool { return true }, f)
}

// advanced is advance with two more parameters. f gets the time only if timely, called with mu
// held, reports true, and a zero time otherwise. The result uses out's array if out is not nil.
func (c *Cluster) advanced(out []mux.Out, timely func() bool, f func(now time.Time)) []mux.Out {
	c.mu.Lock()
	var now time.Time
	if timely() {
		now = time.Now()
	}
	if c.out = out; out == nil {
		c.out, c.spare = c.spare, nil
	}
	f(now)
	out, casts, silent := c.out, c.casts, c.silent
	c.out, c.casts, c.silent = nil, nil, nil
	c.arm()
	c.mu.Unlock()
	c.count.sent.Add(uint64(len(out) + len(casts)))
	for _, b := range casts {
		c.port.Cast(b)
	}
	if len(silent) > 0 {
		c.mend(silent)
	}
	return out
}

// arm sets the timer to the time at which the search wants to be called. mu must be held.
func (c *Cluster) arm() {
	if at := c.search.Next(); !at.IsZero() && (c.due.IsZero() || at.Before(c.due)) && c.life.Err() == nil {
		// A timer that fires too early does no harm. To move it each time would cost more than a
		// question.
		c.due = at
		c.timer.Reset(max(time.Until(at), 0))
	}
}

// Members returns the sorted nodes of the cluster, this one among them: those alive, and those that
// said that they would be back in a moment.
func (c *Cluster) Members() []resource.NodeID { return slices.Clone(*c.members.Load()) }

// others returns the members without this one.
func (c *Cluster) others() []resource.NodeID {
	return slices.DeleteFunc(c.Members(), func(m resource.NodeID) bool { return m == c.cfg.Node })
}

// Close leaves the cluster. The other members are told.
func (c *Cluster) Close() error { return c.stop(true) }

// HandOver ends the membership without leaving, for a node whose contexts go on: another server is
// about to take this one's place. The other members wait for that server for a few seconds.
func (c *Cluster) HandOver() error { return c.stop(false) }

// stop calls halt once.
func (c *Cluster) stop(leave bool) (err error) {
	c.ended.Do(func() { err = c.halt(leave) })
	return err
}

// halt ends the membership and waits for the goroutines of c. If leave is set, it tells the other
// members that this one leaves. Otherwise it tells them that another server takes this one's place.
func (c *Cluster) halt(leave bool) (err error) {
	if !leave {
		c.sayAway()
	}
	c.nmu.Lock() // look begins no join any more
	c.end()
	c.nmu.Unlock()
	if leave {
		c.busy.Wait()
		c.takeLeave()
		err = c.list.Leave(time.Second)
	}
	c.mu.Lock()
	c.timer.Stop()
	c.mu.Unlock()
	if e := c.list.Shutdown(); err == nil {
		err = e
	}
	c.port.Close()
	c.places.close()
	c.waitNoMore()
	c.busy.Wait()
	if err != nil {
		return fmt.Errorf("cluster: leaving: %w", err)
	}
	return nil
}
