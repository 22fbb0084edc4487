package cluster

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/rocl-go/rocl/directory/port"
	"github.com/rocl-go/rocl/resource"
)

const (
	firstTime  = 3 * time.Second        // for the first member to be reached, before a no is believed: a connection whose first packet is lost takes one
	awayTime   = 5 * time.Second        // for which a member that said it would be back is waited for
	rejoin     = 500 * time.Millisecond // how often members that are missed are looked for
	beaconTime = 2 * time.Second        // how often a member that is not alone makes itself known to the group
	gossipTime = 100 * time.Millisecond // how often rumours are told
	joinTime   = 2 * time.Second        // for one attempt
	mostMissed = 16                     // of them at a time: one that answers knows the others
	forget     = 72 * time.Hour         // after which a member that is missed is no more looked for
)

const labelMark = "rocl "

// node is one that was met.
type node struct {
	addr  string
	epoch uint64 // of its port's present life
	alive bool
	lost  time.Time   // when it was seen dead
	left  bool        // it said that it leaves
	going bool        // it said that another server is about to take its place
	away  *time.Timer // runs while the node is away
}

// gossip makes memberlist's member out of the port.
func (c *Cluster) gossip() error {
	m := memberlist.DefaultLANConfig()
	m.Name = name(c.cfg.Node)
	m.Transport = within{c.port.Gossip(), c.port.DialAddr, c.life}
	m.BindPort, m.AdvertisePort = c.port.Addr().Port, c.port.Addr().Port
	m.Label = labelMark + c.cfg.Name
	m.Delegate, m.Events, m.Conflict, m.Ping = delegate{c}, events{c}, events{c}, probes{&c.count}
	m.EnableCompression = false // cost without gain
	m.TCPTimeout = joinTime
	// A node that falls silent is suspected after two or three probes' time and
	// dead 0.9 s after three others have found the same, 5.4 s if they have not: so
	// chance losses have time to be denied. Rumours are told often enough that
	// nobody misses one.
	m.ProbeInterval, m.ProbeTimeout = 180*time.Millisecond, 80*time.Millisecond
	m.SuspicionMult = 5
	m.GossipInterval, m.RetransmitMult = gossipTime, 8
	m.PushPullInterval = 5 * time.Second    // what gossip lost; memberlist takes longer where there are many
	m.DeadNodeReclaimTime = 2 * time.Second // a node may come back at another address
	m.Logger = slog.NewLogLogger(&quiet{Handler: c.log.Handler()}, slog.LevelDebug)
	if len(c.cfg.Keys) > 0 {
		var of [][]byte
		for _, k := range c.cfg.Keys {
			of = append(of, gossipKey(k))
		}
		var err error
		if m.Keyring, err = memberlist.NewKeyring(of, of[0]); err != nil {
			return err
		}
		c.ring = m.Keyring
	}
	var err error
	c.list, err = memberlist.Create(m)
	return err
}

func gossipKey(key []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("rocl gossip"))
	return h.Sum(nil)
}

// rekey brings memberlist's keyring to the keys given.
func (c *Cluster) rekey(of [][]byte) error {
	if len(c.cfg.Keys) == 0 || len(of) == 0 {
		return errors.New("a cluster has a key from its beginning to its end, or never")
	}
	ring := c.ring
	var err error
	for _, k := range of {
		err = errors.Join(err, ring.AddKey(gossipKey(k)))
	}
	err = errors.Join(err, ring.UseKey(gossipKey(of[0])))
	for _, old := range slices.Clone(ring.GetKeys()) {
		if !slices.ContainsFunc(of, func(k []byte) bool { return hmac.Equal(gossipKey(k), old) }) {
			err = errors.Join(err, ring.RemoveKey(old))
		}
	}
	return err
}

// What a member tells of itself by gossip: version u8 | flags u8 | epoch u64.
const (
	metaVersion = 1
	metaLen     = 10
	metaAway    = 1 << 0
)

func (c *Cluster) meta() []byte {
	b := []byte{metaVersion, 0}
	if c.going.Load() {
		b[1] |= metaAway
	}
	return binary.LittleEndian.AppendUint64(b, c.port.Epoch())
}

func parseMeta(b []byte) (epoch uint64, flags byte, ok bool) {
	if len(b) < metaLen || b[0] != metaVersion {
		return 0, 0, false
	}
	return binary.LittleEndian.Uint64(b[2:]), b[1], true
}

// name is a node's for memberlist.
func name(n resource.NodeID) string { return fmt.Sprintf("%012x", uint64(n)) }

