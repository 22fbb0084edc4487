// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory"
	"github.com/rocl-go/rocl/directory/internal/database"
	"github.com/rocl-go/rocl/directory/internal/mux"
	"github.com/rocl-go/rocl/directory/internal/search"
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
	// Bind is HOST:PORT for everything, UDP and TCP: see Member.Bind.
	Bind string
	// Join says where members to begin with are: see Member.Join.
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
	Serve func(net.Conn)
	// Summary returns the summary of the node for other members: see directory.WithSummary. It may
	// be nil.
	Summary  func(ctx context.Context) ([]byte, error)
	Strategy strategy.Strategy
	Fan      int // fan-out of the spanning trees; 0: search.DefaultFan
	// Hop is the Hop of search.Config; 0: search.DefaultHop.
	Hop    time.Duration
	Spread time.Duration // how often members are told what is new in the summary; 0: 5 s
	// Patience is how long a question waits for members that cannot be asked and are not known to
	// be dead; 0: 3 s.
	Patience time.Duration
	// Poll is how long an asking goroutine reads the sockets itself before it sleeps, and how long
	// the goroutine of the mux that reads goes on after an answer; 0: not at all.
	Poll time.Duration
	// Sure reports whether a resource that DB lacks does not exist on the node. A no would be
	// premature while the contexts offer again what the previous server knew. Nil means always
	// true.
	Sure func() bool
	// Follows means that the node has been a member before. Even if Join is empty, other members
	// may exist, which know the node and look for it.
	Follows bool
	// Met has the addresses of members that an earlier membership of this node has met, by node.
	// They are looked for like members that were lost.
	Met map[resource.NodeID]string
	// Opening bounds Open, which may look Bind's name up; nil: no bound.
	Opening context.Context
	Logger  *slog.Logger
	// Network opens the sockets, for simulations; nil: the kernel's network.
	Network mux.Network
	host    string // the name of this machine, for tests; "": the kernel's

	// The following are for tests.
	gossip  func(*memberlist.Config)                                     // changes memberlist's settings; nil: it does not
	lookup  time.Duration                                                // bounds looking up a name in Join; 0: joinTime
	resolve func(ctx context.Context, host string) ([]netip.Addr, error) // looks a name up; nil: by the system's resolver
	service func(ctx context.Context, name string) ([]*net.SRV, error)   // looks SRV records up; nil: likewise
}

