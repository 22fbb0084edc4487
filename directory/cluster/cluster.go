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
	*core
	members   *memberTable
	joiner    *joiner
	gossip    *gossip
	departure *departure
	exchanges *exchanges
	summaries *summaries
	certs     *tls.Secrets // made from the keys; nil without a key, or with Config.Credentials
	kmu       sync.Mutex   // held by SetKeys
	ended     sync.Once    // guards halt

	agreedMu sync.Mutex // guards agreed
	agreed   map[resource.NodeID]agreement

	large   chan struct{} // one slot for each question by stream that is being answered
	places  places
	watches watches

	// mu guards search and the following fields, and setting the timer. It is taken before
	// summaries.mu.
	mu     sync.Mutex
	search *search.Node
	timer  *time.Timer
	due    time.Time // when timer fires; zero: not set
	out    []mux.Out // datagrams that search wants sent; they are sent without mu
	spare  []mux.Out // an empty slice to be used as out again, with the buffers of its payloads
	said   []byte    // buffer of the last answer to another member
	casts  [][]byte
	silent []resource.NodeID // members that did not answer, for which mend is called without mu
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
	c := &Cluster{core: newCore(cfg), agreed: map[resource.NodeID]agreement{}, large: make(chan struct{}, mostLarge)}
	c.summaries = newSummaries(c.core)
	c.members = newMemberTable(c.core, c.summaries)
	c.summaries.members = c.members
	c.gossip = &gossip{core: c.core, members: c.members}
	c.joiner = newJoiner(c.core, c.members, c.gossip)
	c.gossip.joiner = c.joiner
	c.departure = &departure{core: c.core, members: c.members, gossip: c.gossip}
	c.exchanges = newExchanges(c.core, c.members, c.gossip)
	c.watches.all, c.watches.links = map[uint64]*watching{}, map[resource.NodeID]*link{}
	c.timer = time.AfterFunc(time.Hour, c.tick)
	scfg := search.Config{
		Self: cfg.Node, Strategy: cfg.Strategy, Fan: cfg.Fan, Hop: cfg.Hop,
		Members: c.members.list,
		Local:   c.local,
		May:     c.may,
		Silent:  func(m resource.NodeID) { c.silent = append(c.silent, m) },
		Send: func(to resource.NodeID, p *search.Packet) {
			c.asks(to, p)
			if p.Covered > 0 {
				p.Known = c.members.roll.Load().knownTo(to)
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
	c.search = search.NewNode(scfg)
	seal, err := c.streams()
	if err == nil {
		c.mux, err = mux.Open(mux.Config{
			Self: cfg.Node, Bind: cfg.Bind, Cluster: cfg.Name, Keys: cfg.Keys, Group: cfg.Group, TLS: seal, Opening: cfg.Opening, Spin: cfg.Poll, Logger: cfg.Logger,
			Receive: c.receive, Stream: c.serve, Beacon: c.joiner.heardBeacon,
		})
	}
	if err == nil {
		if err = c.gossip.start(); err != nil {
			c.mux.Close()
		}
	}
	if err != nil {
		c.life.end()
		c.timer.Stop()
		return nil, fmt.Errorf("cluster: %w", err)
	}
	c.mux.Start()
	if c.joiner.alone() {
		c.joiner.setComplete() // there is no member to wait for
	}
	c.life.begin(c.joiner.keep)
	c.life.begin(c.keepLinks)
	c.life.begin(c.summaries.keep)
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
	err := c.gossip.rekey(of)
	if err == nil && c.certs != nil {
		err = c.certs.Set(streamKeys(of)...)
	}
	if err != nil {
		return fmt.Errorf("cluster: changing keys: %w", err)
	}
	c.mux.SetKeys(of)
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
func (c *Cluster) Addr() string { return c.mux.Addr().String() }

// receive handles a datagram from another member. b is lent for the call. at is where the sender
// awaits an answer; nil means at its port. The port may call receive concurrently.
func (c *Cluster) receive(from resource.NodeID, at *net.UDPAddr, b []byte) {
	if search.IsFilter(b) {
		c.summaries.receive(from, b)
		return
	}
	if c.departure.receive(from, at, b) {
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
		c.mux.Send(out...)
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
		c.mux.Cast(b)
	}
	if len(silent) > 0 {
		c.exchanges.mend(silent...)
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
func (c *Cluster) Members() []resource.NodeID { return slices.Clone(c.members.list()) }

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
	if leave {
		c.life.end()
		c.life.wait()
		c.departure.announceLeave()
		err = c.gossip.list.Leave(time.Second)
	} else {
		c.departure.announceAway()
	}
	if e := c.cease(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("cluster: leaving: %w", err)
	}
	return nil
}

// cease ends the membership without telling the other members, and waits for the goroutines of c.
func (c *Cluster) cease() error {
	c.life.end()
	c.mu.Lock()
	c.timer.Stop()
	c.mu.Unlock()
	err := c.gossip.list.Shutdown()
	c.mux.Close()
	c.places.close()
	c.members.close()
	c.life.wait()
	return err
}