func nodeID(n *memberlist.Node) (resource.NodeID, bool) {
	id, err := strconv.ParseUint(n.Name, 16, 48)
	return resource.NodeID(id), err == nil && id != 0 && n.Name == name(resource.NodeID(id))
}

type events struct{ c *Cluster }

func (e events) NotifyJoin(n *memberlist.Node)   { e.c.seen(n, true) }
func (e events) NotifyUpdate(n *memberlist.Node) { e.c.seen(n, true) }
func (e events) NotifyLeave(n *memberlist.Node)  { e.c.seen(n, false) }

// NotifyConflict hears that a node is said to be elsewhere than where it is known
// to live. One that has moved is believed when its old place is dead. Else two
// have one number, and only one of them is seen by each member: that must not
// pass in silence.
func (e events) NotifyConflict(n, other *memberlist.Node) {
	what := n.Name + " " + n.Address() + " " + other.Address()
	e.c.nmu.Lock()
	said := e.c.conflict == what
	e.c.conflict = what
	e.c.nmu.Unlock()
	if !said {
		e.c.log.Warn("cluster: a node is in two places: it has moved a moment ago, or two nodes have one number (a copied .node file, a cloned machine)",
			"node", n.Name, "addr", n.Address(), "other", other.Address(), "this node", n.Name == name(e.c.cfg.Node))
	}
}

// seen works on what gossip says of a node.
func (c *Cluster) seen(n *memberlist.Node, alive bool) {
	id, ok := nodeID(n)
	epoch, flags, known := parseMeta(n.Meta)
	if !ok {
		c.log.Warn("cluster: not one of us", "node", n.Name, "addr", n.Address())
		return
	}
	c.nmu.Lock()
	defer c.nmu.Unlock()
	m := c.nodes[id]
	if !known {
		c.log.Warn("cluster: a member that is not understood is not asked", "node", n.Name, "addr", n.Address(), "meta", fmt.Sprintf("%x", n.Meta))
		if m == nil {
			return
		}
		alive, epoch, m.left = false, m.epoch, true // it was understood: it is gone as that
	}
	if m == nil {
		m = &node{}
		c.nodes[id] = m
	}
	if m.away != nil {
		m.away.Stop()
		m.away = nil
	}
	was, life := m.alive, m.epoch
	m.alive, m.epoch = alive, epoch
	m.left = m.left && life == epoch
	m.going = m.going && life == epoch || flags&metaAway != 0
	if id != c.cfg.Node {
		c.count.member(id, was, alive, m.left || m.going)
	}
	if alive {
		m.addr = n.Address()
		if id != c.cfg.Node {
			c.port.Meet(id, epoch, &net.UDPAddr{IP: n.Addr, Port: int(n.Port)})
		}
		for other, o := range c.nodes {
			if o.addr == m.addr && !o.alive && o.away == nil {
				delete(c.nodes, other) // a machine that was started anew is another node
			}
		}
	} else {
		c.port.Part(id)
		switch {
		case m.going && c.life.Err() == nil:
			m.away = time.AfterFunc(awayTime, func() { c.notBack(id, m) })
		case m.left:
			delete(c.nodes, id) // it said so
		default: // dead, or cut off: keepJoined looks for it
			m.lost = time.Now()
		}
	}
	c.relist()
	if was != alive || life != epoch {
		c.mu.Lock()
		c.filters.Met(id, alive)
		c.mu.Unlock()
		c.log.Info("cluster: member", "node", n.Name, "addr", n.Address(), "alive", alive, "away", m.away != nil)
	}
}

// waitNoMore ends the waiting for members that are away: c has ended.
func (c *Cluster) waitNoMore() {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	for _, m := range c.nodes {
		if m.away != nil {
			m.away.Stop()
		}
	}
}

// notBack gives up waiting for a member that was away.
func (c *Cluster) notBack(id resource.NodeID, m *node) {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	if m.away != nil && c.nodes[id] == m {
		m.away, m.lost = nil, time.Now()
		c.relist()
	}
}

// Datagrams of one byte, by which a member says that it goes. memberlist tells
// it too, in time, and cannot say whether the others have heard.
const (
	msgHeard   = 13 // the answer to msgAway
	msgAway    = 14 // another server is about to take my place
	msgLeaving = 15
)

// How long a member that is away for a moment waits for all to have heard so,
// and how often it tells those that have not. Gossip may reach them later; who
// is not reached takes it for dead.
const (
	tellTime  = 150 * time.Millisecond
	tellAgain = 20 * time.Millisecond
)

