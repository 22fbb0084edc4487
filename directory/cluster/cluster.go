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
	"github.com/rocl-go/rocl/directory/port"
	"github.com/rocl-go/rocl/directory/search"
	"github.com/rocl-go/rocl/directory/strategy"
	"github.com/rocl-go/rocl/resource"
	"github.com/rocl-go/rocl/subsys/tls"
)

// Config is what a member needs. Node and DB are required.
type Config struct {
	Node  resource.NodeID
	DB    *database.DB
	Name  string   // of the cluster; members of others are not heard
	Bind  string   // host:port for everything, UDP and TCP
	Join  []string // addresses or DNS names of members to begin with
	Group string   // multicast group or broadcast address, host:port, to find each other and to search by
	Keys  [][]byte // of the cluster: the first seals, all open; without one only accidents are kept out
	// Credentials are for the streams between members, which are sealed if there
	// are any; nil: made from Keys.
	Credentials tls.Credentials
	Serve       func(net.Conn) // has the streams of other members to the node's directory; may be nil
	Strategy    strategy.Strategy
	Fan         int // of the spanning trees; 0: search.DefaultFan
	Hop         time.Duration
	Spread      time.Duration // how often members are told what is new in the summary; 0: 5 s
	// Patience is how long a question waits for members that cannot be asked
	// and are not known to be dead; 0: 3 s.
	Patience time.Duration
	// Poll is how long who asks reads the sockets himself before he sleeps, and
	// how long they are read on after a datagram; 0: not.
	Poll time.Duration
	// Sure says whether what DB lacks the node lacks: a no would be premature
	// while what the server before this one knew is being offered again; nil:
	// always.
	Sure func() bool
	// Follows says that the node has been a member before: who knows it will be
	// heard of, though it is told of nobody to join.
	Follows bool
	// Opening bounds Open, which may look Bind's name up; nil: nothing does.
	Opening  context.Context
	Resolver *net.Resolver // of the names to join; nil: the system's
	Logger   *slog.Logger
}

// A Cluster is this node's membership. Its methods may be called concurrently.
type Cluster struct {
	cfg   Config
	log   *slog.Logger
	port  *port.Port
	list  *memberlist.Memberlist
	ring  *memberlist.Keyring // nil without a key
	certs *tls.Secrets        // made from the keys; nil without, or if others are given
	life  context.Context
	end   context.CancelFunc
	busy  sync.WaitGroup
	going atomic.Bool // and another will take this one's place
	// Some member knows a former life of this one: see NotifyMerge.
	former atomic.Bool
	// A member that was joined has given its account: see absent.go.
	told  atomic.Bool
	ended sync.Once // stop

	// joined is done when the members are known, or after firstTime: questions and
	// watches wait for it.
	joined context.Context
	waited context.CancelFunc
	// known says that this member knows who the members are, so that a no of all
	// of them is definite: see settled and waitedLongEnough.
	known atomic.Bool
	met   time.Time // when the first other member was seen alive; guarded by nmu

	members   atomic.Pointer[[]resource.NodeID] // in order: alive, or away for a moment
	roll      atomic.Pointer[roll]              // the same, as other members are told
	kmu       sync.Mutex                        // SetKeys
	nmu       sync.Mutex
	nodes     map[resource.NodeID]*node // ever met
	changed   chan struct{}             // closed and replaced when members change
	looking   map[string]bool           // at these addresses, for members
	untold    map[resource.NodeID]bool  // who has not heard yet that this one is away
	heard     chan struct{}             // closed when all have
	conflict  string                    // told last: two places of one node
	wanting   map[string]*wanting       // of those to join
	agreed    map[resource.NodeID]agreement
	exchanges map[resource.NodeID]*exchange // under way

	large   chan struct{} // questions by streams that are being answered
	places  places
	watches watches
	count   counts

	mu      sync.Mutex
	filters *search.Filters
	born    time.Time // its monotonic part: reading half the clock is half the price
	search  *search.Node
	timer   *time.Timer
	due     time.Time  // when it fires; zero: not set
	out     []port.Out // what search wants sent, sent without mu
	spare   []port.Out // with the room of its payloads
	said    []byte     // the last answer to another member
	casts   [][]byte
}

// maxName is how long the name of a cluster may be: with "rocl " before it is
// the label of memberlist's packets.
const maxName = memberlist.LabelMaxSize - len(labelMark)