// A Cluster is this node's membership. Its methods may be called concurrently. It is composed of
// roles, each with its own state and its own lock: see the package documentation.
type Cluster struct {
	*core
	members   *memberTable
	joiner    *joiner
	gossip    *gossip
	departure *departure
	exchanges *exchanges
	summaries *summaries
	keyset    *keyset
	streams   *streams
	answers   *answers
	searches  *searches
	asker     *asker
	watches   *watches
	ended     sync.Once // guards end
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
	if !cfg.Strategy.IsValid() {
		return nil, fmt.Errorf("%w: no search strategy has the number %d", ErrConfig, uint8(cfg.Strategy))
	}
	c := compose(newCore(cfg))
	if err := c.start(); err != nil {
		c.life.end(directory.ErrClosed)
		c.searches.close()
		if errors.Is(err, mux.ErrChoice) {
			err = fmt.Errorf("%w: %w", ErrConfig, err)
		}
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return c, nil
}

// compose returns a Cluster whose roles know each other. Nothing of it runs yet.
func compose(base *core) *Cluster {
	s := &summaries{core: base, filters: search.NewFilters()}
	m := newMemberTable(base, s)
	s.members = m
	g := &gossip{core: base, members: m}
	j := newJoiner(base, m, g)
	g.joiner = j
	x := &exchanges{core: base, members: m, gossip: g, underWay: map[resource.NodeID]*exchange{}}
	st := &streams{core: base, members: m}
	an := &answers{core: base, members: m, large: make(chan struct{}, mostLarge)}
	d := newSearches(base, m, s, x, an)
	return &Cluster{
		core: base, members: m, joiner: j, gossip: g, exchanges: x, summaries: s, streams: st, answers: an, searches: d,
		departure: &departure{core: base, members: m, gossip: g},
		keyset:    &keyset{core: base, gossip: g},
		asker:     &asker{core: base, members: m, joiner: j, searches: d, streams: st, exchanges: x, agreed: map[resource.NodeID]agreement{}},
		watches:   &watches{core: base, members: m, joiner: j, streams: st, exchanges: x, all: map[uint64]*watching{}, feeds: map[resource.NodeID]*feed{}},
	}
}

// start opens the mux, and starts gossip and the goroutines.
func (c *Cluster) start() error {
	seal, err := c.keyset.tls()
	if err != nil {
		return err
	}
	cfg := &c.cfg
	if c.mux, err = mux.Open(mux.Config{
		Self: cfg.Node, Bind: cfg.Bind, Toward: c.toward, Cluster: cfg.Name, Keys: cfg.Keys, Group: cfg.Group, TLS: seal, Opening: cfg.Opening, Spin: cfg.Poll, Logger: cfg.Logger, Network: cfg.Network,
		Receive: c.receive, Stream: c.serve, Beacon: c.joiner.heardBeacon, Hello: c.joiner.heardHello, Answer: c.members.answered,
	}); err != nil {
		return err
	}
	if err = c.gossip.start(); err != nil {
		c.mux.Close()
		return err
	}
	c.mux.Start()
	if c.joiner.alone() {
		c.joiner.setComplete() // there is no member to wait for
	}
	c.life.begin(c.joiner.run)
	c.life.begin(c.watches.maintainFeeds)
	c.life.begin(c.summaries.maintain)
	return nil
}

// toward returns the HOST:PORT that say at which of this machine's addresses other members reach
// it: those of the members to join, and that of the group. The error is of an element of Join that
// cannot be looked up.
func (c *core) toward(ctx context.Context) (at []string, err error) {
	for _, join := range c.cfg.Join {
		places, e := c.places(ctx, join)
		at, err = append(at, places...), cmp.Or(err, e)
	}
	if c.cfg.Group != "" {
		at = append(at, c.cfg.Group)
	}
	return at, err
}

// SetKeys replaces the keys of the cluster: the first seals, all open. To change a key, add the new
// one on every node, then put it first on every node, then remove the old one. Open streams stay
// open. If SetKeys returns an error, the keys are as they were.
func (c *Cluster) SetKeys(of ...[]byte) error { return c.keyset.set(of) }

// Addr returns the address at which the member is reached.
func (c *Cluster) Addr() string { return c.mux.Addr().String() }

// Members returns the sorted nodes of the cluster, this one among them: those alive, and those that
// said that they would be back in a moment.
func (c *Cluster) Members() []resource.NodeID { return slices.Clone(c.members.list()) }

// Find asks the other members for a resource that matches. It waits for members that cannot be
// asked and are not known to be dead, until ctx ends or the patience is over. ErrNotFound is
// definite. ErrPartial names the members that could not be asked.
func (c *Cluster) Find(ctx context.Context, pattern *resource.List) (database.Record, error) {
	return c.asker.find(ctx, pattern)
}

// Lookup asks the node on which the identifier was minted, and no other node.
func (c *Cluster) Lookup(ctx context.Context, id resource.GID, pattern *resource.List) (database.Record, error) {
	return c.asker.ask(ctx, question(kindLookup, id, pattern), []resource.NodeID{id.Node()})
}

// All yields the resources of the other members that match. Each member keeps a cursor (paper,
// section 3.4) and gives one resource at a time. For a pattern with an order, each member gives
// only its first one, and many members are asked at once. All adds to cov which members were asked.
func (c *Cluster) All(ctx context.Context, pattern *resource.List, cov *directory.Coverage) iter.Seq2[database.Record, error] {
	return c.asker.all(ctx, pattern, cov)
}

// Trace searches the other members as Find does, or with the given strategy, and reports how the
// search went.
func (c *Cluster) Trace(ctx context.Context, by strategy.Strategy, pattern *resource.List) (directory.Trace, error) {
	return c.asker.trace(ctx, by, pattern)
}

// Watch keeps the given watch informed of what the other members have that matches: see
// directory.Remote.
func (c *Cluster) Watch(pattern *resource.List, to *database.Watch) (end func()) {
	return c.watches.watch(pattern, to)
}

// receive handles a datagram from another member. b is lent for the call. at is where the sender
// awaits an answer; nil means at its port. The mux may call receive concurrently.
func (c *Cluster) receive(from resource.NodeID, at *net.UDPAddr, b []byte) {
	switch {
	case search.IsFilter(b):
		c.summaries.receive(from, b)
		return
	case c.departure.receive(from, at, b), c.answers.receive(b):
		return
	}
	var p search.Packet
	if err := p.ParseFrom(b, from, c.cfg.Node); err != nil {
		c.log.Debug("cluster: ignoring a malformed packet of a search", "from", from, "err", err)
		return
	}
	if q, ok := p.Question(); ok && !c.answers.mayAnswer(q) {
		c.log.Debug("cluster: not answering a question: this member does not know the answer for certain yet", "from", from, "bytes", len(q))
		return
	}
	c.searches.receive(from, at, &p)
}

// serve serves a stream that another member opened. It has a goroutine to itself.
func (c *Cluster) serve(nc net.Conn) {
	what, from, ok := c.streams.called(nc)
	switch {
	case ok && what == questionByte:
		if err := c.answers.serve(nc); err != nil {
			c.log.Debug("cluster: answering a question by a stream failed", "from", from, "err", err)
		}
	case ok && what == directoryByte && c.cfg.Serve != nil:
		c.cfg.Serve(nc)
	default:
		c.log.Debug("cluster: closing a stream from an unknown member or with an unknown purpose", "remote", nc.RemoteAddr(), "claims", from)
		nc.Close()
	}
}

// Close leaves the cluster. The other members are told.
func (c *Cluster) Close() error {
	return c.end(func() error {
		c.life.end(directory.ErrClosed)
		c.life.wait()
		c.departure.tell(msgLeaving)
		return c.gossip.list.Leave(time.Second)
	})
}

// HandOver ends the membership without leaving, for a node whose contexts go on: another server is
// about to take this one's place. The other members wait for that server for a few seconds.
func (c *Cluster) HandOver() error {
	return c.end(func() error {
		c.gossip.announceAway() // gossip may reach the others later than the datagrams
		c.departure.tell(msgAway)
		return nil
	})
}

// abandon ends the membership without telling the other members, which take the node for dead. It
// is for a member that has lost its address. Questions under way end with the error why.
func (c *Cluster) abandon(why error) error {
	return c.end(func() error {
		c.life.end(why)
		return nil
	})
}

// end ends the membership once, and waits for the goroutines of c. It calls first before, which may
// tell the other members.
func (c *Cluster) end(first func() error) (err error) {
	c.ended.Do(func() {
		err = first()
		c.life.end(directory.ErrClosed)
		c.searches.close()
		err = cmp.Or(err, c.gossip.list.Shutdown())
		c.mux.Close()
		c.answers.cursors.close()
		c.members.close()
		c.life.wait()
		if err != nil {
			err = fmt.Errorf("cluster: leaving: %w", err)
		}
	})
	return err
}