// sayAway tells the others that another server is about to take this one's
// place, until they have heard it.
func (c *Cluster) sayAway() {
	c.going.Store(true)
	_ = c.list.UpdateNode(1) // only begins to tell
	c.nmu.Lock()
	c.untold, c.told = map[resource.NodeID]bool{}, make(chan struct{})
	for id, m := range c.nodes {
		if id != c.cfg.Node && m.alive {
			c.untold[id] = true
		}
	}
	c.nmu.Unlock()
	end, again := time.NewTimer(tellTime), time.NewTicker(tellAgain)
	defer end.Stop()
	defer again.Stop()
	for {
		var out []port.Out
		c.nmu.Lock()
		for id := range c.untold {
			out = append(out, port.Out{To: id, Payload: []byte{msgAway}})
		}
		c.nmu.Unlock()
		if len(out) == 0 {
			return
		}
		c.port.Send(out...)
		select {
		case <-again.C:
		case <-c.told:
			return
		case <-end.C:
			c.log.Info("cluster: away, and not all have heard it", "members", len(out))
			return
		}
	}
}

// takeLeave tells the others. Whoever does not hear it takes us for dead.
func (c *Cluster) takeLeave() {
	var out []port.Out
	for _, m := range c.others() {
		out = append(out, port.Out{To: m, Payload: []byte{msgLeaving}})
	}
	c.port.Send(out...)
}

// parting works on what a member says who goes, or has heard that we do.
func (c *Cluster) parting(id resource.NodeID, at *net.UDPAddr, what byte) {
	c.nmu.Lock()
	m := c.nodes[id]
	switch {
	case what == msgHeard && c.untold[id]:
		if delete(c.untold, id); len(c.untold) == 0 {
			close(c.told)
		}
	case what == msgLeaving && m != nil:
		m.left = true
	case what == msgAway && m != nil:
		m.going = true
	}
	c.nmu.Unlock()
	if what == msgAway && m != nil {
		c.port.Send(port.Out{To: id, At: at, Payload: []byte{msgHeard}})
	}
}

// relist makes the list of members anew.
func (c *Cluster) relist() {
	all := []resource.NodeID{c.cfg.Node}
	for id, m := range c.nodes {
		if id != c.cfg.Node && (m.alive || m.away != nil) {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	c.members.Store(&all)
	close(c.changed)
	c.changed = make(chan struct{})
}

// news is closed when membership changes next.
func (c *Cluster) news() <-chan struct{} {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	return c.changed
}

// keepJoined joins those it was told of until each was reached once, and looks
// for those it has met for as long as they are not seen alive: memberlist gives
// the dead up, and a cluster that was parted would stay so. While it is alone it
// makes itself known to the group; and so does, less often, the first of several:
// there may be others whom none of them has ever met.
func (c *Cluster) keepJoined() {
	defer c.busy.Done()
	told := map[string]bool{} // and not reached yet
	c.nmu.Lock()
	for _, addr := range c.cfg.Join {
		if told[addr] = addr != c.Addr(); told[addr] {
			c.wanting[addr] = &wanting{since: time.Now(), said: sayAgain}
		}
	}
	c.nmu.Unlock()
	var shown time.Time
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
		if all := *c.members.Load(); len(all) == 1 || all[0] == c.cfg.Node && time.Since(shown) > beaconTime {
			shown = time.Now()
			c.port.Beacon()
		}
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
	for id, m := range c.nodes {
		switch {
		case m.alive || m.away != nil:
		case now.Sub(m.lost) > forget:
			delete(c.nodes, id)
		case len(addrs) < mostMissed: // in no order: others the next time
			addrs = append(addrs, m.addr)
		}
	}
	return addrs
}

// look joins whoever is at an address, and calls found if somebody is, with
// c.nmu held. A packet goes first: whoever is cut off would hold a connection
// up for seconds, and whoever does not hear packets is no use as a member.
// c.nmu is held.
func (c *Cluster) look(addr string, found func()) {
	if c.looking[addr] || c.life.Err() != nil {
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
			delete(c.wanting, addr)
			found()
		} else if c.life.Err() == nil {
			c.log.Debug("cluster: joining", "addr", addr, "err", err)
			c.want(addr, err)
		}
	})
}

// wanting is about a member that we were told of and have not reached yet.
type wanting struct {
	since time.Time
	said  time.Duration // after which it is said, and again after twice that
}