// Open makes the node a member. It joins those it is told of, and goes on
// trying in the background.
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
		Send: func(to resource.NodeID, p *search.Packet) {
			c.asks(to, p)
			if p.Covered > 0 {
				p.Known = c.roll.Load().knownTo(to)
			}
			var room []byte
			if n := len(c.out); n < cap(c.out) {
				room = c.out[:n+1][n].Payload[:0]
			}
			c.out = append(c.out, port.Out{To: to, Payload: p.AppendTo(slices.Grow(room, p.Size()), cfg.Node, to)})
		},
	}
	if cfg.Group != "" {
		scfg.Room = port.MaxPayload
		scfg.Cast = func(p *search.Packet) {
			c.castsOne(p)
			c.casts = append(c.casts, p.Append(nil))
		}
	}
	c.born = time.Now()
	c.search = search.NewNode(scfg)
	seal, err := c.streams()
	if err == nil {
		c.port, err = port.Open(port.Config{
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
		c.reached() // nobody to wait for
	}
	c.busy.Add(3)
	go c.keepJoined()
	go c.keepLinks()
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

// SetKeys replaces the keys of the cluster: the first seals, all open. To
// change a key, add the new one everywhere, then put it first everywhere, then
// take the old one away. Streams that are open stay so.
func (c *Cluster) SetKeys(of ...[]byte) error {
	c.kmu.Lock() // of two sets everywhere the same comes last
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

// streamProto is what streams between members are named in TLS (ALPN).
const streamProto = "rocl-dir/1"

// streamKeys are secrets that only members know: contexts are given others
// (LinkKey), and cannot pass for members.
func streamKeys(of [][]byte) (all [][]byte) {
	for _, k := range of {
		h := hmac.New(sha256.New, k)
		h.Write([]byte("rocl stream"))
		all = append(all, h.Sum(nil))
	}
	return all
}

// streams is how streams are sealed.
func (c *Cluster) streams() (seal port.TLS, err error) {
	cred := c.cfg.Credentials
	if cred == nil {
		if len(c.cfg.Keys) == 0 {
			return port.TLS{}, nil
		}
		if c.certs, err = tls.FromSecrets(c.cfg.Name, streamKeys(c.cfg.Keys)...); err != nil {
			return port.TLS{}, err
		}
		cred = c.certs
	}
	return port.TLS{
		Client: func(ctx context.Context, nc net.Conn) (net.Conn, error) {
			return tls.Client(ctx, nc, cred, streamProto, c.log)
		},
		Server: func(ctx context.Context, nc net.Conn) (net.Conn, error) {
			return tls.Server(ctx, nc, cred, streamProto, c.log)
		},
	}, nil
}

// Addr is where the member is reached.
func (c *Cluster) Addr() string { return c.port.Addr().String() }

// receive works on what another member has sent. b is not ours to keep.
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

// answers says whether a no of ours would be true.
func (c *Cluster) answers(q []byte) bool {
	if _, ok := parseQuestion(q); !ok {
		return false // of a later version: what is asked we may hold
	}
	if q[0] == kindRoll || c.cfg.Sure == nil || c.cfg.Sure() {
		return true
	}
	if q[0] == kindNext {
		return false // a place kept from now on would lack what is offered again
	}
	_, ok := c.answer(nil, q, mostPacked)
	return ok // else it may be about to be offered again; who asks will ask again
}

func (c *Cluster) tick() {
	c.step(func(now time.Time) {
		c.due = time.Time{}
		c.search.Tick(now)
	})
}

// step lets the search go on, and sends what it wants sent.
func (c *Cluster) step(f func(now time.Time)) {
	c.send(c.advance(f))
}

// send sends what advance returned.
func (c *Cluster) send(out []port.Out) {
	if len(out) > 0 {
		c.port.Send(out...)
		c.sentOff(out)
	}
}

// sentOff takes back what advance returned, to be used again.
func (c *Cluster) sentOff(out []port.Out) {
	out = emptied(out)
	c.mu.Lock()
	if cap(c.spare) < cap(out) {
		c.spare = out
	}
	c.mu.Unlock()
}

// emptied is out without what was in it, but with the room that its payloads
// had, unless that is more than is often needed.
func emptied(out []port.Out) []port.Out {
	if cap(out) > 64 {
		return nil
	}
	for i := range out {
		room := out[i].Payload[:0]
		if cap(room) > port.MaxPayload {
			room = nil
		}
		out[i] = port.Out{Payload: room}
	}
	return out[:0]
}

// advance lets the search go on, and returns what it wants sent: see send.
func (c *Cluster) advance(f func(now time.Time)) []port.Out {
	return c.advanced(nil, func() bool { return true }, f)
}

// advanced is advance that tells f the time only if it is asked for, and returns
// it in out if that is not nil.
func (c *Cluster) advanced(out []port.Out, timely func() bool, f func(now time.Time)) []port.Out {
	c.mu.Lock()
	var now time.Time
	if timely() {
		now = time.Now()
	}
	if c.out = out; out == nil {
		c.out, c.spare = c.spare, nil
	}
	f(now)
	out, casts := c.out, c.casts
	c.out, c.casts = nil, nil
	c.arm()
	c.mu.Unlock()
	c.count.sent.Add(uint64(len(out) + len(casts)))
	for _, b := range casts {
		c.port.Cast(b)
	}
	return out
}

// arm sets the timer to what the search waits for.
func (c *Cluster) arm() {
	if at := c.search.Next(); !at.IsZero() && (c.due.IsZero() || at.Before(c.due)) && c.life.Err() == nil {
		c.due = at // a timer that is early finds out; moving it each time would cost more than a question
		c.timer.Reset(max(time.Until(at), 0))
	}
}

// Members are the nodes of the cluster, this one among them, in order: those
// alive, and those that said they would be back in a moment.
func (c *Cluster) Members() []resource.NodeID { return slices.Clone(*c.members.Load()) }

// others are the members but for this one.
func (c *Cluster) others() []resource.NodeID {
	return slices.DeleteFunc(c.Members(), func(m resource.NodeID) bool { return m == c.cfg.Node })
}

// Close leaves the cluster.
func (c *Cluster) Close() error { return c.stop(true) }

// HandOver ends the membership without leaving: the node's contexts go on, and
// another server is about to take this one's place. The others wait for it for a
// few seconds.
func (c *Cluster) HandOver() error { return c.stop(false) }

func (c *Cluster) stop(leave bool) (err error) {
	c.ended.Do(func() { err = c.halt(leave) })
	return err
}

func (c *Cluster) halt(leave bool) (err error) {
	if !leave {
		c.sayAway()
	}
	c.nmu.Lock() // nobody is looked for any more
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