// want says that a member is not reached: nothing else tells an operator that an
// address, a key or the cluster's name is wrong. c.nmu is held.
func (c *Cluster) want(addr string, err error) {
	w := c.wanting[addr]
	if w == nil || time.Since(w.since) < w.said {
		return
	}
	c.log.Warn("cluster: a member to join is not reached yet", "addr", addr, "for", w.said, "err", err)
	w.said *= 2
}

func (c *Cluster) join(addr string) error {
	to, err := c.addresses(addr)
	if err != nil {
		c.count.unresolved.Add(1)
		return err
	}
	var failed []error
	for _, at := range to { // all: they may not know each other
		_, err := c.list.Ping("", net.UDPAddrFromAddrPort(at))
		if err == nil {
			_, err = c.list.Join([]string{at.String()})
		}
		if c.life.Err() != nil {
			return err
		}
		if err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) < len(to) {
		return nil
	}
	c.count.notJoined.Add(1)
	if len(to) == 0 {
		return fmt.Errorf("%s: nobody else is there by now, or at no address that can be reached from %s", addr, c.Addr())
	}
	return fmt.Errorf("nobody answers; it may be down, or have another name of the cluster or another key: %w", errors.Join(failed...))
}

// heardBeacon works on a member's telling that it is there.
func (c *Cluster) heardBeacon(id resource.NodeID, addr *net.UDPAddr) {
	c.nmu.Lock()
	defer c.nmu.Unlock()
	if m := c.nodes[id]; m == nil || !m.alive {
		c.look(addr.String(), func() {})
	}
}

// heardGossip works on somebody's gossiping with us. Who knows nobody and is
// known has been a member before, of those who joined it and need not be told
// of: to them it never was away, so they do not look for it.
// Strangers are not answered: what does not open was said by one.
func (c *Cluster) heardGossip(from *net.UDPAddr, packet []byte) {
	if len(*c.members.Load()) > 1 || !c.opens(packet) {
		return
	}
	c.nmu.Lock()
	defer c.nmu.Unlock()
	if len(c.looking) < mostMissed { // it may be anybody who says so
		c.look(from.String(), func() {})
	}
}

// opens says whether a packet of gossip is of this cluster, as memberlist seals
// them: version u8 (1), nonce, AES-GCM over the label too.
func (c *Cluster) opens(packet []byte) bool {
	b, label, err := memberlist.RemoveLabelHeaderFromPacket(packet)
	if err != nil || label != labelMark+c.cfg.Name {
		return false
	}
	if c.ring == nil {
		return true
	}
	const version, nonce = 1, 12
	if len(b) < 1+nonce || b[0] != version {
		return false
	}
	return slices.ContainsFunc(c.ring.GetKeys(), func(key []byte) bool {
		block, err := aes.NewCipher(key)
		if err != nil {
			return false
		}
		gcm, err := cipher.NewGCM(block)
		if err != nil {
			return false
		}
		_, err = gcm.Open(nil, b[1:1+nonce], b[1+nonce:], []byte(label))
		return err == nil
	})
}

// quiet passes memberlist's lines on at level debug, but for those that an
// operator looks for: somebody's gossip does not open, or is of another cluster.
// They are said once in a while, since whoever likes can send packets.
type quiet struct {
	slog.Handler
	mu   sync.Mutex
	said time.Time
}

const sayAgain = 10 * time.Second

func (q *quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelInfo)
}

func (q *quiet) Handle(ctx context.Context, r slog.Record) error {
	refused := ""
	switch {
	case strings.Contains(r.Message, "Decrypt packet failed"):
		refused = "cluster: gossip refused: with another key, or with none"
	case strings.Contains(r.Message, "unacceptable label"):
		refused = "cluster: gossip refused: of another cluster"
	}
	if refused != "" {
		q.mu.Lock()
		again := r.Time.Sub(q.said) > sayAgain
		if again {
			q.said = r.Time
		}
		q.mu.Unlock()
		if again {
			says := slog.NewRecord(r.Time, slog.LevelInfo, refused, r.PC)
			says.AddAttrs(slog.String("memberlist", r.Message))
			return q.Handler.Handle(ctx, says)
		}
	}
	if !q.Handler.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

type delegate struct{ c *Cluster }

func (d delegate) NodeMeta(int) []byte           { return d.c.meta() }
func (delegate) GetBroadcasts(int, int) [][]byte { return nil }
func (delegate) LocalState(bool) []byte          { return nil }
func (delegate) MergeRemoteState([]byte, bool)   {}
func (delegate) NotifyMsg([]byte)                {}
